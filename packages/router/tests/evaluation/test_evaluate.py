import dataclasses
import json
import subprocess
import sys
import warnings
from pathlib import Path

import numpy as np
import pytest

from packages.router.tests.evaluation.trials import (
    OF_TWO,
    plain_headline,
    random_system,
    resample,
    system,
)
from prefill_router.cost import CostScale
from prefill_router.data import RoutingDataset, read_dataset
from prefill_router.errors import ConfigError, DataError
from prefill_router.evaluation import Evaluation, References, evaluate, paired
from prefill_router.evaluation.curve import STEPS
from prefill_router.evaluation.scores import HEADLINE, REGIME, TARGET
from prefill_router.policy import Lambda, OperatingPoints, Predictions
from prefill_router.reporting.evaluation_report import verdict

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("missing", [0.0, 0.1])
def test_headline_is_the_plain_computation(seed: int, missing: float) -> None:
    predictions, data = random_system(queries=12, targets=3, missing=missing, seed=seed)
    got = evaluate(predictions, data, resamples=0).headline
    for name, value in plain_headline(predictions, data).items():
        assert got[name].value == pytest.approx(value, abs=1e-10, nan_ok=True), name


def test_rows_are_joined_by_id_and_columns_by_name() -> None:
    predictions, data = random_system(queries=40)
    random = np.random.default_rng(0)
    ids, names = (random.permutation(a) for a in (data.query_ids, data.pool.names))
    shuffled = data.select(ids.tolist(), targets=names.tolist())
    assert evaluate(predictions, shuffled, resamples=9).to_dict() == (
        evaluate(predictions, data, resamples=9).to_dict()
    )


def test_other_queries_of_the_dataset_do_not_matter() -> None:
    predictions, data = random_system(queries=40)
    some = predictions.select(predictions.query_ids[5:25])
    alone = data.select(predictions.query_ids[5:25])
    assert evaluate(some, data, resamples=9).to_dict() == (
        evaluate(some, alone, resamples=9).to_dict()
    )


def test_what_a_decision_costs_is_paid_by_the_router_alone() -> None:
    predictions, data = random_system(queries=40)
    fees = np.random.default_rng(0).uniform(0, 2, 40)
    fee = dict(zip(predictions.query_ids, fees.tolist(), strict=True))
    free = evaluate(predictions, data, resamples=0)
    paying = evaluate(predictions, data, resamples=0, fee=dict(reversed(fee.items())))
    got, before = paying.headline, free.headline
    assert got["argmax_cost"].value == pytest.approx(before["argmax_cost"].value + fees.mean())
    assert got["argmax_accuracy"] == before["argmax_accuracy"]
    assert got["random_cost"] == before["random_cost"]
    assert paying.mix == free.mix
    assert got["cost_savings"].value < before["cost_savings"].value
    systems = {"free": (predictions, Lambda()), "paying": (predictions, Lambda())}
    comparison = paired(systems, data, fees={"paying": fee}, resamples=0)
    assert comparison.headline["paying"]["argmax_cost"].value == got["argmax_cost"].value
    assert comparison.difference["paying"]["argmax_cost"].value == pytest.approx(fees.mean())
    del fee[predictions.query_ids[7]]
    with pytest.raises(DataError, match=f"1 of 40 queries, such as {predictions.query_ids[7]!r}"):
        evaluate(predictions, data, fee=fee)


def test_every_number_has_an_explanation_and_an_interval() -> None:
    chosen = OperatingPoints(0.9, 0.6, 0.7, "t3")
    predictions, data = random_system(queries=60)
    twice = dataclasses.replace(data, runs=np.full((60, 4), 2.0))
    evaluation = evaluate(predictions, twice, resamples=40, chosen=chosen)
    assert list(evaluation.headline) == list(HEADLINE)
    assert all(set(t) == set(TARGET) for t in evaluation.per_target.values())
    assert all(set(r) == set(REGIME) for r in evaluation.regimes.values())
    for name, estimate in evaluation.headline.items():
        if name in OF_TWO:
            assert (
                estimate.reason == "it needs a strong and a weak target; 4 targets were evaluated"
            )
            continue
        assert estimate.lower <= estimate.upper, name
        assert not np.isnan([estimate.value, estimate.lower, estimate.upper]).any(), name


