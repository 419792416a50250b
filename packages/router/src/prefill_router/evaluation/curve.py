"""The accuracy-cost curve of a router, from the exact lambda path, or of two targets alone.

As lam rises, the chosen target of a query changes at finitely many values. All changes that alter a
label or a cost are sorted once by lam. Nothing happens between two of them, so the curve is a
finite list of operating points, each with its interval of lam. Running sums of the changes give
every point's accuracy and mean observed cost.

Of a strong and a weak target, the curve is the accuracy over the share of queries that are sent to
the strong one. RouteLLM (Ong et al., 2024) sums it up in two numbers. APGR is the part of the
accuracy gap between the two that is closed, on average over that share. CPT(x) is the share that
closes the part x.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import final

import numpy as np
from jaxtyping import Bool, Float, Int
from numpy.typing import NDArray

from prefill_router.errors import ConfigError
from prefill_router.evaluation.bootstrap import (
    SAME,
    PerPoint,
    PerResample,
    Weights,
    divide,
    mean_over,
)
from prefill_router.evaluation.judged_predictions import PerQuery, Trial
from prefill_router.policy import Threshold
from prefill_router.short_repr import short_repr

STEPS = (1e-2, 1e-3, 1e-4, 1e-5)
"""The steps of the paper's lambda table."""


def lam_grid(step: float) -> Float[NDArray[np.float64], " lam"]:
    """0, step, 2 step, ..., 1.

    Raises:
        ConfigError: The step isn't 1 / n for a whole number n, or is finer than 1e-7.
    """
    count = round(1 / step) if 1e-7 <= step <= 1 else 0
    if not count or abs(count * step - 1) > 1e-9:
        raise ConfigError(f"the step of lam is {step}; it must divide 1, such as 0.01 or 0.001")
    return np.linspace(0, 1, count + 1)


@short_repr
@final
@dataclass(frozen=True, eq=False)
class Points:
    """The operating points of a curve, by rising lam.

    Attributes:
        accuracy: Mean label over the compared queries (`Trial.compared`).
        cost: Mean observed cost over those where the chosen target's cost is known, US dollars.
        distinct: Whether the label or cost of some query in the resample differs from that at the
            point before; true for the first.
    """

    accuracy: PerPoint
    cost: PerPoint
    distinct: Bool[NDArray[np.bool_], "resample point"]

    def by_cost(self) -> "Points":
        """The same points by rising cost, unknown costs last; the order of equals is kept.

        Costs that differ by the rounding error of running sums count as equal.
        """
        unit = divide(self.cost, np.fmax.reduce(self.cost, axis=1)[:, None])
        order = np.argsort(np.round(unit, 12), axis=1, kind="stable")
        return Points(
            np.take_along_axis(self.accuracy, order, axis=1),
            np.take_along_axis(self.cost, order, axis=1),
            np.take_along_axis(self.distinct, order, axis=1),
        )


