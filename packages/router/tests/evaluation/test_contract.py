import hashlib
from functools import partial

import numpy as np
import pytest

from packages.router.tests.evaluation.metric_contract import Metric, check
from packages.router.tests.evaluation.trials import OF_TWO
from prefill_router.data import RoutingDataset
from prefill_router.evaluation import evaluate
from prefill_router.evaluation.scores import HEADLINE
from prefill_router.policy import OperatingPoints, Predictions

pytestmark = pytest.mark.slow

LOW = dict.fromkeys(("headroom_captured", "chosen_headroom"), -10.0) | dict.fromkeys(
    ("gain_random", "gain_best", "perf_gain", "cost_savings", "savings"), -1.0
)


_KNOWN: dict[str, dict[str, float]] = {}


def headline(name: str, predictions: Predictions, data: RoutingDataset) -> float:
    """One number of a system; all its numbers are computed once for all tests."""
    what = (
        *vars(predictions).values(),
        data.query_ids,
        data.pool,
        data.correct,
        data.observed_cost,
    )
    parts = (
        value.tobytes() if isinstance(value, np.ndarray) else repr(value).encode() for value in what
    )
    key = hashlib.sha256(b"|".join(parts)).hexdigest()
    if key not in _KNOWN:
        chosen = OperatingPoints(0.95, 0.8, 0.9, max(predictions.targets))
        headline = evaluate(predictions, data, resamples=0, chosen=chosen).headline
        _KNOWN[key] = {name: estimate.value for name, estimate in headline.items()}
    return _KNOWN[key][name]


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("name", [name for name in HEADLINE if name != "oracle_held_out"])
def test_headline_metrics_hold_to_the_contract(name: str, seed: int) -> None:
    entry = HEADLINE[name]
    # At the same setting a perfect predictor may well spend more than an inverted one.
    better = entry.better if name not in ("cost_savings", "savings") else "lower"
    metric = Metric(partial(headline, name), entry.unit, better, LOW.get(name))
    special = {
        "compares": entry.compares,
        "targets": 2 if name in OF_TWO else 4,
        "absolute": name == "router_arena",
        "sees_sign": name != "brier_resolution",
        "level": name == "ece_by_chance",
    }
    check(Metric(**{**vars(metric), **special}), seed)


def label_choices(predictions: Predictions, data: RoutingDataset) -> np.ndarray:
    choice = predictions.correctness.argmax(axis=1)
    labels = data.select(predictions.query_ids, targets=predictions.targets).correct
    return labels[np.arange(len(labels)), choice]


def right_one(predictions: Predictions, data: RoutingDataset) -> float:
    return float(np.nanmean(label_choices(predictions, data)))


def score_missing_wrong(predictions: Predictions, data: RoutingDataset) -> float:
    return float(np.nan_to_num(label_choices(predictions, data)).mean())


def by_order(predictions: Predictions, data: RoutingDataset) -> float:
    return float(np.nanmean(label_choices(predictions, data)[:20]))


def a_sum(predictions: Predictions, data: RoutingDataset) -> float:
    return float(np.nansum(label_choices(predictions, data)) / 1000)


def first_target(predictions: Predictions, data: RoutingDataset) -> float:
    return float(np.nanmean(data.select(targets=predictions.targets[:1]).correct))


def score_reversed(predictions: Predictions, data: RoutingDataset) -> float:
    return 1 - right_one(predictions, data)


def in_dollars(predictions: Predictions, data: RoutingDataset) -> float:
    return right_one(predictions, data) - float(np.nanmean(data.observed_cost))


def in_percent(predictions: Predictions, data: RoutingDataset) -> float:
    return 100 * right_one(predictions, data)


def test_the_contract_accepts_a_metric_of_another_making() -> None:
    check(Metric(right_one, "share", "higher"), 0)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (score_missing_wrong, "queries without labels"),
        (by_order, "order of queries"),
        (a_sum, "doubling"),
        (first_target, "order of targets"),
        (score_reversed, "perfect predictions"),
        (in_dollars, "prices multiplied"),
        (in_percent, "out of range"),
        (lambda *_: float("nan"), "undefined"),
    ],
)
def test_the_contract_refuses_wrong_metrics(wrong: object, message: str) -> None:
    with pytest.raises(AssertionError, match=message):
        check(Metric(wrong, "share", "higher"), 0)  # type: ignore[arg-type]


def test_the_contract_refuses_a_metric_that_only_says_it_follows_prices() -> None:
    with pytest.raises(AssertionError, match="follow the prices"):
        check(Metric(right_one, "share", "higher", absolute=True), 0)


def test_the_contract_refuses_an_anchor_that_looks_at_the_predictions() -> None:
    with pytest.raises(AssertionError, match="depends on predictions"):
        check(Metric(right_one, "share", "neither"), 0)


def test_the_contract_refuses_a_comparison_that_takes_whatever_is_known() -> None:
    with pytest.raises(AssertionError, match="a side wasn't measured"):
        check(Metric(right_one, "share", "higher", compares=True), 0)
