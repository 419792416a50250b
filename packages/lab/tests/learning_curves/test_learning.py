"""Learning curves: planted laws and advice come back, and shuffled labels advise against more."""

import dataclasses
import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from packages.router.tests.fakes.planted_signal import permute_rows, shuffle_labels, states_of
from prefill_router.activations import MemoryActivations, Site
from prefill_router.data import RoutingDataset, Split, split
from prefill_router.errors import ConfigError, FitError
from prefill_router.evaluation import evaluate
from prefill_router.evaluation.bootstrap import Estimate
from prefill_router.fitting import FitConfig, Recipe, learn, recipe_from_dict
from prefill_router.reporting.report_files import render
from prefill_router.testing import make_routing_dataset
from prefill_router_lab.learning_curves import (
    FULL,
    LearningOptions,
    LearningStudy,
    PowerLaw,
    Size,
    choose_sizes,
    study_learning,
    thin,
)
from prefill_router_lab.learning_curves.advice import LabelAxis, spread_of, trend_of, verdict_of
from prefill_router_lab.learning_curves.curves import NUMBERS
from prefill_router_lab.learning_curves.result import draw

pytestmark = pytest.mark.slow

SITES = (Site(3, "last"),)
PREFILL = {"kind": "prefill", "dim": 4, "select": "last.3"}
LOGISTIC = {"kind": "logistic", "c": 0.1, "scaling": "common"}
"""Chooses nothing by cross-validation, since a study fits it hundreds of times."""
LABELS = np.array([500.0, 1000, 2000, 4000, 8000])


def recipe(predictor: object = LOGISTIC) -> Recipe:
    return recipe_from_dict({"features": PREFILL, "predictor": predictor})


@pytest.fixture(scope="module")
def data() -> RoutingDataset:
    return make_routing_dataset(queries=300, targets=4, seed=3)


@pytest.fixture(scope="module")
def states(data: RoutingDataset) -> MemoryActivations:
    return states_of(data, sites=SITES)


def run_study(
    data: RoutingDataset, states: MemoryActivations, parts: Split, folder: Path | None = None
) -> LearningStudy:
    options = LearningOptions(draws=2, resamples=20)
    return study_learning(data, {"one": recipe()}, [states], parts, options, folder=folder)


@pytest.fixture(scope="module")
def study(data: RoutingDataset, states: MemoryActivations) -> LearningStudy:
    return run_study(data, states, split(data))


def test_a_planted_law_is_found() -> None:
    x = np.geomspace(100, 10_000, 7)
    law = PowerLaw.fit(x, 0.2 + 3.0 * x**-0.5)
    assert law.floor == pytest.approx(0.2, abs=1e-3)
    assert law.exponent == pytest.approx(0.5, abs=0.03)
    assert law.at(np.array([40_000.0]))[0] == pytest.approx(0.2 + 3.0 / 200, abs=1e-3)
    needed = law.labels_for(0.01)
    assert law.at(np.array([needed]))[0] == pytest.approx(law.at(x[-1:])[0] - 0.01)
    assert law.labels_for(0.05) == math.inf
    assert law.gain(4.0) == pytest.approx(0.015, abs=1e-3)


def test_one_point_far_off_hardly_bends_a_law() -> None:
    x = np.geomspace(100, 10_000, 9)
    y = 0.2 + 3.0 * x**-0.5
    y[4] += 0.1
    law = PowerLaw.fit(x, y)
    assert law.at(x[-1:])[0] == pytest.approx(0.23, abs=0.005)


def test_a_flat_or_rising_error_has_no_gain_and_few_sizes_no_law() -> None:
    for y in (np.full(5, 0.3), np.linspace(0.2, 0.3, 5)):
        law = PowerLaw.fit(LABELS, y)
        assert law.scale == pytest.approx(0, abs=1e-9)
        assert law.labels_for(0.01) == math.inf
        assert law.gain(2.0) == pytest.approx(0, abs=1e-9)
    with pytest.raises(FitError, match="needs 4 sizes"):
        PowerLaw.fit(LABELS, np.array([0.3, np.nan, np.nan, np.nan, 0.2]))