@final
@dataclass(frozen=True, eq=False)
class PathSums:
    """Sums over the queries along the path: the values at lam = 0, and what each change adds.

    Attributes:
        lam: Where the interval of each operating point begins; 0 for the first.
        query: The query whose chosen target changes, of each change, by rising lam.
        last: Index of each point's last change, for all points but the first.
        start: The values of each query at lam = 0.
        change: What each change adds to each value.
    """

    lam: Float[NDArray[np.float64], " point"]
    query: Int[NDArray[np.int64], " change"]
    last: Int[NDArray[np.int64], " later"]
    start: Float[NDArray[np.float64], "query value"]
    change: Float[NDArray[np.float64], "value change"]

    @classmethod
    def of(
        cls,
        trial: Trial,
        values: Callable[
            [NDArray[np.int64], NDArray[np.int64]], Float[NDArray[np.float64], "row value"]
        ],
        *,
        counted: Bool[NDArray[np.bool_], " query"] | None = None,
    ) -> "PathSums":
        """Sort the changes of the exact path.

        Args:
            trial: The system whose path is sorted.
            values: Gives the values to sum from query indices and their targets' indices.
            counted: The queries whose changes count, and these only where they alter a value; all
                changes of all queries if not given.
        """
        path = trial.path
        later = np.flatnonzero(path.lam > 0)
        later = later[np.argsort(path.lam[later], kind="stable")]
        query = path.query[later]
        change = values(query, path.target[later]) - values(query, path.target[later - 1])
        if counted is not None:
            is_counted = (change != 0).any(axis=1) & counted[query]
            later, query, change = later[is_counted], query[is_counted], change[is_counted]
        lam, first = np.unique(path.lam[later], return_index=True)
        last = np.append(first[1:], len(later)) - 1 if len(later) else first
        return cls(
            np.concatenate([[0.0], lam]),
            query,
            last.astype(np.int64),
            values(np.arange(len(trial)), path.at(0)),
            np.ascontiguousarray(change.T),
        )

    def totals(self, weights: Weights) -> Iterator[PerPoint]:
        """The sum of each value at every point."""
        begin, weight = weights @ self.start, weights[:, self.query]
        for place, change in enumerate(self.change):
            yield self.running(weight * change, begin[:, place])

    def running(
        self, added: Float[NDArray[np.float64], "resample change"], begin: PerResample
    ) -> PerPoint:
        """The running total at every point: the start plus the changes up to it."""
        total = np.concatenate([begin[:, None], added], axis=1)
        np.cumsum(total, axis=1, out=total)
        return total[:, np.append(0, self.last + 1)]


@short_repr
@final
@dataclass(frozen=True, eq=False)
class LambdaSweep:
    """The changes of the chosen target of all queries, sorted once by lam.

    Point i holds on (lam[i], lam[i + 1]], the first from 0 on, the last up to 1.

    Attributes:
        sums: Sums of four values: label, whether measured, observed cost, whether known (missing as
            0). A change to a target with equal label and cost makes no new operating point.
        compared: 1 for each compared query, 0 for the others.
    """

    sums: PathSums
    compared: Float[NDArray[np.float64], " query"]

    @classmethod
    def of(cls, trial: Trial) -> "LambdaSweep":
        """Sort the changes of the exact path on the compared queries."""
        sums = PathSums.of(trial, partial(_list_label_and_cost, trial), counted=trial.compared)
        return cls(sums, trial.compared.astype(np.float64))

    @property
    def lam(self) -> Float[NDArray[np.float64], " point"]:
        """Where the interval of each operating point begins."""
        return self.sums.lam

    def __len__(self) -> int:
        return len(self.lam)

    def place(self, lam: Float[NDArray[np.float64], " lam"]) -> Int[NDArray[np.int64], " lam"]:
        """The index of the operating point that holds at each lam."""
        point = np.maximum(np.searchsorted(self.lam, lam, side="left") - 1, 0)
        return np.where(lam == 1, len(self) - 1, point)

    def retained(self, step: float | None) -> Int[NDArray[np.int64], " point"]:
        """Indices of the distinct operating points on a grid of lam; all points without a step."""
        return np.arange(len(self)) if step is None else np.unique(self.place(lam_grid(step)))

    def points(
        self, weights: Weights, *, at: Int[NDArray[np.int64], " point"] | None = None
    ) -> Points:
        """The operating points in each resample.

        Args:
            weights: How often each query counts.
            at: Indices of the points to return, ascending; all points if not given.
        """
        at = np.arange(len(self)) if at is None else at
        weights = weights * self.compared
        label, measured, cost, known_costs = (total[:, at] for total in self.sums.totals(weights))
        nothing = np.zeros(len(weights))
        changes = self.sums.running(weights[:, self.sums.query], nothing)[:, at]
        distinct = np.diff(changes, axis=1, prepend=-1.0) > 0
        return Points(divide(label, measured), divide(cost, known_costs), distinct)


