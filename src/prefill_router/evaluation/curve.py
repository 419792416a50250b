"""The accuracy-cost curve of a router, from the exact lambda path.

All queries' changes of winner that change a label or a cost are sorted once by lam. Between two of
them nothing changes, so the curve is a finite list of operating points, each with the interval of
lam on which it holds; running sums of what each change adds give every point's accuracy and mean
observed cost.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import final

import numpy as np
from jaxtyping import Bool, Float, Int
from numpy.typing import NDArray

from prefill_router.errors import ConfigError
from prefill_router.evaluation.bootstrap import SAME, PerResample, Weights, divide
from prefill_router.evaluation.judged_predictions import PerQuery, Trial
from prefill_router.short_repr import short_repr

PerPoint = Float[NDArray[np.float64], "resample point"]
STEPS = (1e-2, 1e-3, 1e-4, 1e-5)
"""The steps of the paper's lambda table."""


def lam_grid(step: float) -> Float[NDArray[np.float64], " lam"]:
    """0, step, 2 step, ..., 1.

    Raises:
        ConfigError: The step isn't one over a whole number, or is finer than 1e-7.
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
        accuracy: Mean label over the queries that are compared (`Trial.compared`).
        cost: Mean observed cost over those of them where the chosen target's is known, US dollars.
        distinct: Whether some query that counts in the resample has another label or cost than at
            the point before; true for the first.
    """

    accuracy: PerPoint
    cost: PerPoint
    distinct: Bool[NDArray[np.bool_], "resample point"]

    def by_cost(self) -> "Points":
        """The same by rising cost, those of unknown cost last; equally dear ones stay as they were.

        Costs that differ by what running sums round to are the same.
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
    """Sums over the queries along the path: what each begins with, and what each change adds.

    Attributes:
        lam: Where each operating point begins; the first at 0.
        query: The query of each change of winner, by rising lam.
        last: The place of each point's last change, for all points but the first.
        start: What each query has at lam = 0.
        change: What each change adds to it.
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
        felt: Bool[NDArray[np.bool_], " query"] | None = None,
    ) -> "PathSums":
        """Sort the changes of the exact path.

        Args:
            trial: Its path is followed.
            values: What is summed, of each of some queries and its target.
            felt: Changes count of these queries alone, and only where they alter a value; all
                changes if not given.
        """
        path = trial.path
        later = np.flatnonzero(path.lam > 0)
        later = later[np.argsort(path.lam[later], kind="stable")]
        query = path.query[later]
        change = values(query, path.target[later]) - values(query, path.target[later - 1])
        if felt is not None:
            kept = (change != 0).any(axis=1) & felt[query]
            later, query, change = later[kept], query[kept], change[kept]
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
        """At every point what there was and what the changes up to it have added."""
        total = np.concatenate([begin[:, None], added], axis=1)
        np.cumsum(total, axis=1, out=total)
        return total[:, np.append(0, self.last + 1)]


