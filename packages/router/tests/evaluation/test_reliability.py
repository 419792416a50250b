"""Calibration error, Brier decomposition and diagrams, beside plain loops."""

import dataclasses
from collections.abc import Callable
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from numpy.typing import NDArray

from packages.router.tests.evaluation.metric_contract import Metric, check
from packages.router.tests.evaluation.trials import random_system
from prefill_router.data import RoutingDataset
from prefill_router.errors import ConfigError, DataError
from prefill_router.evaluation import Trial
from prefill_router.evaluation.bootstrap import chunks, ones
from prefill_router.evaluation.metrics import brier_by_target, macro_mean
from prefill_router.evaluation.reliability import (
    POOLED,
    BinKind,
    Bins,
    BinSums,
    bias,
    brier_parts_by_target,
    calibration_error,
    chance_error,
    decomposition,
    ece_by_target,
    log_loss,
)
from prefill_router.evaluation.reliability_diagram import (
    MEAN,
    MEANINGS,
    NUMBERS,
    reliability_of,
    try_calibrators,
)
from prefill_router.policy import Predictions
from prefill_router.reporting.evaluation_charts import draw_diagrams, write_diagrams

pytestmark = pytest.mark.slow

Array = NDArray[np.float64]
KINDS: list[BinKind] = ["width", "mass"]


def make_trial(
    *, soft: bool = False, queries: int = 150, seed: int = 0, ties: bool = False
) -> Trial:
    trial = Trial.join(*random_system(queries=queries, missing=0.15, seed=seed, ties=ties))
    return dataclasses.replace(trial, correct=0.8 * trial.correct + 0.1) if soft else trial


def make_calibrated(queries: int = 600, *, targets: int = 3, seed: int = 0) -> Trial:
    """A trial with exactly calibrated predictions."""
    random = np.random.default_rng(seed)
    chance = random.beta(2, 2, (queries, targets))
    correct = (random.random(chance.shape) < chance).astype(np.float64)
    trial = Trial.join(*random_system(queries=queries, targets=targets, seed=seed))
    return dataclasses.replace(trial, correctness=chance, correct=correct)


def cells(trial: Trial, column: int) -> tuple[Array, Array]:
    """The labelled predictions of a target, or of all."""
    chosen = slice(None) if column == len(trial.targets) else slice(column, column + 1)
    is_known = ~np.isnan(trial.correct[:, chosen])
    return trial.correctness[:, chosen][is_known], trial.correct[:, chosen][is_known]


def plain_bins(scores: Array, kind: BinKind, count: int) -> list[int]:
    """The bin of each prediction, by the definition."""
    if kind == "width":
        return [min(int(s * count), count - 1) for s in scores]
    rank = [((scores < s).sum() + (scores == s).sum() / 2) / len(scores) for s in scores]
    return [int(r * count + 1e-12) for r in rank]


def plain_parts(scores: Array, labels: Array, bins: list[int]) -> dict[str, float]:
    rate, result = labels.mean(), dict.fromkeys(("ece", "reliability", "resolution", "within"), 0.0)
    for b in set(bins):
        inside = [i for i, other in enumerate(bins) if other == b]
        p, y = scores[inside], labels[inside]
        share = len(inside) / len(bins)
        result["ece"] += share * abs(p.mean() - y.mean())
        result["reliability"] += share * (p.mean() - y.mean()) ** 2
        result["resolution"] += share * (y.mean() - rate) ** 2
        covariance = np.mean((p - p.mean()) * (y - y.mean()))
        result["within"] += share * (p.var() - 2 * covariance)  # Stephenson's two terms
    return result | {"uncertainty": labels.var(), "brier": np.mean((scores - labels) ** 2)}


@pytest.mark.parametrize("soft", [False, True])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("ties", [False, True])
def test_numbers_are_those_of_plain_loops(kind: BinKind, soft: bool, ties: bool) -> None:
    trial = make_trial(soft=soft, ties=ties)
    sums = Bins.of(trial, kind=kind, count=7).sums(ones(len(trial)))
    got = decomposition(sums) | {"ece": calibration_error(sums)}
    for k in range(len(trial.targets) + 1):
        scores, labels = cells(trial, k)
        expected = plain_parts(scores, labels, plain_bins(scores, kind, 7))
        assert {name: got[name][0, k] for name in expected} == pytest.approx(expected, abs=1e-12)
        assert bias(sums)[0, k] == pytest.approx(scores.mean() - labels.mean(), abs=1e-12)


@pytest.mark.parametrize("noise", ["resampling", "all"])
def test_parts_add_up_in_every_resample(noise: str) -> None:
    trial = make_trial(soft=True)
    bins = Bins.of(trial)
    for weights in chunks(len(trial), count=30, seed=1, width=bins.width):
        parts = decomposition(bins.sums(weights, noise="all" if noise == "all" else "resampling"))
        total = parts["reliability"] - parts["resolution"] + parts["uncertainty"] + parts["within"]
        np.testing.assert_allclose(total, parts["brier"], atol=1e-12)
        np.testing.assert_allclose(parts["brier"][:, :-1], brier_by_target(trial, weights))