def _list_label_and_cost(
    trial: Trial, query: NDArray[np.int64], target: NDArray[np.int64]
) -> Float[NDArray[np.float64], "row 4"]:
    label: PerQuery = trial.correct[query, target]
    cost: PerQuery = trial.paid[query, target]
    is_known = [~np.isnan(label), ~np.isnan(cost)]
    columns = [np.nan_to_num(label), is_known[0], np.nan_to_num(cost), is_known[1]]
    return np.stack(columns, axis=1).astype(np.float64)


PLACES = 101
"""How many costs a curve is read at: few enough to compare every pair."""


@final
@dataclass(frozen=True, eq=False)
class CurveReading:
    """A system's operating points, in the forms that the metrics need.

    Attributes:
        points: The points by rising lam.
        rising: The points by rising cost, unknown costs last.
        cost: Costs evenly spaced from the cheapest setting to the most expensive, US dollars.
        accuracy: Linearly interpolated accuracy at these costs.
    """

    points: Points
    rising: Points
    cost: Float[NDArray[np.float64], "resample place"]
    accuracy: Float[NDArray[np.float64], "resample place"]

    @classmethod
    def of(cls, points: Points) -> "CurveReading":
        """Sort the points and interpolate between them."""
        rising = points.by_cost()
        is_known = np.isfinite(rising.cost) & np.isfinite(rising.accuracy)
        low = np.fmin.reduce(np.where(is_known, rising.cost, np.nan), axis=1)
        high = np.fmax.reduce(np.where(is_known, rising.cost, np.nan), axis=1)
        cost = low[:, None] + (high - low)[:, None] * np.linspace(0, 1, PLACES)
        accuracy = np.full(cost.shape, np.nan)
        for row in np.flatnonzero(is_known.any(axis=1)):
            here = is_known[row]
            accuracy[row] = np.interp(cost[row], rising.cost[row, here], rising.accuracy[row, here])
        # Where several settings share the lowest or the highest cost, the most accurate counts.
        room = SAME * high
        for place, end in ((0, low + room), (-1, high - room)):
            at_end = rising.cost <= end[:, None] if place == 0 else rising.cost >= end[:, None]
            accuracy[:, place] = np.fmax.reduce(np.where(at_end, rising.accuracy, np.nan), axis=1)
        return cls(points, rising, cost, accuracy)


@final
@dataclass(frozen=True, eq=False)
class ComparedSystems:
    """What a system is compared with, in each resample.

    Attributes:
        max_cost: The largest cost of any setting of any system, US dollars; NaN where unknown.
        cost: Costs of every single target and of every system's interpolated curve, US dollars.
        accuracy: The accuracies at these costs.
    """

    max_cost: PerResample
    cost: PerPoint
    accuracy: PerPoint

    @classmethod
    def of(
        cls, singles: Points, systems: Sequence[CurveReading], *, max_cost: float | None = None
    ) -> "ComparedSystems":
        """Collect the points of all compared systems.

        Args:
            singles: The single targets.
            systems: Every system.
            max_cost: Replaces the largest cost, if given; US dollars per query.
        """
        largest = np.stack([np.fmax.reduce(system.points.cost, axis=1) for system in systems])
        top = np.fmax.reduce(largest) if max_cost is None else np.full(len(singles.cost), max_cost)
        return cls(
            top,
            np.concatenate([singles.cost, *(system.cost for system in systems)], axis=1),
            np.concatenate([singles.accuracy, *(system.accuracy for system in systems)], axis=1),
        )


CPT = {"cpt_20": 0.2, "cpt_50": 0.5, "cpt_80": 0.8}