@short_repr
@final
@dataclass(frozen=True, eq=False)
class LambdaSweep:
    """The changes of winner of all queries, sorted once.

    Point i holds on (lam[i], lam[i + 1]], the first from 0 on, the last up to 1.

    Attributes:
        sums: Of label, measured, observed cost, known (missing as 0). A change to a target that did
            as well at the same cost makes no other operating point.
        compared: 1 for each query that is compared, 0 for the others.
    """

    sums: PathSums
    compared: Float[NDArray[np.float64], " query"]

    @classmethod
    def of(cls, trial: Trial) -> "LambdaSweep":
        """Sort the changes of the exact path, on the queries that are compared."""
        sums = PathSums.of(trial, partial(_four, trial), felt=trial.compared)
        return cls(sums, trial.compared.astype(np.float64))

    @property
    def lam(self) -> Float[NDArray[np.float64], " point"]:
        """Where each operating point begins."""
        return self.sums.lam

    def __len__(self) -> int:
        return len(self.lam)

    def place(self, lam: Float[NDArray[np.float64], " lam"]) -> Int[NDArray[np.int64], " lam"]:
        """The operating point that holds at each of these lam."""
        point = np.maximum(np.searchsorted(self.lam, lam, side="left") - 1, 0)
        return np.where(lam == 1, len(self) - 1, point)

    def retained(self, step: float | None) -> Int[NDArray[np.int64], " point"]:
        """The distinct operating points that a grid of lam meets; all of them without a step."""
        return np.arange(len(self)) if step is None else np.unique(self.place(lam_grid(step)))

    def points(
        self, weights: Weights, *, at: Int[NDArray[np.int64], " point"] | None = None
    ) -> Points:
        """The operating points in each resample.

        Args:
            weights: How often each query counts.
            at: Only these points, ascending; all of them if not given.
        """
        at = np.arange(len(self)) if at is None else at
        weights = weights * self.compared
        label, measured, cost, known = (total[:, at] for total in self.sums.totals(weights))
        nothing = np.zeros(len(weights))
        turned = self.sums.running(weights[:, self.sums.query], nothing)[:, at]
        distinct = np.diff(turned, axis=1, prepend=-1.0) > 0
        return Points(divide(label, measured), divide(cost, known), distinct)


def _four(
    trial: Trial, query: NDArray[np.int64], target: NDArray[np.int64]
) -> Float[NDArray[np.float64], "row 4"]:
    label: PerQuery = trial.correct[query, target]
    cost: PerQuery = trial.paid[query, target]
    known = [~np.isnan(label), ~np.isnan(cost)]
    columns = [np.nan_to_num(label), known[0], np.nan_to_num(cost), known[1]]
    return np.stack(columns, axis=1).astype(np.float64)


PLACES = 101
"""How many costs a curve is read at: few enough to hold each against each."""


@final
@dataclass(frozen=True, eq=False)
class CurveReading:
    """A system's operating points, in the forms that the metrics need.

    Attributes:
        points: By rising setting.
        rising: By rising cost, those of unknown cost last.
        cost: Costs evenly spread from the cheapest setting to the dearest, US dollars.
        accuracy: There, the points joined by lines.
    """

    points: Points
    rising: Points
    cost: Float[NDArray[np.float64], "resample place"]
    accuracy: Float[NDArray[np.float64], "resample place"]

    @classmethod
    def of(cls, points: Points) -> "CurveReading":
        """Sort and read the points."""
        rising = points.by_cost()
        known = np.isfinite(rising.cost) & np.isfinite(rising.accuracy)
        low = np.fmin.reduce(np.where(known, rising.cost, np.nan), axis=1)
        high = np.fmax.reduce(np.where(known, rising.cost, np.nan), axis=1)
        cost = low[:, None] + (high - low)[:, None] * np.linspace(0, 1, PLACES)
        accuracy = np.full(cost.shape, np.nan)
        for row in np.flatnonzero(known.any(axis=1)):
            here = known[row]
            accuracy[row] = np.interp(cost[row], rising.cost[row, here], rising.accuracy[row, here])
        # Several settings may be the cheapest or the dearest; the most accurate of them counts.
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
        cost: Of every single target, and the costs at which every system is read, US dollars.
        accuracy: Of the same.
    """

    max_cost: PerResample
    cost: PerPoint
    accuracy: PerPoint

    @classmethod
    def of(
        cls, singles: Points, systems: Sequence[CurveReading], *, max_cost: float | None = None
    ) -> "ComparedSystems":
        """What these systems make together.

        Args:
            singles: The single targets.
            systems: Every system.
            max_cost: Taken instead of the largest cost, if given.
        """
        largest = np.stack([np.fmax.reduce(one.points.cost, axis=1) for one in systems])
        top = np.fmax.reduce(largest) if max_cost is None else np.full(len(singles.cost), max_cost)
        return cls(
            top,
            np.concatenate([singles.cost, *(one.cost for one in systems)], axis=1),
            np.concatenate([singles.accuracy, *(one.accuracy for one in systems)], axis=1),
        )