def test_lambda_table() -> None:
    evaluation = evaluate(*random_system(queries=200), resamples=0)
    assert [step.step for step in evaluation.steps] == [None, *STEPS]
    points = [step.points for step in evaluation.steps]
    assert points[0] == len(evaluation.curve)
    assert points[1] <= 101
    assert points[1:] == sorted(points[1:])
    for step in evaluation.steps:
        assert step.q1 + step.q2 + step.q3 + step.q4 == step.points
    exact = evaluation.steps[0]
    assert exact.p_auccc == evaluation.headline["p_auccc"].value
    assert exact.oracle_distance == evaluation.headline["oracle_distance"].value


def test_quartiles_are_quarters_of_the_range_of_cost() -> None:
    evaluation = evaluate(*random_system(queries=200), resamples=0)
    cost = evaluation.curve.mean_cost
    counts, _ = np.histogram(cost, bins=4, range=(cost.min(), cost.max()))
    step = evaluation.steps[0]
    assert [step.q1, step.q2, step.q3, step.q4] == counts.tolist()


def test_readings_are_named_and_differ() -> None:
    predictions, data = random_system(queries=100)
    exact = evaluate(predictions, data, resamples=0)
    grid = evaluate(predictions, data, resamples=0, step=0.01)
    linear = evaluate(predictions, data, resamples=0, axis="linear")
    assert "exact" in exact.definitions["points"]
    assert "0.01" in grid.definitions["points"]
    assert linear.definitions["cost_axis"].startswith("linear")
    assert grid.headline["p_auccc"].value == exact.steps[1].p_auccc
    assert grid.headline["oracle_distance"].value == exact.steps[1].oracle_distance
    assert linear.headline["p_auccc"].value == exact.steps[0].p_auccc_linear
    assert len({e.headline["p_auccc"].value for e in (exact, grid, linear)}) == 3


def test_max_lam_interval_reaches_the_highest_accuracy_at_the_lowest_cost() -> None:
    evaluation = evaluate(*random_system(queries=60), resamples=0)
    curve = evaluation.curve
    place = int(np.flatnonzero(curve.lam_from == evaluation.max_lam[0])[0])
    top = curve.accuracy == curve.accuracy.max()
    assert curve.accuracy[place] == evaluation.headline["max_lam_accuracy"].value
    assert curve.mean_cost[place] == curve.mean_cost[top].min()
    assert curve.lam_to[place] == evaluation.max_lam[1]


def test_a_perfect_predictor_reaches_the_oracle_and_a_blind_one_does_not() -> None:
    predictions, data = random_system(queries=150)
    perfect = _with(predictions, data.correct)
    got = evaluate(perfect, data, resamples=0).headline
    assert got["argmax_accuracy"].value == got["oracle_accuracy"].value
    assert got["headroom_captured"].value == 1
    assert got["auc_mean"].value == 1
    assert got["brier_mean"].value == 0
    assert got["solvable_accuracy"].value == 1
    random = np.random.default_rng(0).random(data.correct.shape)
    blind = evaluate(_with(predictions, random), data, resamples=0).headline
    assert blind["argmax_accuracy"].value < got["oracle_accuracy"].value - 0.1
    assert blind["auc_mean"].value == pytest.approx(0.5, abs=0.1)


def test_a_dominated_target_changes_no_choice() -> None:
    predictions, data = random_system(queries=60, targets=3)
    worse = system(
        np.column_stack([predictions.correctness[:, :1] * 0.9, predictions.correctness]),
        np.column_stack([predictions.estimated_cost[:, :1] * 1.1, predictions.estimated_cost]),
        np.column_stack([data.correct[:, :1], data.correct]),
        np.column_stack([data.observed_cost[:, :1], data.observed_cost]),
    )
    scaled = Predictions(**{**vars(worse[0]), "scale": predictions.scale})
    before = evaluate(predictions, data, resamples=0)
    after = evaluate(scaled, worse[1], resamples=0)
    assert after.per_target["t0"]["share_routed"].value == 0
    np.testing.assert_array_equal(after.curve.accuracy, before.curve.accuracy)


def test_soft_labels_count_as_they_are_in_accuracy() -> None:
    predictions, data = random_system(queries=50)
    soft = data.correct * 0.6 + 0.2
    softened = RoutingDataset.of(data.queries, data.pool, soft, recorded_cost=data.recorded_cost)
    got = evaluate(predictions, softened, resamples=0).headline
    hard = evaluate(predictions, data, resamples=0).headline
    assert got["argmax_accuracy"].value == pytest.approx(
        0.6 * hard["argmax_accuracy"].value + 0.2, abs=1e-12
    )
    assert got["auc_mean"].value == hard["auc_mean"].value
    assert got["p_auccc"].value == pytest.approx(hard["p_auccc"].value, abs=1e-9)