def test_predictions_one_to_a_bin_have_nothing_within_bins() -> None:
    trial = make_trial(ties=True)  # tenths
    parts = decomposition(Bins.of(trial, count=11).sums(ones(len(trial))))
    np.testing.assert_allclose(parts["within"], 0, atol=1e-12)
    np.testing.assert_array_less(0, parts["resolution"])


def test_resample_is_a_dataset_with_repeated_queries() -> None:
    trial = make_trial()
    weights = next(chunks(len(trial), count=8, seed=0, width=10**9))
    rows = np.repeat(np.arange(len(trial)), weights[0].astype(int))
    again = dataclasses.replace(
        trial,
        query_ids=tuple(f"r{i}" for i in range(len(rows))),
        correctness=trial.correctness[rows],
        correct=trial.correct[rows],
        cost=trial.cost[rows],
        observed_cost=trial.observed_cost[rows],
    )
    in_place, apart = Bins.of(trial).sums(weights[:1]), Bins.of(again).sums(ones(len(rows)))
    for name in ("weight", "predicted", "observed", "label_mean", "label_variance", "brier"):
        np.testing.assert_allclose(getattr(in_place, name), getattr(apart, name), atol=1e-12)
    np.testing.assert_allclose(log_loss(trial, weights)[0], log_loss(again, ones(len(rows)))[0])


def test_log_loss_agrees_with_scikit_learn() -> None:
    from sklearn.metrics import log_loss as oracle

    trial = make_trial()
    trial = dataclasses.replace(trial, correctness=np.clip(trial.correctness, 0.01, 0.99))
    got = log_loss(trial, ones(len(trial)))[0]
    for k in range(len(trial.targets) + 1):
        scores, labels = cells(trial, k)
        assert got[k] == pytest.approx(oracle(labels, scores), abs=1e-12)


def test_log_loss_of_certain_errors_is_finite() -> None:
    trial = make_trial()
    wrong = dataclasses.replace(trial, correctness=1 - np.nan_to_num(trial.correct))
    assert log_loss(wrong, ones(len(trial)))[0] == pytest.approx(6 * np.log(10), abs=1e-4)


def judge_number(
    number: Callable[[BinSums], Array], kind: BinKind = "width"
) -> Callable[[Predictions, RoutingDataset], float]:
    def compute(predictions: Predictions, dataset: RoutingDataset) -> float:
        trial = Trial.join(predictions, dataset)
        sums = Bins.of(trial, kind=kind, count=5).sums(ones(len(trial)))
        return float(macro_mean(number(sums)[:, :-1])[0])

    return compute


METRICS = {
    "ece": Metric(judge_number(calibration_error), "number", "lower", 0),
    "ece_equal_mass": Metric(judge_number(calibration_error, "mass"), "number", "lower", 0),
    "reliability": Metric(
        judge_number(lambda s: decomposition(s)["reliability"]), "number", "lower", 0
    ),
    "uncertainty": Metric(
        judge_number(lambda s: decomposition(s)["uncertainty"]), "number", "neither"
    ),
}


@pytest.mark.parametrize("name", METRICS)
def test_metric_contract(name: str) -> None:
    check(METRICS[name], seed=4)


def test_helpers_for_targets_leave_all_together_out() -> None:
    trial = make_trial()
    bins, once = Bins.of(trial), ones(len(trial))
    sums = bins.sums(once)
    assert ece_by_target(bins, once).shape == (1, 4)
    assert np.array_equal(ece_by_target(bins, once), calibration_error(sums)[:, :-1])
    parts = brier_parts_by_target(bins, once)
    assert np.array_equal(parts["resolution"], decomposition(sums)["resolution"][:, :-1])
    assert bins.names == (*trial.targets, POOLED)


def resample_errors(trial: Trial, *, corrected: bool) -> Array:
    bins = Bins.of(trial, kind="mass")
    errors = []
    for weights in chunks(len(trial), count=300, seed=0, width=bins.width):
        sums = bins.sums(weights)
        if not corrected:
            sums = dataclasses.replace(sums, gap_noise=np.zeros_like(sums.gap_noise))
        errors.append(macro_mean(calibration_error(sums)[:, :-1]))
    return np.concatenate(errors)


@pytest.mark.parametrize("shift", [0.0, 0.04])
def test_resamples_lie_around_what_was_measured(shift: float) -> None:
    trial = make_calibrated(targets=8)
    trial = dataclasses.replace(trial, correctness=np.clip(trial.correctness + shift, 0, 1))
    measured = macro_mean(ece_by_target(Bins.of(trial, kind="mass"), ones(len(trial))))[0]
    low, high = np.percentile(resample_errors(trial, corrected=True), [2.5, 97.5])
    assert low < measured < high
    assert np.percentile(resample_errors(trial, corrected=False), 2.5) > measured  # control