def axis(value: np.ndarray, *, labels: np.ndarray = LABELS, noise: float = 1e-4) -> LabelAxis:
    random = np.random.default_rng(0)
    return LabelAxis(labels, value, value + random.normal(0, noise, (60, len(value))))


def test_a_trend_says_how_many_labels_a_point_takes() -> None:
    trend = trend_of("auc_mean", axis(1 - (0.2 + 3.0 * LABELS**-0.5)))
    truth = (3.0 / (3.0 * 8000**-0.5 - 0.01)) ** 2
    assert trend.labels_for_step.lower <= truth <= trend.labels_for_step.upper
    assert trend.labels_for_step.value == pytest.approx(truth, rel=0.1)
    assert trend.per_doubling.lower > 0
    assert trend.explained > 0.99
    assert trend.why_poor == ""


def test_a_poor_law_says_so() -> None:
    jagged = np.array([0.6, 0.64, 0.59, 0.65, 0.6])
    assert "scatter" in trend_of("auc_mean", axis(jagged)).why_poor
    jump = np.array([0.6, 0.62, 0.63, 0.634, 0.7])
    assert trend_of("auc_mean", axis(jump)).why_poor != ""
    two = trend_of("auc_mean", axis(np.array([0.6, 0.7]), labels=LABELS[:2]))
    assert "too few sizes" in two.why_poor


def test_a_brier_score_falls_to_improve() -> None:
    trend = trend_of("brier_mean", axis(0.2 + 3.0 * LABELS**-0.5))
    assert trend.per_doubling.lower > 0
    assert trend.next_doubling.lower > 0


@pytest.mark.parametrize(("shift", "sign"), [(0.01, 1), (-0.01, -1), (0.0, 0)])
def test_whether_few_targets_of_many_queries_pay_is_planted(shift: float, sign: int) -> None:
    deep = axis(0.6 + 0.02 * np.log2(LABELS / 500))
    few = LABELS[:4]
    wide = axis(0.6 + 0.02 * np.log2(few / 500) + shift, labels=few)
    gain = spread_of("auc_mean", deep, wide)
    assert gain.value == pytest.approx(shift, abs=1e-3)
    assert int(gain.lower > 0) - int(gain.upper < 0) == sign


def test_spread_without_common_sizes_is_not_made_up() -> None:
    gain = spread_of("auc_mean", axis(LABELS / 1e4), axis(np.array([0.5]), labels=np.array([9e3])))
    assert math.isnan(gain.value)
    assert gain.reason


def test_verdicts(study: LearningStudy) -> None:
    full = study.curves["one"].full

    def verdict(auc: Estimate, slope: float) -> tuple[str, str]:
        point = dataclasses.replace(full, numbers={**full.numbers, "auc_mean": auc})
        trend = trend_of("auc_mean", axis(0.6 + slope * np.log2(LABELS / 500)))
        return verdict_of({"auc_mean": trend}, point)

    good, none = Estimate(0.7, 0.69, 0.71), Estimate(0.51, 0.49, 0.53)
    assert verdict(good, 0.02)[0] == "more labels help"
    assert verdict(good, 0.0)[0] == "more labels won't help"
    assert "nothing was learned" in verdict(none, 0.02)[1]
    lost = Estimate(np.nan, np.nan, np.nan, 1, "no target has right and wrong answers")
    assert verdict(lost, 0.02)[0] == "can't tell"
    assert "no target has right and wrong answers" in verdict(lost, 0.02)[1]
    noisy = trend_of("auc_mean", axis(np.full(5, 0.6), noise=0.05))
    point = dataclasses.replace(full, numbers={**full.numbers, "auc_mean": good})
    assert verdict_of({"auc_mean": noisy}, point)[0] == "can't tell"


