"""Fixed mixes of targets on the accuracy-cost plane: what is available without reading a query.

Two targets can be mixed blindly to spend any amount between their costs. The best mixes are the
upper concave envelope of the single targets in the plane of cost and accuracy. A router that does
not beat them has learned nothing.

`mix_of` gives the best mixes on the evaluated queries themselves. `FixedChoice` finds them on the
train part; their accuracy and cost are measured on the same queries as the router's
(`references.ReferenceTable`).

Areas and distances to the oracle are measured in the plane with normalised axes:

    x = (1/C - 1/C_high) / (1/C_low - 1/C_high)          (`inverse`; the paper's)
    x = (C_high - C) / (C_high - C_low)                  (`linear`)
    y = (accuracy - floor) / (ceiling - floor)

C is a mean observed cost. C_low and C_high are the lowest and the highest cost of a single target
on the evaluated queries. The floor is the lowest accuracy of a single target. The ceiling is the
oracle's accuracy. Nothing is clipped: a router cheaper than every single target has x above 1.

Two settings can be mixed: a fixed share of the queries goes to one and the rest to the other. No
mix exceeds the upper concave envelope, which is level beyond its highest point.
"""

from collections.abc import Iterator, Sized
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, final

import numpy as np
from jaxtyping import Bool, Float
from numpy.typing import NDArray

from prefill_router.data import RoutingDataset, well_measured
from prefill_router.evaluation.bootstrap import (
    SAME,
    PerPoint,
    PerResample,
    divide,
    known_mean,
    ones,
    plain,
)
from prefill_router.evaluation.chance_labels import ChanceLabels, Choice, weighted_means
from prefill_router.evaluation.curve import Points
from prefill_router.evaluation.quality_checks import PerCell
from prefill_router.short_repr import short_repr

Axis = Literal["inverse", "linear"]
Mask = Bool[NDArray[np.bool_], "resample point"]


@short_repr
@final
@dataclass(frozen=True, eq=False)
class Anchors:
    """The costs and accuracies at 0 and 1 of the normalised plane, per resample; NaN where unknown.

    Attributes:
        cost_low: Lowest mean observed cost of a single target, US dollars.
        cost_high: Highest mean observed cost of a single target, US dollars.
        floor: Lowest accuracy of a single target.
        ceiling: Accuracy of the oracle.
    """

    cost_low: PerResample
    cost_high: PerResample
    floor: PerResample
    ceiling: PerResample

    @classmethod
    def of(
        cls,
        cost: Float[NDArray[np.float64], "resample target"],
        accuracy: Float[NDArray[np.float64], "resample target"],
        oracle: PerResample,
    ) -> "Anchors":
        """The anchors given by the single targets and the oracle."""
        return cls(
            np.fmin.reduce(cost, axis=1),
            np.fmax.reduce(cost, axis=1),
            np.fmin.reduce(accuracy, axis=1),
            oracle,
        )

    def cheapness(self, cost: PerPoint, *, axis: Axis) -> PerPoint:
        """Normalised inverse or linear cost: 0 at `cost_high`, 1 at `cost_low`; may be NaN."""
        low, high = self.cost_low[:, None], self.cost_high[:, None]
        spread = np.where(high - low > SAME * high, high - low, 0)
        linear = divide(high - cost, spread)
        return linear if axis == "linear" else divide(linear * low, np.where(low > 0, cost, 0))

    def height(self, accuracy: PerPoint) -> PerPoint:
        """Normalised accuracy: 0 at the floor, 1 at the ceiling; NaN where they coincide."""
        floor = self.floor[:, None]
        room = self.ceiling[:, None] - floor
        return divide(accuracy - floor, np.where(room > SAME, room, 0))

    def place(self, cost: PerPoint, accuracy: PerPoint, *, axis: Axis) -> tuple[PerPoint, PerPoint]:
        """The normalised cost x and the normalised accuracy y."""
        return self.cheapness(cost, axis=axis), self.height(accuracy)


