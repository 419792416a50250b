"""Weighted means over what is known.

Every statistic of an evaluation is a function of *weights*: how often each query counts. All ones
give the statistic itself; the counts of a draw with replacement give one bootstrap resample. So
there is one formula for the number and for its interval, and many resamples are computed at once.
"""

import numpy as np
from jaxtyping import Float
from numpy.typing import NDArray

Weights = Float[NDArray[np.float64], "resample query"]
"""How often each query counts, in each resample."""
PerResample = Float[NDArray[np.float64], " resample"]
"""One number per resample; NaN where it isn't defined."""


def ones(queries: int) -> Weights:
    """The weights of the evaluated queries themselves: one row, each query once."""
    return np.ones((1, queries))


def divide(
    numerator: Float[NDArray[np.float64], "..."], denominator: Float[NDArray[np.float64], "..."]
) -> Float[NDArray[np.float64], "..."]:
    """Quotients; NaN where the denominator is zero or NaN."""
    top, bottom = np.broadcast_arrays(numerator, denominator)
    defined = (bottom != 0) & ~np.isnan(bottom)
    result: NDArray[np.float64] = np.full(top.shape, np.nan)
    np.divide(top, bottom, out=result, where=defined)
    return result


def known_mean(
    weights: Weights, values: Float[NDArray[np.float64], "query column"]
) -> Float[NDArray[np.float64], "resample column"]:
    """The mean of each column over the queries where it is known; NaN where it never is."""
    known = ~np.isnan(values)
    total = weights @ np.where(known, values, 0)
    return divide(total, weights @ known.astype(np.float64))


def mean_over(
    weights: Weights, values: Float[NDArray[np.float64], " query"]
) -> Float[NDArray[np.float64], " resample"]:
    """`known_mean` of one column."""
    return known_mean(weights, values[:, None])[:, 0]
