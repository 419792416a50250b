"""Accuracy against routing ratio, counted by hand and on planted truths."""

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest

from packages.router.tests.fakes.planted_signal import shuffle_labels
from prefill_router.cost import CostScale
from prefill_router.data import RoutingDataset
from prefill_router.errors import ConfigError, DataError
from prefill_router.evaluation import evaluate
from prefill_router.policy import Predictions, Threshold
from prefill_router.reporting.report_files import check_place, mark, write_report_files
from prefill_router.testing import make_routing_dataset
from prefill_router_lab.studies.ratio import (
    RATIOS,
    RatioOptions,
    RatioOrder,
    RatioStudy,
    find_strongest,
    routing_ratio,
    summary,
)

ANSWERS = make_routing_dataset(queries=240, missing=0.2, seed=4)
STRONG = "target-2"


def make_predictions(dataset: RoutingDataset, *, noise: float = 0.3, seed: int = 0) -> Predictions:
    """Probabilities that know the labels, more or less."""
    random = np.random.default_rng(seed)
    truth = np.where(np.isnan(dataset.correct), 0.5, dataset.correct)
    table = np.clip(0.5 + 0.3 * (truth - 0.5) + random.normal(0, noise, truth.shape), 0, 1)
    cost = np.ones_like(table)
    names = dataset.pool.names
    scale = CostScale(0.0, 1.0)
    return Predictions(
        query_ids=dataset.query_ids,
        targets=names,
        correctness=table,
        estimated_cost=cost,
        scale=scale,
    )


def by_hand(predictions: Predictions, labels: np.ndarray, strong: int) -> list[float]:
    """Accuracy for every n, one query at a time."""
    rows = sorted(range(len(labels)), key=lambda i: -predictions.correctness[i, strong])
    accuracies = []
    for n in range(len(rows) + 1):
        answers = []
        for place, i in enumerate(rows):
            others = [k for k in range(labels.shape[1]) if k != strong]
            free = max(others, key=lambda k: predictions.correctness[i, k])
            answers.append(labels[i, strong if place < n else free])
        present = [label for label in answers if not np.isnan(label)]
        accuracies.append(sum(present) / len(present))
    return accuracies


def run_study(dataset: RoutingDataset = ANSWERS, **options: int) -> RatioStudy:
    systems = {
        "good": make_predictions(dataset, noise=0.1),
        "worse": make_predictions(dataset, seed=1),
    }
    return routing_ratio(systems, dataset, RatioOptions(resamples=200, **options), strong=STRONG)


def test_every_ratio_is_exact() -> None:
    few = ANSWERS.select(ANSWERS.query_ids[:50])
    predictions = make_predictions(few)
    tied = dataclasses.replace(predictions, correctness=np.round(predictions.correctness, 1))
    for each in (predictions, tied):
        curve = routing_ratio({"x": each}, few, RatioOptions(resamples=0), strong=STRONG).curves[0]
        assert curve.accuracy.tolist() == pytest.approx(by_hand(each, few.correct, 2))
        assert curve.ratio.tolist() == pytest.approx([n / 50 for n in range(51)])
        assert curve.at[4].value == pytest.approx(by_hand(each, few.correct, 2)[25])


def test_a_resample_is_the_study_of_its_queries() -> None:
    few = ANSWERS.select(ANSWERS.query_ids[:40])
    predictions = make_predictions(few)
    weights = np.bincount(np.random.default_rng(0).integers(0, 40, 40), minlength=40)
    rows = np.repeat(np.arange(40), weights)
    resample = RatioOrder.of(predictions, few.correct, STRONG).read(weights[None].astype(float))
    again = dataclasses.replace(
        predictions,
        query_ids=tuple(map(str, range(40))),
        correctness=predictions.correctness[rows],
    )
    curve = by_hand(again, few.correct[rows], 2)
    expected = [curve[round(40 * ratio)] for ratio in RATIOS]
    assert resample.at[0].tolist() == pytest.approx(expected)
    mean = np.mean((np.array(curve[1:]) + curve[:-1]) / 2)
    # Between copies of a query with a missing label the curve isn't straight.
    assert resample.summary["mean_accuracy"][0] == pytest.approx(mean, abs=2e-3)


def test_all_routers_meet_where_everything_is_forced() -> None:
    study = run_study()
    accuracy = np.nanmean(ANSWERS.correct[:, 2])
    assert study.strong_accuracy == pytest.approx(accuracy)
    assert {curve.accuracy[-1] for curve in study.curves} == {study.strong_accuracy}
    assert study.curves[1].difference[-1].value == 0
    assert study.curves[1].difference[-1].upper == 0


def test_the_same_router_does_not_differ_from_itself() -> None:
    predictions = make_predictions(ANSWERS)
    study = routing_ratio(
        {"a": predictions, "b": predictions}, ANSWERS, RatioOptions(resamples=50), strong=STRONG
    )
    again = study.curves[1]
    assert all(e.value == e.lower == e.upper == 0 for e in again.difference)
    assert again.summary_difference is not None
    assert {e.upper for e in again.summary_difference.values()} == {0}
    assert all(curve.difference == () for curve in study.curves[:1])