def test_what_holds_is_off_by_chance_alone() -> None:
    trial = make_calibrated(6000)
    bins, once = Bins.of(trial, kind="mass"), ones(6000)
    expected = chance_error(bins.sums(once, noise="sampling"))[0]
    np.testing.assert_allclose(calibration_error(bins.sums(once))[0], expected, rtol=0.45)
    off = dataclasses.replace(trial, correctness=trial.correctness**2)
    there = calibration_error(Bins.of(off, kind="mass").sums(once))[0]
    assert (there > 5 * expected).all()  # control


def test_noise_taken_off_leaves_no_reliability_to_what_holds() -> None:
    """On average over many samples; with it left in, the mean is well above zero."""
    plain, debiased = [], []
    for seed in range(40):
        trial = make_calibrated(150, seed=seed)
        bins, once = Bins.of(trial, kind="mass"), ones(150)
        plain.append(brier_parts_by_target(bins, once)["reliability"].mean())
        debiased.append(brier_parts_by_target(bins, once, noise="all")["reliability"].mean())
    error = np.std(debiased) / np.sqrt(len(debiased))
    assert abs(np.mean(debiased)) < 3 * error
    assert np.mean(plain) > 10 * error  # control


def test_targets_without_labels_have_no_numbers() -> None:
    trial = make_trial()
    blank = trial.correct.copy()
    blank[:, 2] = np.nan
    reliability = reliability_of(dataclasses.replace(trial, correct=blank), resamples=8)
    estimate = reliability.estimates[trial.targets[2]]["ece"]
    assert np.isnan(estimate.value)
    assert estimate.reason == "it has no labels"
    assert reliability.estimates[MEAN]["ece"].value > 0
    assert reliability.labels[trial.targets[2]] == 0
    draw_diagrams(
        reliability.diagrams["mass"], dict.fromkeys([*trial.targets, POOLED], ""), title="t"
    )


def test_what_is_off_is_named_worst_first() -> None:
    trial = make_calibrated(900, targets=4)
    sound = reliability_of(trial, resamples=200)
    assert not {*trial.targets, POOLED} & set(sound.off)
    odds = (trial.correctness / (1 - trial.correctness)) ** np.array([1, 3, 1, 2])
    reliability = reliability_of(
        dataclasses.replace(trial, correctness=odds / (1 + odds)), resamples=200
    )
    assert [name for name in reliability.off if name in trial.targets] == ["t1", "t3"]
    assert {POOLED, MEAN} <= set(reliability.off)
    assert reliability.to_dict()["off_beyond_chance"] == list(reliability.off)


def test_edges_belong_to_bins() -> None:
    trial = make_trial()
    trial = dataclasses.replace(trial, correctness=np.round(trial.correctness * 2) / 2)
    sums = Bins.of(trial, count=2).sums(ones(len(trial)))
    scores, _ = cells(trial, len(trial.targets))
    assert sums.weight[0, -1].tolist() == [(scores < 0.5).sum(), (scores >= 0.5).sum()]


def test_equal_predictions_share_a_bin() -> None:
    trial = make_trial()
    trial = dataclasses.replace(trial, correctness=np.full_like(trial.correctness, 0.6))
    bins = Bins.of(trial, kind="mass", count=4)
    assert ((bins.sums(ones(len(trial))).weight > 0).sum(axis=2) == 1).all()
    assert np.nanmin(bins.lower) == np.nanmax(bins.upper) == 0.6


def test_bins_of_equal_mass_are_of_equal_mass() -> None:
    trial = make_calibrated(600)
    weight = Bins.of(trial, kind="mass", count=8).sums(ones(600)).weight[0]
    assert (weight[:-1] == 75).all()
    assert (weight[-1] == 225).all()


def test_no_bins_are_refused() -> None:
    with pytest.raises(ConfigError, match="0 bins"):
        Bins.of(make_trial(), count=0)


def test_numbers_and_intervals_of_a_system() -> None:
    trial = make_trial(queries=300)
    reliability = reliability_of(trial, resamples=50)
    assert set(reliability.estimates) == {*trial.targets, POOLED, MEAN}
    for row in reliability.estimates.values():
        assert set(row) == set(MEANINGS)
        assert all(e.lower <= e.value <= e.upper for n, e in row.items() if "by_chance" not in n)
    targets = [reliability.estimates[name]["ece"].value for name in trial.targets]
    assert reliability.estimates[MEAN]["ece"].value == pytest.approx(np.mean(targets))
    assert reliability.to_dict() == reliability_of(trial, resamples=50).to_dict()
    assert reliability.to_dict() != reliability_of(trial, resamples=50, seed=1).to_dict()
    bare = reliability_of(trial, resamples=0)
    assert np.isnan(bare.estimates[MEAN]["ece"].lower)
    assert bare.estimates[MEAN]["ece"].value == reliability.estimates[MEAN]["ece"].value


