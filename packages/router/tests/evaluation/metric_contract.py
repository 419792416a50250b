"""What every metric of a system must hold to, whatever it measures."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pytest

from packages.router.tests.evaluation.trials import complete, random_system, resample
from prefill_router.cost import CostScale
from prefill_router.data import Query, RoutingDataset
from prefill_router.evaluation.scores import Better, Unit
from prefill_router.policy import Predictions

Compute = Callable[[Predictions, RoutingDataset], float]
System = tuple[Predictions, RoutingDataset]
_FREE = {"number": (-2, 2), "share": (0, 1), "points": (-1, 1), "usd": (0, 1)}


@dataclass(frozen=True)
class Metric:
    """A metric and its properties.

    Attributes:
        compute: The metric of a system.
        unit: US dollars follow prices; everything else doesn't change with them.
        better: A perfect predictor is never worse in this direction; `neither` must not depend on
            the predictions at all.
        low: The least it can be, if that isn't told by the unit.
        compares: Whether it holds systems against each other, so that only queries on which all
            outcomes are known may count.
        targets: How many targets it is of.
        absolute: Whether it measures prices by a scale of its own, so that it follows them.
        sees_sign: Whether it tells a predictor from the one that says the opposite; if not, a
            perfect predictor is held against one that says the same of all.
        level: Whether it is what chance makes of so many queries: it falls with their number, and
            is neither good nor bad.
    """

    compute: Compute
    unit: Unit
    better: Better
    low: float | None = None
    compares: bool = False
    targets: int = 4
    absolute: bool = False
    sees_sign: bool = True
    level: bool = False


def check(metric: Metric, seed: int) -> None:
    """Raise an AssertionError unless the metric keeps the contract on a random system."""
    system = random_system(queries=70, targets=metric.targets, missing=0.1, seed=seed)
    value = metric.compute(*system)
    assert value == value, "undefined on an ordinary system"
    _in_range(metric, value)
    _same(metric, value, _shuffle_rows(system, seed), "order of queries")
    _same(metric, value, _permute_targets(system, seed), "order of targets")
    twice = resample(*system, [*range(70), *range(70)])
    if metric.level:
        assert metric.compute(*twice) < value, "doesn't fall with the number of queries"
    else:
        _same(metric, value, twice, "doubling")
    factor = 3.7
    expected = value * factor if metric.unit == "usd" else value
    if metric.absolute:
        dearer = metric.compute(*_scale_prices(system, factor))
        assert dearer < value, "doesn't follow the prices that it measures"
    else:
        _same(metric, expected, _scale_prices(system, factor), "prices multiplied")
    _same(metric, value, _add_unmeasured(system), "queries without labels")
    if metric.compares:
        _same(metric, value, complete(*system), "queries on which a side wasn't measured")
    if not metric.level:
        _direction(metric, value, system)


def _in_range(metric: Metric, value: float) -> None:
    low, high = _FREE[metric.unit]
    assert (low if metric.low is None else metric.low) <= value <= high, (
        f"out of range: {value}; correct the unit of its registration, or add its lower bound to "
        "LOW in packages/router/tests/evaluation/test_contract.py"
    )


def _same(metric: Metric, expected: float, system: System, what: str) -> None:
    assert metric.compute(*system) == pytest.approx(expected, abs=1e-10), f"depends on {what}"


def _direction(metric: Metric, value: float, system: System) -> None:
    predictions, data = random_system(queries=70, targets=metric.targets, seed=9)
    perfect = metric.compute(_with_correctness(predictions, data.correct), data)
    opposite = 1 - data.correct if metric.sees_sign else np.full(data.correct.shape, 0.5)
    wrong = metric.compute(_with_correctness(predictions, opposite), data)
    if metric.better == "neither":
        blind = _with_correctness(system[0], np.full(system[1].correct.shape, 0.5))
        assert metric.compute(blind, system[1]) == pytest.approx(value), "depends on predictions"
    elif metric.unit != "usd":
        better = perfect > wrong if metric.better == "higher" else perfect < wrong
        assert better, f"perfect predictions give {perfect}, inverted ones {wrong}"


def _with_correctness(predictions: Predictions, correctness: np.ndarray) -> Predictions:
    return Predictions(**{**vars(predictions), "correctness": correctness})


def _shuffle_rows(system: System, seed: int) -> System:
    predictions, data = system
    ids = np.random.default_rng(seed).permutation(predictions.query_ids).tolist()
    return predictions.select(ids), data.select(ids)


def _permute_targets(system: System, seed: int) -> System:
    predictions, data = system
    names = np.random.default_rng(seed).permutation(predictions.targets).tolist()
    return predictions.select(targets=names), data.select(targets=names)


def _scale_prices(system: System, factor: float) -> System:
    predictions, data = system
    scale = CostScale(predictions.scale.low * factor, predictions.scale.high * factor)
    cost = predictions.estimated_cost * factor
    dearer = Predictions(**{**vars(predictions), "estimated_cost": cost, "scale": scale})
    recorded = data.observed_cost * factor
    return dearer, RoutingDataset.of(data.queries, data.pool, data.correct, recorded_cost=recorded)


def _add_unmeasured(system: System) -> System:
    predictions, data = system
    extra = np.full((5, len(data.pool)), np.nan)
    queries = [*data.queries, *(Query(f"new{i}", "?") for i in range(5))]
    more = Predictions(
        query_ids=tuple(query.id for query in queries),
        targets=predictions.targets,
        correctness=np.concatenate([predictions.correctness, predictions.correctness[:5, ::-1]]),
        estimated_cost=np.concatenate([predictions.estimated_cost, predictions.estimated_cost[:5]]),
        scale=predictions.scale,
    )
    return more, RoutingDataset.of(
        queries,
        data.pool,
        np.concatenate([data.correct, extra]),
        recorded_cost=np.concatenate([data.observed_cost, extra]),
    )