NO_PLANE = ("p_auccc", "mdp_auccc", "oracle_distance", "oracle_distance_reduction")
P, Y = np.random.default_rng(0).random((2, 20, 2))
ONE = np.ones((20, 1))
Y = (Y > 0.5) * 1.0
DEGENERATE = {
    "one target": (P[:, :1], ONE, Y[:, :1], ONE, "same mean cost"),
    "same cost": (P, np.ones((20, 2)), Y, np.ones((20, 2)), "same mean cost"),
    "unknown cost": (P, np.zeros((20, 2)), Y, np.full((20, 2), np.nan), "no observed cost"),
    "free": (P, np.zeros((20, 2)), Y, np.zeros((20, 2)), "is free"),
    "one free": (P, ONE * [0.0, 1.0], Y, ONE * [0.0, 1.0], "a target is free"),
    "all right": (P, ONE * [1.0, 2.0], np.ones((20, 2)), ONE * [1.0, 2.0], "no better than the"),
    "all wrong": (P, ONE * [1.0, 2.0], np.zeros((20, 2)), ONE * [1.0, 2.0], "no better than the"),
}


@pytest.mark.parametrize("name", DEGENERATE)
def test_degenerate_pools_give_null_with_a_reason(name: str) -> None:
    *tables, reason = DEGENERATE[name]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        evaluation = evaluate(*system(*tables), resamples=20)  # type: ignore[arg-type]
        value = evaluation.to_dict()
    text = json.dumps(value, allow_nan=False)
    for metric in NO_PLANE:
        assert value[metric]["value"] is None
        assert reason in value[metric]["reason"]
    assert value["argmax_accuracy"]["value"] == pytest.approx(
        tables[2][np.arange(20), _first_best(tables[0], tables[1])].mean()
    )
    assert "NaN" not in text


def test_one_query() -> None:
    evaluation = evaluate(*random_system(queries=1), resamples=10)
    json.dumps(evaluation.to_dict(), allow_nan=False)
    assert evaluation.headline["auc_mean"].reason


def test_unmeasured_queries_are_counted_apart() -> None:
    predictions, data = random_system(queries=30)
    correct = data.correct.copy()
    correct[:10] = np.nan
    masked = RoutingDataset.of(data.queries, data.pool, correct, recorded_cost=data.recorded_cost)
    evaluation = evaluate(predictions, masked, resamples=0)
    assert evaluation.regime_sizes["unmeasured"] == 10
    assert sum(evaluation.regime_sizes.values()) == 30
    assert evaluation.labels == 20 * 4
    assert sum(r["share"].value for r in evaluation.regimes.values()) == pytest.approx(1)


def test_accuracies_on_different_queries_are_said_not_to_compare() -> None:
    predictions, data = random_system(queries=60)
    assert evaluate(predictions, data, resamples=0).caution == ""
    is_asked = np.arange(60)[:, None] % 4 == np.arange(4)
    correct = np.where(is_asked, data.correct, np.nan)
    correct[:10] = np.nan
    apart = RoutingDataset.of(data.queries, data.pool, correct, recorded_cost=data.recorded_cost)
    evaluation = evaluate(predictions, apart, resamples=0)
    assert evaluation.caution.startswith("0 of 60 queries are compared")
    assert "score the answers of every target" in evaluation.caution
    assert verdict(evaluation) == evaluation.to_dict()["caution"] == evaluation.caution
    for name, estimate in evaluation.headline.items():
        if not name.startswith("choice_auc"):
            assert np.isnan(estimate.value) == HEADLINE[name].compares, name
    assert "outcomes of all targets" in evaluation.headline["argmax_accuracy"].reason


