"""How far rows lie from where most are: distances by a covariance that is shrunk.

The distance is Mahalanobis's, by the covariance of standardised columns, shrunk towards the
identity by as much as Ledoit and Wolf find best (2004, "A well-conditioned estimator for
large-dimensional covariance matrices").
"""

import numpy as np
from jaxtyping import Float64, Int64
from numpy.typing import NDArray

_CONSTANT = 1e-6  # float32 rounds away a spread below this share of the mean
_TINY = 1e-30  # what divides by less can leave the range of float32
_LEAST_VARIANCE = 1e-6
_LEAST_FREEDOM = 1e-3


def widest(
    features: Float64[NDArray[np.float64], "row column"], *, most: int
) -> Int64[NDArray[np.int64], " kept"]:
    """The columns that vary, by falling variance, so many of them at most."""
    spread = features.std(axis=0)
    order = np.argsort(-spread, kind="stable")
    varies = spread > np.maximum(_CONSTANT * np.abs(features.mean(axis=0)), _TINY)
    kept: Int64[NDArray[np.int64], " kept"] = order[varies[order]][:most]
    return kept


def whitened(
    rows: Float64[NDArray[np.float64], "row column"],
) -> tuple[Float64[NDArray[np.float64], "column column"], Float64[NDArray[np.float64], " row"]]:
    """What whitens standardised rows, and each row's distance by the statistics of the others.

    Leaving a row out changes the covariance by one outer product, so the formula of Sherman and
    Morrison gives the distance without fitting again; shrinkage and spreads are left as they are.
    """
    import scipy.linalg

    count, width = rows.shape
    covariance = rows.T @ rows / count
    shrinkage = _shrinkage(rows, covariance)
    covariance *= 1 - shrinkage
    covariance += shrinkage * np.eye(width)
    variances, directions = scipy.linalg.eigh(covariance, overwrite_a=True) if width else _nothing()
    rotation = directions / np.sqrt(np.maximum(variances, _LEAST_VARIANCE))
    squared = np.square(rows @ rotation).sum(axis=1)
    others = max(count - 1, 1)
    leverage = (1 - shrinkage) * count / others**2 * squared
    freed = squared / np.maximum(1 - leverage, _LEAST_FREEDOM)
    return rotation, np.sqrt(freed) * count / others


def _shrinkage(
    rows: Float64[NDArray[np.float64], "row column"],
    covariance: Float64[NDArray[np.float64], "column column"],
) -> float:
    """The weight of the identity that Ledoit and Wolf (2004) find, in [0, 1]."""
    size = np.square(covariance).sum()
    away = size - len(covariance)  # from the identity, since every column has the variance 1
    noise = (np.square(np.square(rows).sum(axis=1)).mean() - size) / len(rows)
    return 1.0 if noise >= away else float(noise / away)


def _nothing() -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    return np.zeros(0), np.zeros((0, 0))