def padded_area(x: PerPoint, y: PerPoint) -> PerResample:
    """P-AUCCC: the area under points ordered by x, level from x = 0 to the leftmost point.

    Points that aren't finite are left out. Of points with the same x, the later one (along a lambda
    path, the one of higher lam) is taken to be further left. NaN where there is no point.
    """
    is_known = np.isfinite(x) & np.isfinite(y)
    keys = np.where(is_known, np.round(x, 12), np.inf)[:, ::-1]
    order = np.argsort(keys, axis=1, kind="stable")
    is_known = np.take_along_axis(is_known[:, ::-1], order, axis=1)
    x = np.where(is_known, np.take_along_axis(x[:, ::-1], order, axis=1), 0)
    y = np.where(is_known, np.take_along_axis(y[:, ::-1], order, axis=1), 0)
    slices = np.diff(x, axis=1) * (y[:, 1:] + y[:, :-1]) / 2
    area: PerResample = np.where(is_known[:, 1:], slices, 0).sum(axis=1)
    padding = np.maximum(x[:, 0], 0) * y[:, 0]
    return np.where(is_known[:, 0], area + padding, np.nan)


def oracle_distance(x: PerPoint, y: PerPoint, *, counted: Mask) -> PerResample:
    """Mean Euclidean distance of the counted, finite points to the oracle's corner (1, 1)."""
    counted = counted & np.isfinite(x) & np.isfinite(y)
    away = np.hypot(1 - x, 1 - y)
    return divide(np.where(counted, away, 0).sum(axis=1), counted.sum(axis=1).astype(np.float64))


def frontier(
    cost: Float[NDArray[np.float64], "resample target"],
    accuracy: Float[NDArray[np.float64], "resample target"],
) -> Bool[NDArray[np.bool_], "resample target"]:
    """Which single targets are on the Pareto frontier: no other is as cheap and as accurate.

    Of targets with equal cost and accuracy only the first is on it. Targets of unknown cost or
    accuracy aren't.
    """
    is_known = np.isfinite(cost) & np.isfinite(accuracy)
    mine, theirs = (slice(None), slice(None), None), (slice(None), None, slice(None))
    as_good = (cost[theirs] <= cost[mine]) & (accuracy[theirs] >= accuracy[mine])
    same = (cost[theirs] == cost[mine]) & (accuracy[theirs] == accuracy[mine])
    places = np.arange(cost.shape[1])
    earlier = places[None, :] < places[:, None]
    beaten = (as_good & (~same | earlier) & is_known[theirs]).any(axis=2)
    result: NDArray[np.bool_] = is_known & ~beaten
    return result


Candidates = Float[NDArray[np.float64], "resample candidate"]
HullCorners = Float[NDArray[np.float64], "resample corner"]


def envelope(cost: PerPoint, accuracy: PerPoint) -> tuple[HullCorners, HullCorners]:
    """The corners of the non-decreasing concave envelope, by rising cost.

    Points that aren't finite are left out. Rows with fewer corners than others repeat their last
    one; a row without any point is NaN.

    Args:
        cost: Cost of each point, in any order; fastest where it nearly rises.
        accuracy: Accuracy of each point.
    """
    x, y = _compact(cost, accuracy, _find_candidates(cost, accuracy))
    rows = np.arange(len(x))
    # The cheapest point; of equally cheap ones, the most accurate.
    cheapest = x == x.min(axis=1, initial=np.inf, keepdims=True)
    at = np.where(cheapest, y, -np.inf).argmax(axis=1)
    xs, ys = [x[rows, at]], [y[rows, at]]
    while True:
        with np.errstate(invalid="ignore"):  # Rows without points are at infinity throughout.
            run, rise = x - xs[-1][:, None], y - ys[-1][:, None]
        ahead = (run > 0) & (rise > 0)
        if not ahead.any():
            break
        slope = np.full(x.shape, -1.0)
        # Costs that differ by rounding alone give a slope that overflows; infinity will do.
        with np.errstate(over="ignore"):
            np.divide(rise, run, out=slope, where=ahead)
        at = np.where(ahead.any(axis=1), slope.argmax(axis=1), at)
        xs.append(x[rows, at])
        ys.append(y[rows, at])
    corners = np.stack(xs, axis=1), np.stack(ys, axis=1)
    is_known = np.isfinite(corners[0]) & np.isfinite(corners[1])
    return np.where(is_known, corners[0], np.nan), np.where(is_known, corners[1], np.nan)