def test_diagram_is_drawn_with_its_data_beside(tmp_path: Path) -> None:
    trial = make_trial(queries=200)
    awkward = dataclasses.replace(trial, targets=("a $x$ b", "模型", "t2", "t3"))
    reliability = reliability_of(awkward, resamples=20)
    paths = write_diagrams(reliability, tmp_path / "reliability", title="A title")
    assert [path.name for path in paths] == [f"reliability.{e}" for e in ("png", "svg", "csv")]
    assert paths[0].read_bytes().startswith(b"\x89PNG")
    text = paths[1].read_text(encoding="utf-8")
    assert "a $x$ b" in text
    assert "模型" in text
    rows = pl.read_csv(paths[2])
    assert set(rows["target"]) == {*awkward.targets, POOLED}
    for kind in KINDS:
        of_all = rows.filter(
            (pl.col("bins") == f"equal {kind}") & (pl.col("target") == POOLED)
        ).to_dict(as_series=False)
        _, labels = cells(trial, 4)
        assert sum(of_all["labels"]) == len(labels)
        at = [n * o for n, o in zip(of_all["labels"], of_all["observed"], strict=True)]
        assert sum(at) == pytest.approx(labels.sum())
    assert (rows["observed_lower"] <= rows["observed_upper"]).all()
    first = paths[1].read_bytes()
    write_diagrams(reliability, tmp_path / "reliability", title="A title")
    assert paths[1].read_bytes() == first


def too_sure(rows: slice) -> Trial:
    trial = make_calibrated(900)
    line = np.log(trial.correctness / (1 - trial.correctness))
    sure = 1 / (1 + np.exp(-3 * line))
    tables = ("correct", "cost", "observed_cost")
    cut = {name: getattr(trial, name)[rows] for name in tables}
    return dataclasses.replace(
        trial, query_ids=trial.query_ids[rows], correctness=sure[rows], **cut
    )


def test_calibrators_are_judged_side_by_side() -> None:
    part, test = too_sure(slice(0, 300)), too_sure(slice(300, 900))
    trials = try_calibrators(part, test, resamples=40)
    by_kind = {trial.kind: trial for trial in trials}
    assert list(by_kind) == ["none", "platt", "isotonic", "percentile", "z_score"]
    for number in NUMBERS:
        none = by_kind["none"].differences[number]
        assert (none.value, none.lower, none.upper) == (0, 0, 0)
    for kind in ("platt", "isotonic"):
        for number in ("ece", "brier_mean", "log_loss"):
            assert by_kind[kind].differences[number].upper < 0, (kind, number)
    platt = by_kind["platt"]
    assert platt.differences["auc_mean"].value == pytest.approx(0, abs=1e-12)
    by_hand = dataclasses.replace(test, correctness=platt.fit.calibrator(test.correctness))
    assert platt.values["brier_mean"].value == pytest.approx(
        macro_mean(brier_by_target(by_hand, ones(600)))[0]
    )
    assert platt.row()["brier_mean_gain_upper"] == platt.differences["brier_mean"].upper
    assert platt.to_dict()["notes"] == []


def test_labels_of_the_test_part_change_no_calibrator() -> None:
    part, test = too_sure(slice(0, 300)), too_sure(slice(300, 900))
    turned = dataclasses.replace(test, correct=1 - test.correct)
    for before, after in zip(
        try_calibrators(part, test, resamples=0),
        try_calibrators(part, turned, resamples=0),
        strict=True,
    ):
        first, second = (each.fit.calibrator(test.correctness) for each in (before, after))
        assert np.array_equal(first, second)


def test_too_small_a_part_is_said_to_change_nothing() -> None:
    [tried] = try_calibrators(
        too_sure(slice(0, 5)), too_sure(slice(300, 900)), kinds=["platt"], resamples=8
    )
    assert (tried.kind, tried.fit.calibrator.kind) == ("platt", "none")
    assert "5 queries and needs 10" in tried.fit.notes[0]
    assert tried.differences["brier_mean"].value == 0
    assert tried.to_dict()["fitted"] == "none"


def test_parts_that_overlap_are_refused() -> None:
    part = too_sure(slice(0, 301))
    with pytest.raises(DataError, match="1 queries are in both parts"):
        try_calibrators(part, too_sure(slice(300, 900)))
    other = dataclasses.replace(too_sure(slice(301, 900)), targets=("x", "y", "z"))
    with pytest.raises(DataError, match="targets"):
        try_calibrators(part, other)
