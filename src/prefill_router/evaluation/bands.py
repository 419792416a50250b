"""The curve's bootstrap bands: where the curves of the resamples run."""

from dataclasses import dataclass
from typing import final

import numpy as np
from jaxtyping import Float
from numpy.typing import NDArray

from prefill_router.evaluation.bootstrap import LEVEL

PerPoint = Float[NDArray[np.float64], "resample point"]
PerPlace = Float[NDArray[np.float64], " place"]
_PLACES = 101
_SEEN = 0.9
"""A band is drawn where at least this share of the resamples' curves reach."""


@final
@dataclass(frozen=True, eq=False)
class Band:
    """Percentiles of a curve's height at some places.

    Attributes:
        x: The places, rising.
        lower: The 2.5th percentile of the height; NaN where too few curves reach.
        upper: The 97.5th percentile.
    """

    x: PerPlace
    lower: PerPlace
    upper: PerPlace

    @classmethod
    def of(cls, x: PerPlace, heights: Float[NDArray[np.float64], "resample place"]) -> "Band":
        """The band of these curves, each given by its height at the places or NaN."""
        lower, upper = np.full((2, len(x)), np.nan)
        tail = 50 * (1 - LEVEL)
        for place, column in enumerate(heights.T):
            reached = column[~np.isnan(column)]
            if len(reached) and len(reached) >= _SEEN * len(column):
                lower[place], upper[place] = np.percentile(reached, [tail, 100 - tail])
        return cls(x, lower, upper)


def places(x: Float[NDArray[np.float64], " point"], *, ratios: bool = False) -> PerPlace:
    """Places from the leftmost to the rightmost point; none where no point is known.

    Args:
        x: Where the points of the curve are.
        ratios: Whether neighbours have a constant ratio, if all x are positive, and not a constant
            difference.
    """
    known = x[np.isfinite(x)]
    if not len(known):
        return np.zeros(0)
    spaced = np.geomspace if ratios and known.min() > 0 else np.linspace
    between: PerPlace = spaced(known.min(), known.max(), _PLACES)
    return between


def heights(x: PerPoint, y: PerPoint, at: PerPlace) -> Float[NDArray[np.float64], "resample place"]:
    """The height of each resample's curve at the places; NaN beyond its ends."""
    result = np.full((len(x), len(at)), np.nan)
    for row, (across, up) in enumerate(zip(x, y, strict=True)):
        known = np.isfinite(across) & np.isfinite(up)
        if known.any():
            order = np.argsort(across[known], kind="stable")
            xs, ys = across[known][order], up[known][order]
            result[row] = np.interp(at, xs, ys, left=np.nan, right=np.nan)
    return result
