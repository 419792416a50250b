"""The best at each cost that settings, and mixes of them, reach: a concave envelope.

Between two settings lies every mix of them: send a fixed share of the queries to one, the others to
the other. So the upper concave envelope is what no mix exceeds, and it is level beyond its highest
point.
"""

import numpy as np
from jaxtyping import Bool, Float
from numpy.typing import NDArray

from prefill_router.evaluation.weighted import PerResample

PerPoint = Float[NDArray[np.float64], "resample point"]
Kept = Float[NDArray[np.float64], "resample kept"]
Corners = Float[NDArray[np.float64], "resample corner"]


def envelope(cost: PerPoint, accuracy: PerPoint) -> tuple[Corners, Corners]:
    """The corners of the non-decreasing concave envelope, by rising cost.

    Points that aren't finite are left out. Rows with fewer corners than others repeat their last
    one; a row without any point is NaN.

    Args:
        cost: Of each point; any order, best nearly rising.
        accuracy: Of each point.
    """
    x, y = _compact(cost, accuracy, _undominated(cost, accuracy))
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
        # Costs that differ by a rounding make a slope beyond any number, which is as good as up.
        with np.errstate(over="ignore"):
            np.divide(rise, run, out=slope, where=ahead)
        at = np.where(ahead.any(axis=1), slope.argmax(axis=1), at)
        xs.append(x[rows, at])
        ys.append(y[rows, at])
    corners = np.stack(xs, axis=1), np.stack(ys, axis=1)
    known = np.isfinite(corners[0]) & np.isfinite(corners[1])
    return np.where(known, corners[0], np.nan), np.where(known, corners[1], np.nan)


def area(x: PerPoint, y: PerPoint, low: PerResample, high: PerResample) -> PerResample:
    """The area under linearly joined points from `low` to `high`, where they reach.

    Args:
        x: Rising.
        y: The heights; NaN from the last known point on.
        low: Where the area begins.
        high: Where it ends.
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


def _undominated(cost: PerPoint, accuracy: PerPoint) -> Bool[NDArray[np.bool_], "resample point"]:
    """Points that may be corners: no earlier one that was the most accurate so far is as cheap."""
    height = np.where(np.isfinite(cost) & np.isfinite(accuracy), accuracy, -np.inf)
    best = np.maximum.accumulate(height, axis=1)
    record = np.ones(height.shape, dtype=np.bool_)
    record[:, 1:] = height[:, 1:] > best[:, :-1]
    holder = np.maximum.accumulate(np.where(record, np.arange(height.shape[1]), 0), axis=1)
    cheaper = cost < np.take_along_axis(cost, holder, axis=1)
    kept: NDArray[np.bool_] = (record | cheaper) & (height > -np.inf)
    return kept


def _compact(
    cost: PerPoint, accuracy: PerPoint, kept: Bool[NDArray[np.bool_], "resample point"]
) -> tuple[Kept, Kept]:
    """The kept points of each row, filled up with points at infinity that are worth nothing."""
    rows, columns = np.nonzero(kept)
    counts = kept.sum(axis=1)
    place = np.arange(len(rows)) - np.repeat(np.cumsum(counts) - counts, counts)
    width = max(1, int(counts.max(initial=0)))
    x, y = np.full((len(cost), width), np.inf), np.full((len(cost), width), -np.inf)
    x[rows, place], y[rows, place] = cost[rows, columns], accuracy[rows, columns]
    return x, y
