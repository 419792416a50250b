"""How far a router's settings are from what nothing compared beats: LLMRouterBench's ParetoDist."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

import numpy as np
from jaxtyping import Float
from numpy.typing import NDArray

from prefill_router.evaluation.area import Anchors
from prefill_router.evaluation.curve import Points
from prefill_router.evaluation.weighted import PerResample, divide

PLACES = 101
"""How many costs a curve is read at: few enough to hold each against each."""
_SAME = 1e-12
PerPoint = Float[NDArray[np.float64], "resample point"]


@final
@dataclass(frozen=True, eq=False)
class Reading:
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
    def of(cls, points: Points) -> "Reading":
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
        room = _SAME * high
        for place, end in ((0, low + room), (-1, high - room)):
            at_end = rising.cost <= end[:, None] if place == 0 else rising.cost >= end[:, None]
            accuracy[:, place] = np.fmax.reduce(np.where(at_end, rising.accuracy, np.nan), axis=1)
        return cls(points, rising, cost, accuracy)


@final
@dataclass(frozen=True, eq=False)
class Among:
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
        cls, singles: Points, systems: Sequence[Reading], *, max_cost: float | None = None
    ) -> "Among":
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


def pareto_distance(own: Reading, among: Among, anchors: Anchors) -> PerResample:
    """The mean distance of the curve to the nearest undominated point.

    In the plane of linear cost and normalised accuracy; NaN where that isn't defined.
    """
    front_x, front_y = _front(
        anchors.cheapness(among.cost, axis="linear"), anchors.height(among.accuracy)
    )
    x, y = anchors.cheapness(own.cost, axis="linear"), anchors.height(own.accuracy)
    across = x[:, :, None] - front_x[:, None, :]
    up = y[:, :, None] - front_y[:, None, :]
    nearest = np.sqrt(np.fmin.reduce(across * across + up * up, axis=2))
    known = ~np.isnan(nearest)
    total = np.where(known, nearest, 0).sum(axis=1)
    return divide(total, known.sum(axis=1).astype(np.float64))


def _front(
    x: PerPoint, y: PerPoint
) -> tuple[
    Float[NDArray[np.float64], "resample undominated"],
    Float[NDArray[np.float64], "resample undominated"],
]:
    """The undominated points, filled up with NaN; x is cheapness, so more is better."""
    known = np.isfinite(x) & np.isfinite(y)
    keys = (np.where(known, -y, np.inf), np.where(known, -x, np.inf))
    order = np.lexsort(keys, axis=1)
    x, y = np.take_along_axis(x, order, axis=1), np.take_along_axis(y, order, axis=1)
    height = np.where(np.take_along_axis(known, order, axis=1), y, -np.inf)
    best = np.maximum.accumulate(height, axis=1)
    on = height > -np.inf
    on[:, 1:] &= height[:, 1:] > best[:, :-1]
    width = max(1, int(on.sum(axis=1).max(initial=0)))
    place = np.argsort(~on, axis=1, kind="stable")[:, :width]
    kept = np.take_along_axis(on, place, axis=1)
    xs, ys = (np.where(kept, np.take_along_axis(v, place, axis=1), np.nan) for v in (x, y))
    return xs, ys