def envelope_targets(
    cost: Float[NDArray[np.float64], " target"], accuracy: Float[NDArray[np.float64], " target"]
) -> list[int]:
    """Indices of the targets at the envelope's corners, by rising cost; the first of equals."""
    places = list(zip(cost.tolist(), accuracy.tolist(), strict=True))
    corners = zip(*(ends[0].tolist() for ends in envelope(cost[None], accuracy[None])), strict=True)
    return [places.index(corner) for corner in dict.fromkeys(corners) if corner in places]


def area(x: PerPoint, y: PerPoint, low: PerResample, high: PerResample) -> PerResample:
    """The area under linearly interpolated points from `low` to `high`, within the points' range.

    Args:
        x: Positions of the points, rising.
        y: Heights of the points; NaN from the last known point on.
        low: Lower end of the interval.
        high: Upper end of the interval.
    """
    begin = np.clip(x[:, :-1], low[:, None], high[:, None])
    end = np.clip(x[:, 1:], low[:, None], high[:, None])
    run = np.diff(x, axis=1)
    slope = np.zeros(run.shape)
    np.divide(np.diff(y, axis=1), run, out=slope, where=run > 0)
    height = y[:, :-1] + slope * ((begin + end) / 2 - x[:, :-1])
    slices = (end - begin) * height
    result: PerResample = np.where(np.isfinite(slices), slices, 0).sum(axis=1)
    return result


def _find_candidates(
    cost: PerPoint, accuracy: PerPoint
) -> Bool[NDArray[np.bool_], "resample point"]:
    """Points that may be corners: more accurate or cheaper than the most accurate earlier point."""
    height = np.where(np.isfinite(cost) & np.isfinite(accuracy), accuracy, -np.inf)
    best = np.maximum.accumulate(height, axis=1)
    record = np.ones(height.shape, dtype=np.bool_)
    record[:, 1:] = height[:, 1:] > best[:, :-1]
    holder = np.maximum.accumulate(np.where(record, np.arange(height.shape[1]), 0), axis=1)
    cheaper = cost < np.take_along_axis(cost, holder, axis=1)
    is_candidate: NDArray[np.bool_] = (record | cheaper) & (height > -np.inf)
    return is_candidate


def _compact(
    cost: PerPoint, accuracy: PerPoint, is_candidate: Bool[NDArray[np.bool_], "resample point"]
) -> tuple[Candidates, Candidates]:
    """The candidates of each row, padded with points of infinite cost and lowest accuracy."""
    rows, columns = np.nonzero(is_candidate)
    counts = is_candidate.sum(axis=1)
    place = np.arange(len(rows)) - np.repeat(np.cumsum(counts) - counts, counts)
    width = max(1, int(counts.max(initial=0)))
    x, y = np.full((len(cost), width), np.inf), np.full((len(cost), width), -np.inf)
    x[rows, place], y[rows, place] = cost[rows, columns], accuracy[rows, columns]
    return x, y


@final
@dataclass(frozen=True)
class MixPoint:
    """A corner of the best mixes: one target alone. Between two corners lie mixes of both.

    Attributes:
        target: The target's name.
        mean_cost: Mean observed cost, US dollars per query.
        accuracy: Mean label.
    """

    target: str
    mean_cost: float
    accuracy: float

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return {
            "target": self.target,
            "mean_cost": plain(self.mean_cost),
            "accuracy": plain(self.accuracy),
        }


def mix_of(singles: Points, targets: tuple[str, ...]) -> tuple[MixPoint, ...]:
    """The corners of the best mixes of these single targets, by rising cost.

    Args:
        singles: The single targets, in one resample.
        targets: Their names.

    Returns:
        The corners, empty where no cost is known; of targets equal in both the first.
    """
    cost, accuracy = singles.cost[0], singles.accuracy[0]
    return tuple(
        MixPoint(targets[k], float(cost[k]), float(accuracy[k]))
        for k in envelope_targets(cost, accuracy)
    )