def test_default_sizes_match_labels_on_both_axes(data: RoutingDataset) -> None:
    sizes = choose_sizes(data, split(data))
    assert FULL in sizes
    assert [s.measured for s in sizes if s.measured] == [1, 2]
    shares = [s.share for s in sizes if s.measured is None]
    assert {0.25, 0.5, 1.0} <= set(shares)
    assert min(shares) * len(split(data)["train"]) >= 20


def test_thinning_takes_parts_of_parts_and_leaves_the_test_alone(data: RoutingDataset) -> None:
    parts = split(data)
    half, half_split = thin(data, parts, Size(0.5), seed=1)
    tenth, tenth_split = thin(data, parts, Size(0.1), seed=1)
    assert half is data
    assert tenth is data
    assert set(tenth_split["train"]) < set(half_split["train"]) < set(parts["train"])
    assert len(half_split["train"]) == round(len(parts["train"]) / 2)
    assert half_split["test"] == parts["test"]
    single, same = thin(data, parts, Size(measured=1), seed=1)
    double, _ = thin(data, parts, Size(measured=2), seed=1)
    rows = data.rows(parts["train"])
    has_label = ~np.isnan(single.correct[rows])
    assert (has_label.sum(axis=1) == 1).all()
    assert (~np.isnan(double.correct[rows]))[has_label].all()
    assert (has_label.sum(axis=0) > 0.1 * len(rows)).all()
    assert np.isnan(single.output_tokens[rows][~has_label]).all()
    assert np.isnan(single.observed_cost[rows][~has_label]).all()
    test = data.rows(parts["test"])
    assert np.array_equal(single.correct[test], data.correct[test], equal_nan=True)
    assert same == parts
    assert thin(data, parts, Size(0.1), seed=2)[1]["train"] != tenth_split["train"]


def test_thinning_does_not_depend_on_the_order_of_rows(data: RoutingDataset) -> None:
    parts, other = split(data), permute_rows(data)
    one, _ = thin(data, parts, Size(measured=1), seed=1)
    two, _ = thin(other, parts, Size(measured=1), seed=1)
    assert np.array_equal(one.correct, two.select(one.query_ids).correct, equal_nan=True)


def test_the_full_size_is_an_evaluation_of_a_plain_fit(
    data: RoutingDataset, states: MemoryActivations, study: LearningStudy
) -> None:
    parts = split(data)
    router = learn(data, [states], parts, config=FitConfig(recipe=recipe()))
    test = data.select(parts["test"])
    headline = evaluate(router.predict(test, stores=[states]), test, resamples=0).headline
    for name in NUMBERS:
        draws = study.curves["one"].full.draws[name]
        assert draws[0] == pytest.approx(headline[name].value)


def test_planted_difficulty_is_learned_and_shuffled_labels_are_not(
    data: RoutingDataset, states: MemoryActivations, study: LearningStudy
) -> None:
    curve = study.curves["one"]
    assert curve.full.numbers["auc_mean"].lower > 0.75
    noise = dataclasses.replace(data, correct=shuffle_labels(data).correct)
    nothing = run_study(noise, states, split(noise)).curves["one"]
    assert nothing.verdict == "more labels won't help"
    # All of it is shrunk away, so that the AUC is a half and has no spread.
    assert nothing.full.numbers["auc_mean"].lower <= 0.5
    assert not nothing.trends["auc_mean"].per_doubling.lower > 0