def test_a_missing_label_never_helps_a_router_that_counts_on_it() -> None:
    """Whole subjects lack one target's labels, and the router sends these subjects there."""
    random = np.random.default_rng(3)
    hard = np.arange(400) % 4 == 0
    chance = np.where(hard, 0.4, 0.8)[:, None] * [1.0, 0.95]
    correct = (random.random((400, 2)) < chance).astype(np.float64)
    correctness = np.where(hard[:, None], [0.5, 0.6], [0.8, 0.7])
    cost = np.ones((400, 1)) * [1.0, 2.0]
    complete = evaluate(*system(correctness, cost, correct, cost), resamples=0)
    assert (
        complete.headline["argmax_accuracy"].value - complete.headline["best_single_accuracy"].value
        < 0.01
    )
    labels = correct.copy()
    labels[hard & (random.random(400) < 0.8), 1] = np.nan
    predictions, data = system(correctness, cost, labels, cost)
    part = evaluate(predictions, data, resamples=0)
    query_ids = [
        i for i, row in zip(data.query_ids, labels, strict=True) if not np.isnan(row).any()
    ]
    only = evaluate(predictions.select(query_ids), data.select(query_ids), resamples=0)
    assert part.coverage.compared == len(query_ids) < 400
    assert part.coverage.harder > 0.1
    assert "less often" in part.caution
    for name in (name for name, entry in HEADLINE.items() if entry.compares):
        expected = pytest.approx(only.headline[name].value, nan_ok=True)
        assert part.headline[name].value == expected, name


def test_a_target_with_hardly_any_labels_is_named_and_not_compared_with() -> None:
    predictions, data = random_system(queries=200)
    correct = data.correct.copy()
    correct[7:, 0] = np.nan
    scarce = RoutingDataset.of(data.queries, data.pool, correct, recorded_cost=data.recorded_cost)
    evaluation = evaluate(predictions, scarce, resamples=0)
    assert evaluation.coverage.left_out == ("t0",)
    assert evaluation.coverage.compared > 0
    assert np.isnan(evaluation.per_target["t0"]["accuracy"].value)
    assert "t0 had too few labels" in evaluation.caution


def test_what_cannot_be_evaluated_is_refused() -> None:
    predictions, data = random_system(queries=6)
    nothing = RoutingDataset.of(data.queries, data.pool, np.full(data.correct.shape, np.nan))
    with pytest.raises(DataError, match="none of the 6 queries has a label"):
        evaluate(predictions, nothing)
    with pytest.raises(DataError, match="lacks 3 of 6 queries"):
        evaluate(predictions, data.select(data.query_ids[:3]))
    with pytest.raises(ConfigError, match="unknown targets"):
        evaluate(predictions, data.select(targets=["t0"]))


def test_real_answers(mmlu_pro: Path) -> None:
    data = read_dataset(mmlu_pro)
    data = data.select(data.query_ids[::9])
    random = np.random.default_rng(0)
    chance = np.nanmean(data.correct, axis=0) + random.normal(0, 0.1, data.correct.shape)
    cost = np.nanmedian(data.observed_cost, axis=0) * np.ones((len(data), 1))
    predictions = Predictions(
        query_ids=data.query_ids,
        targets=data.pool.names,
        correctness=chance.clip(0, 1),
        estimated_cost=cost,
        scale=CostScale(float(cost.min()), float(cost.max())),
    )
    chosen = OperatingPoints(1.0, 0.5, 0.5, data.pool.names[0])
    references = References.fit(data, predictions.normalised_cost)
    evaluation = evaluate(predictions, data, resamples=50, chosen=chosen, references=references)
    assert isinstance(evaluation, Evaluation)
    assert evaluation.verdict is not None
    assert evaluation.verdict.lam == 0.5
    assert evaluation.labels < len(data) * len(data.pool)
    assert {name for name, e in evaluation.headline.items() if e.reason} == {
        *OF_TWO,
        "oracle_held_out",
    }
    assert 0.45 < evaluation.headline["auc_mean"].value < 0.55


def test_importing_it_loads_neither_torch_nor_matplotlib() -> None:
    code = (
        "import sys, prefill_router.evaluation as e; "
        "print([m for m in ('torch', 'transformers', 'matplotlib') if m in sys.modules])"
    )
    process = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert process.stdout.strip() == "[]"


def test_resampled_rows_helper_keeps_costs() -> None:
    predictions, data = random_system(queries=5)
    _, again = resample(predictions, data, [0, 0, 4])
    np.testing.assert_array_equal(again.observed_cost, data.observed_cost[[0, 0, 4]])


def _with(predictions: Predictions, correctness: np.ndarray) -> Predictions:
    return Predictions(**{**vars(predictions), "correctness": correctness})


def _first_best(correctness: np.ndarray, cost: np.ndarray) -> np.ndarray:
    return np.lexsort((cost, -correctness), axis=1)[:, 0]
