"""The curve's bootstrap bands: where the curves of the resamples run, each from end to end.

Percentiles at each place by itself hold 95 % of the heights there, but many more than 5 % of the
curves leave such a band somewhere. Here the curves that go furthest out anywhere, by their rank
among the heights at that place, are left out, and the band is the envelope of the others: a global
rank envelope, Myllymaki, Mrkvicka, Grabarnik, Seijo and Hahn (2017).
"""

from dataclasses import dataclass
from typing import final

import numpy as np
from jaxtyping import Bool, Float
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
    """What 95 % of the resamples' curves stay within from end to end.

    Attributes:
        x: The places, rising.
        lower: The least height of these curves; NaN where too few curves reach.
        upper: The greatest.
    """

    x: PerPlace
    lower: PerPlace
    upper: PerPlace

    @classmethod
    def of(cls, x: PerPlace, heights: Float[NDArray[np.float64], "resample place"]) -> "Band":
        """The band of these curves, each given by its height at the places or NaN."""
        seen = ~np.isnan(heights)
        drawn = seen.any(axis=0) & (seen.sum(axis=0) >= _SEEN * len(heights))
        lower, upper = np.full((2, len(x)), np.nan)
        if drawn.any():
            kept = heights[_inside(heights[:, drawn])][:, drawn]
            lower[drawn], upper[drawn] = np.nanmin(kept, axis=0), np.nanmax(kept, axis=0)
        return cls(x, lower, upper)


def _inside(
    heights: Float[NDArray[np.float64], "resample place"],
) -> Bool[NDArray[np.bool_], " resample"]:
    """All but the 5 % of the curves that go furthest out; of equal ones, those that do so often."""
    from scipy.stats import rankdata

    seen = ~np.isnan(heights)
    low = rankdata(np.where(seen, heights, np.inf), axis=0, method="max")
    high = rankdata(np.where(seen, -heights, np.inf), axis=0, method="max")
    depths = np.sort(np.where(seen, np.minimum(low, high), np.inf), axis=1)
    kept = np.ones(len(heights), dtype=np.bool_)
    kept[np.lexsort(depths.T[::-1])[: int((1 - LEVEL) * len(heights))]] = False
    return kept


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