@final
@dataclass(frozen=True, eq=False)
class StrongWeak:
    """The changes between two targets along the path, sorted once.

    Attributes:
        strong: The labels of the strong target, NaN where missing.
        weak: The labels of the weak target, NaN where missing.
        judged: 1 where either label is known; shares are of these queries.
        sums: Sums along the path of: strong chosen, label, measured (missing as 0).
    """

    strong: Float[NDArray[np.float64], " query"]
    weak: Float[NDArray[np.float64], " query"]
    judged: Float[NDArray[np.float64], " query"]
    sums: PathSums

    @classmethod
    def of(cls, trial: Trial) -> "StrongWeak | None":
        """The two targets of the policy, or of the pool; None where there aren't two."""
        pair = _find_pair(trial)
        if pair is None:
            return None
        strong, weak = pair
        unknown = np.isnan(trial.correct)
        judged = ~(unknown[:, strong] & unknown[:, weak])
        return cls(
            trial.correct[:, strong],
            trial.correct[:, weak],
            judged.astype(np.float64),
            PathSums.of(trial, partial(_list_strong_and_label, trial, judged, strong)),
        )

    def scores(self, weights: Weights) -> dict[str, PerResample]:
        """APGR and CPT; NaN where the strong target isn't the better one."""
        weak, strong = mean_over(weights, self.weak), mean_over(weights, self.strong)
        gap = np.where(strong - weak > SAME, strong - weak, 0)
        share, accuracy = self._trace_curve(weights, weak, strong)
        closed = divide(accuracy - weak[:, None], gap[:, None])
        slices = np.diff(share, axis=1) * (closed[:, 1:] + closed[:, :-1]) / 2
        reached = {name: _find_crossing(share, closed, part) for name, part in CPT.items()}
        return {"apgr": slices.sum(axis=1), **reached}

    def _trace_curve(
        self, weights: Weights, weak: PerResample, strong: PerResample
    ) -> tuple[Float[NDArray[np.float64], "resample point"], ...]:
        """Share of strong calls, rising, and accuracy, from the weak target to the strong one."""
        total, label, measured = self.sums.totals(weights)
        share = divide(total, (weights @ self.judged)[:, None])
        accuracy = divide(label, measured)
        # Points without any measured query are moved onto the weak target's.
        unknown = np.isnan(accuracy) | np.isnan(share)
        share = np.where(unknown, 0, np.round(share, 12))
        accuracy = np.where(unknown, weak[:, None], accuracy)
        order = np.argsort(share, axis=1, kind="stable")
        ends = np.zeros((len(weights), 1)), np.ones((len(weights), 1))
        share = np.take_along_axis(share, order, axis=1)
        accuracy = np.take_along_axis(accuracy, order, axis=1)
        return (
            np.concatenate([ends[0], share, ends[1]], axis=1),
            np.concatenate([weak[:, None], accuracy, strong[:, None]], axis=1),
        )


def _find_pair(trial: Trial) -> tuple[int, int] | None:
    """The columns of the strong and the weak target."""
    policy = trial.policy
    if isinstance(policy, Threshold):
        return trial.targets.index(policy.strong), trial.targets.index(policy.weak)
    if len(trial.targets) != 2:
        return None
    complete = trial.correct[trial.compared & ~np.isnan(trial.correct).any(axis=1)]
    if not len(complete):
        return None
    return (0, 1) if complete[:, 0].mean() > complete[:, 1].mean() else (1, 0)


def _list_strong_and_label(
    trial: Trial,
    judged: Bool[NDArray[np.bool_], " query"],
    strong: int,
    query: NDArray[np.int64],
    target: NDArray[np.int64],
) -> Float[NDArray[np.float64], "row 3"]:
    label = trial.correct[query, target]
    columns = [(target == strong) & judged[query], np.nan_to_num(label), ~np.isnan(label)]
    return np.stack(columns, axis=1).astype(np.float64)


def _find_crossing(
    share: Float[NDArray[np.float64], "resample point"],
    closed: Float[NDArray[np.float64], "resample point"],
    part: float,
) -> PerResample:
    """The lowest share at which the part is closed, by linear interpolation."""
    rows = np.arange(len(share))
    # The first point closes nothing and the last everything, so there is a crossing.
    after = np.maximum((closed >= part).argmax(axis=1), 1)
    x0, x1 = share[rows, after - 1], share[rows, after]
    y0, y1 = closed[rows, after - 1], closed[rows, after]
    return np.where(np.isnan(y1), np.nan, x0 + divide(part - y0, y1 - y0) * (x1 - x0))