def test_test_labels_never_reach_a_fit(
    data: RoutingDataset, states: MemoryActivations, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    parts = split(data)
    label_sums: list[float] = []

    def learn_watched(less: RoutingDataset, *args: object, **options: object) -> object:
        label_sums.append(float(np.nansum(less.correct[less.rows(parts["test"])])))
        return learn(less, *args, **options)  # type: ignore[arg-type]

    flipped = data.correct.copy()
    rows = data.rows(parts["test"])
    flipped[rows] = 1 - flipped[rows]
    other = dataclasses.replace(data, correct=flipped)
    monkeypatch.setattr("prefill_router_lab.learning_curves.study.learn", learn_watched)
    contents = []
    for name, whole in (("a", data), ("b", other)):
        folder = tmp_path / name
        study_learning(
            whole,
            {"r": recipe()},
            [states],
            parts,
            LearningOptions(sizes=(Size(0.5),), draws=2, resamples=5),
            folder=folder,
        )
        contents.append(sorted(path.read_bytes() for path in folder.iterdir()))
    assert len(set(label_sums)) == 2
    assert contents[0] == contents[1]


def test_kept_fits_are_used_again_and_broken_ones_are_not(
    data: RoutingDataset, states: MemoryActivations, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    parts, folder = split(data), tmp_path / "fits"
    first = run_study(data, states, parts, folder)
    files = sorted(folder.iterdir())
    count = 0

    def learn_counted(*args: object, **options: object) -> object:
        nonlocal count
        count += 1
        return learn(*args, **options)  # type: ignore[arg-type]

    monkeypatch.setattr("prefill_router_lab.learning_curves.study.learn", learn_counted)
    again = run_study(data, states, parts, folder)
    assert (count, again.to_dict()) == (0, first.to_dict())
    broken = bytearray(files[0].read_bytes())
    broken[-3] ^= 1
    files[0].write_bytes(bytes(broken))
    files[1].write_bytes(files[1].read_bytes()[:50])
    files[2].unlink()
    assert run_study(data, states, parts, folder).to_dict() == first.to_dict()
    assert count == 3


def test_a_size_that_cannot_be_fitted_is_left_out_and_named(
    data: RoutingDataset, states: MemoryActivations, monkeypatch: pytest.MonkeyPatch
) -> None:
    parts = split(data)

    def learn_large_only(
        less: RoutingDataset, stores: object, part: Split, *, config: FitConfig
    ) -> object:
        if len(part["train"]) < 100:
            raise FitError("too little")
        return learn(less, stores, part, config=config)  # type: ignore[arg-type]

    monkeypatch.setattr("prefill_router_lab.learning_curves.study.learn", learn_large_only)
    result = run_study(data, states, parts)
    curve = result.curves["one"]
    assert {failure.why for failure in curve.failures} == {"too little"}
    assert math.isnan(curve.queries_axis[0].numbers["auc_mean"].value)
    report = result.report(title="T", facts={})
    assert "too little" in render(report, {"learning": "<svg></svg>"})


def test_ticks_stand_apart_and_shares_are_percentages(study: LearningStudy) -> None:
    panels = draw(study).axes
    for axes in panels:
        low, high = np.log(axes.get_xlim())
        places = np.log([tick for tick in axes.get_xticks() if low <= np.log(tick) <= high])
        assert len(places) >= 2
        assert np.diff(places).min() > 0.09 * (high - low)
    share, number = panels[2].yaxis, panels[0].yaxis
    assert share.get_major_formatter()(0.5).endswith(" %")
    assert "%" not in number.get_major_formatter()(0.5)


def test_the_page_gives_the_advice_in_words(study: LearningStudy) -> None:
    report = study.report(title="Learning curves", facts={"dataset": "d"})
    text = " ".join(report.summary)
    assert study.curves["one"].verdict in report.summary[0]
    assert "targets" in text
    page = render(report, {"learning": "<svg></svg>"})
    assert ">nan" not in page
    assert ">inf" not in page
    assert len(report.tables["sizes"]) == len(study.curves["one"].points) * len(NUMBERS)


PLANS: list[tuple[Callable[[], object], str]] = [
    (lambda: LearningOptions(draws=1), "at least 2"),
    (lambda: LearningOptions(resamples=0), "resamples"),
    (lambda: LearningOptions(seed=-1), "seed is -1"),
    (lambda: Size(0.0), "share of the queries is 0"),
    (lambda: Size(1.5), "share of the queries is 1.5"),
    (lambda: Size(measured=0), "at least 1"),
]


@pytest.mark.parametrize(("make", "why"), PLANS)
def test_plans_that_make_no_sense(make: Callable[[], object], why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        make()


def test_no_router(data: RoutingDataset) -> None:
    with pytest.raises(ConfigError, match="name at least one"):
        study_learning(data, {}, [], split(data))