LEAST = 20
"""A domain with fewer train queries has no accuracies of its own."""


@short_repr
@final
@dataclass(frozen=True, eq=False)
class FixedChoice:
    """The best mixes of targets that know nothing about a query.

    Attributes:
        corners: The targets that the mixes are made of, columns of the dataset, by rising cost on
            the train part. Between two lie mixes of both.
        costs: Their mean costs on the train part, US dollars; NaN where unknown.
    """

    corners: tuple[int, ...]
    costs: tuple[float, ...]

    @classmethod
    def mix(cls, train: RoutingDataset) -> "FixedChoice":
        """The best fixed mixes; where no cost is known, the most accurate target alone."""
        cost, accuracy = TrainLabels.of(train).singles(slice(None))
        corners = _choose_corners(cost, accuracy)
        return cls(tuple(corners), tuple(cost[corners].tolist()))

    def choose(self, trial: Sized) -> Iterator[Choice]:
        """The target of each query, at one corner after another."""
        for target in self.corners:
            yield np.full(len(trial), target, dtype=np.int64)

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        costs = [None if np.isnan(cost) else cost for cost in self.costs]
        return {"corners": list(self.corners), "costs": costs}

    @classmethod
    def from_dict(cls, value: Any) -> "FixedChoice":
        """The choice of `to_dict`; KeyError, TypeError or ValueError where it isn't one."""
        costs = tuple(np.nan if cost is None else float(cost) for cost in value["costs"])
        return cls(tuple(map(int, value["corners"])), costs)


_PerTarget = NDArray[np.float64]


@final
@dataclass(frozen=True, eq=False)
class TrainLabels:
    """The labels of the train part, corrected for their errors."""

    correct: PerCell
    cost: PerCell
    weight: PerCell | None

    @classmethod
    def of(cls, train: RoutingDataset) -> "TrainLabels":
        """The corrected labels of a dataset."""
        chance = ChanceLabels.of(train, np.zeros(train.correct.shape))
        if chance is None:
            return cls(train.correct, train.observed_cost, None)
        weight = chance.weight if chance.selected else None
        return cls(chance.corrected, train.observed_cost, weight)

    def singles(self, rows: NDArray[np.bool_] | slice) -> tuple[_PerTarget, _PerTarget]:
        """Mean cost and accuracy of every target; by propensity where chance selected labels."""
        if self.weight is not None:
            return weighted_means(self.weight[rows], self.correct[rows], self.cost[rows])
        return _average_singles(self.correct[rows], self.cost[rows])


def _choose_corners(cost: _PerTarget, accuracy: _PerTarget) -> list[int]:
    """The targets that the best fixed mixes are made of, by rising cost."""
    corners = envelope_targets(cost, accuracy)
    if not corners:
        return [int(np.nan_to_num(accuracy, nan=-1).argmax())]
    # A target on the line between its neighbours is no better than their mix.
    bends = zip(corners, corners[1:], corners[2:], strict=False)
    slope = partial(_find_slope, cost, accuracy)
    inner = [k for before, k, after in bends if slope(before, k) > slope(before, after)]
    return [corners[0], *inner, *corners[1:][-1:]]


def _average_singles(correct: PerCell, observed_cost: PerCell) -> tuple[_PerTarget, _PerTarget]:
    """Mean cost and accuracy of every target, on the queries that all of them have answered.

    Targets measured on very few queries are left out (NaN). Where too few queries have all the
    others' answers, each target's means are over its own measured queries.
    """
    weights, is_known = ones(len(correct)), ~np.isnan(correct)
    is_judged = well_measured(correct)
    is_complete = is_known[:, is_judged].all(axis=1)
    same = weights * is_complete if is_complete.sum() >= LEAST else weights
    tables = (np.where(is_judged, table, np.nan) for table in (observed_cost, correct))
    cost, accuracy = (known_mean(same, table)[0] for table in tables)
    return cost, accuracy


def _find_slope(cost: _PerTarget, accuracy: _PerTarget, first: int, second: int) -> float:
    run = float(cost[second] - cost[first])
    return float(accuracy[second] - accuracy[first]) / run if run > 0 else np.inf
