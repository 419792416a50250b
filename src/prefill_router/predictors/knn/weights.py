"""How much each of a query's neighbours counts, by its distance."""

from typing import Literal, get_args

import numpy as np
from jaxtyping import Float64
from numpy.typing import NDArray

Kernel = Literal["uniform", "inverse", "gaussian", "triangular", "epanechnikov", "exponential"]
KERNELS: tuple[Kernel, ...] = get_args(Kernel)
Weights = Float64[NDArray[np.float64], "query neighbour"]


def neighbour_weights(
    distances: Float64[NDArray[np.float64], "query neighbour"],
    kernel: Kernel,
    *,
    bandwidth: float = 1.0,
) -> Weights:
    """Weights that add up to one for each query.

    With u the distance as a share of the bandwidth, a neighbour counts 1 (uniform), 1/u (inverse),
    exp(-u^2/2) (gaussian), exp(-u) (exponential), 1-u (triangular) or 1-u^2 (epanechnikov), the
    last two never less than 0. Where all neighbours would count nothing they count alike; with the
    inverse, neighbours at distance 0 leave nothing to the others, which is the limit.

    Args:
        distances: To the neighbours, nearest first, not negative.
        kernel: Which of these.
        bandwidth: A multiple of the distance to the query's last neighbour. The inverse and the
            uniform weights don't depend on it.
    """
    reach = bandwidth * distances[:, -1:]
    share = np.divide(distances, reach, out=np.zeros_like(distances), where=reach > 0)
    raw = _raw(share, kernel)
    total = raw.sum(axis=1, keepdims=True)
    weights = np.full_like(raw, 1 / raw.shape[1])
    np.divide(raw, total, out=weights, where=total > 0)
    return weights


def _raw(share: Weights, kernel: Kernel) -> Weights:
    match kernel:
        case "uniform":
            return np.ones_like(share)
        case "inverse":
            met = share == 0
            away = np.divide(share[:, :1], share, out=np.zeros_like(share), where=~met)
            return np.where(met.any(axis=1, keepdims=True), met.astype(np.float64), away)
        case "gaussian":
            return np.exp(-(share**2) / 2)
        case "exponential":
            return np.exp(-share)
        case "triangular":
            return np.maximum(1 - share, 0)
        case "epanechnikov":
            return np.maximum(1 - share**2, 0)