def test_an_informed_order_beats_chance_and_a_shuffled_one_does_not() -> None:
    informed = run_study().curves[0]
    assert informed.summary["lift"].lower > 0
    assert informed.lower[100] < informed.at[4].value < informed.upper[100]
    noise = shuffle_labels(ANSWERS)
    systems = {"blind": make_predictions(ANSWERS)}
    blind = routing_ratio(systems, noise, RatioOptions(resamples=200), strong=STRONG)
    lift = blind.curves[0].summary["lift"]
    assert lift.lower < 0 < lift.upper
    assert "Not significantly better than sending random queries: blind" in " ".join(summary(blind))
    assert "Not significantly" not in " ".join(summary(run_study()))


def test_neither_the_order_of_rows_nor_of_targets_matters() -> None:
    predictions = make_predictions(
        ANSWERS, noise=0.02
    )  # so little that no probability is cut to 0 or 1
    assert len(np.unique(predictions.correctness)) == predictions.correctness.size
    turned = predictions.select(ANSWERS.query_ids[::-1], targets=ANSWERS.pool.names[::-1])
    first, second = (
        routing_ratio({"x": each}, ANSWERS, RatioOptions(resamples=0), strong=STRONG).curves[0]
        for each in (predictions, turned)
    )
    assert second.accuracy == pytest.approx(first.accuracy)


def test_two_targets_have_the_numbers_of_routellm() -> None:
    pair = make_routing_dataset(queries=300, targets=2, seed=1)
    predictions = make_predictions(pair, noise=0.05)
    mirrored = np.stack([1 - predictions.correctness[:, 1], predictions.correctness[:, 1]], axis=1)
    predictions = dataclasses.replace(
        predictions, correctness=mirrored
    )  # so that both orders are the same
    curve = routing_ratio(
        {"x": predictions}, pair, RatioOptions(resamples=30), strong="target-1"
    ).curves[0]
    policy = Threshold(strong="target-1", weak="target-0")
    other = evaluate(predictions, pair, policy=policy, resamples=0).headline
    for name in ("apgr", "cpt_20", "cpt_50", "cpt_80"):
        assert curve.summary[name].value == pytest.approx(other[name].value, abs=5e-3)
    assert "apgr" not in run_study().curves[0].summary


def test_the_strong_target_is_the_most_accurate_where_measured() -> None:
    correct = np.array([[1, 0, np.nan], [1, np.nan, np.nan], [0, 1, np.nan], [0, 1, np.nan]])
    few = RoutingDataset.of(ANSWERS.queries[:4], ANSWERS.pool, correct)
    assert find_strongest(few) == "target-1"
    with pytest.raises(DataError, match="no answer has a label"):
        find_strongest(RoutingDataset.of(few.queries, few.pool, np.full((4, 3), np.nan)))


def test_what_makes_no_sense_is_refused() -> None:
    predictions = make_predictions(ANSWERS)
    with pytest.raises(ConfigError, match="no router"):
        routing_ratio({}, ANSWERS, strong=STRONG)
    with pytest.raises(ConfigError, match="strong target is 'nobody'"):
        routing_ratio({"x": predictions}, ANSWERS, strong="nobody")
    alone = predictions.select(targets=[STRONG])
    with pytest.raises(ConfigError, match="at least two"):
        routing_ratio({"x": alone}, ANSWERS, strong=STRONG)
    nothing = dataclasses.replace(ANSWERS, correct=np.full_like(ANSWERS.correct, np.nan))
    with pytest.raises(DataError, match="has a label"):
        routing_ratio({"x": predictions}, nothing, strong=STRONG)


@pytest.mark.slow
def test_it_is_written_and_read_by_people_and_programs(tmp_path: Path) -> None:
    study = run_study()
    mark(tmp_path / "ratio", "ratio", {"strong": STRONG})
    report = study.report(title="Ratio <of> all", facts={"dataset": "<made up>"})
    write_report_files(report, tmp_path / "ratio")
    output = json.loads((tmp_path / "ratio" / "ratio.json").read_text())
    assert output["routers"]["good"]["at"]["1"]["value"] == pytest.approx(study.strong_accuracy)
    page = (tmp_path / "ratio" / "index.html").read_text()
    assert "&lt;made up&gt;" in page
    assert "<made up>" not in page
    assert STRONG in page
    for suffix in (".png", ".svg", ".csv"):
        assert (tmp_path / "ratio" / "figures" / f"ratio{suffix}").stat().st_size > 1000
    check_place(tmp_path / "ratio", "ratio")
    with pytest.raises(ConfigError, match="is no study 'seeds'"):
        check_place(tmp_path / "ratio", "seeds")


@pytest.mark.parametrize("text", ["{", "[]", '{"format": "another"}', ""])
def test_other_folders_are_left_alone(text: str, tmp_path: Path) -> None:
    (tmp_path / "study.json").write_text(text)
    with pytest.raises(ConfigError, match="exists and is no study 'ratio'"):
        check_place(tmp_path, "ratio")
    with pytest.raises(ConfigError, match="exists and is no study"):
        check_place(tmp_path / "study.json", "ratio")
