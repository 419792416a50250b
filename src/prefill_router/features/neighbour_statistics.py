"""Statistics of the labels and distances of the K nearest rows (section 3.2 of the paper).

The paper names the neighbour-correct ratio, distance-weighted correctness and class-conditional
distance means; the details are defined here.
"""

from collections.abc import Sequence
from typing import Literal, get_args

import numpy as np
from jaxtyping import Float32, Float64
from numpy.typing import NDArray

from prefill_router.errors import ConfigError
from prefill_router.neighbours import NeighbourIndex

Kernel = Literal["inverse", "gaussian", "exponential"]
KERNELS: tuple[Kernel, ...] = get_args(Kernel)
Labels = Float32[NDArray[np.float32], "row target"]
PerQueryAndTarget = Float64[NDArray[np.float64], "query target"]
Among = Float64[NDArray[np.float64], "query k"]

Statistic = Literal["share", "weighted share", "distance where right", "distance where wrong"]
STATISTICS: tuple[Statistic, ...] = get_args(Statistic)
"""The statistics of each K and each target, in the order of the columns."""

_QUERIES_AT_ONCE = 512
_NEAREST = 1e-3  # times the distance to the K-th: the least distance for the weights of `inverse`
_STEEPNESS = 8.0  # of the weights of `exponential`, per unit of cosine


def check_options(
    ks: Sequence[int], kernel: str, names: Sequence[str] = STATISTICS, smoothing: float = 0.0
) -> None:
    """Check options before anything is read.

    Raises:
        ConfigError: `ks` aren't increasing positive numbers, the kernel or a statistic is unknown,
            there is no statistic or one twice, or the smoothing is negative.
    """
    if not ks or min(ks) < 1 or list(ks) != sorted(set(ks)):
        raise ConfigError(f"ks is {list(ks)}; give increasing numbers of neighbours, 1 or more")
    if kernel not in KERNELS:
        raise ConfigError(f"kernel is {kernel!r}; known are {list(KERNELS)}")
    if not names or len(set(names)) < len(names) or not set(names) <= set(STATISTICS):
        raise ConfigError(
            f"statistics are {list(names)}; name some of {list(STATISTICS)}, each once"
        )
    if not 0 <= smoothing < np.inf:
        raise ConfigError(f"smoothing is {smoothing}; it is a number of neighbours, 0 or more")


def statistics(
    index: NeighbourIndex,
    correct: Labels,
    vectors: Float32[NDArray[np.float32], "query dim"],
    keys: Sequence[str],
    *,
    ks: tuple[int, ...],
    kernel: Kernel,
    names: Sequence[Statistic] = STATISTICS,
    smoothing: float = 0.0,
) -> Float64[NDArray[np.float64], "query column"]:
    """The statistics of some queries, finite; a query doesn't count as its own neighbour.

    With y the known labels among the K nearest neighbours, d their distances, w their weights, h
    the distance to the K-th, p the mean label over all rows, and a the smoothing, for each target:

    - share: (sum(y) + a p) / (count + a); p without a known label;
    - weighted share: (sum(w y) + a p) / (sum(w) + a); p without a known label;
    - distance where right: sum(y d) / sum(y); h where no neighbour is right;
    - distance where wrong: the same with 1 - y.

    Args:
        index: The train rows, with at least two different keys.
        correct: Their labels in [0, 1], NaN where missing.
        vectors: The queries.
        keys: The queries' content keys.
        ks: Numbers of neighbours, increasing. Where there are fewer rows, all of them count.
        kernel: The weight as a function of the distance.
        names: The statistics to compute, in the order of the columns.
        smoothing: The number of pseudo-neighbours of weight 1 with the label p.
    """
    prior = _base_rates(correct)
    present = ~np.isnan(correct)
    known = np.concatenate([np.where(present, correct, 0), present], axis=1).astype(np.float64)
    parts = [np.empty((0, len(ks) * len(names) * len(prior)))]
    for start in range(0, len(vectors), _QUERIES_AT_ONCE):
        some = slice(start, start + _QUERIES_AT_ONCE)
        distances, rows = index.search(vectors[some], ks[-1], keys[some])
        labels = np.where(rows[:, :, None] < 0, 0, known[rows])
        for_k = [_of(distances[:, :k], labels[:, :k], prior, kernel, smoothing) for k in ks]
        parts.append(np.concatenate([block[name] for block in for_k for name in names], axis=1))
    return np.concatenate(parts)


def _of(
    distances: Among,
    labels: Float64[NDArray[np.float64], "query k twice"],
    prior: Float64[NDArray[np.float64], " target"],
    kernel: Kernel,
    smoothing: float,
) -> dict[Statistic, PerQueryAndTarget]:
    """The statistics for one K; `labels` are y and whether it is known, 0 without a neighbour."""
    known = np.where(np.isinf(distances), 0, distances)
    farthest = known.max(axis=1, keepdims=True)
    by = np.stack([np.ones_like(known), weights(known, farthest, kernel), known], axis=1)
    sums = by @ labels
    right, measured = np.split(sums, 2, axis=2)
    wrong = measured - right
    added = smoothing * prior
    return {
        "share": _ratio(right[:, 0] + added, measured[:, 0] + smoothing, prior),
        "weighted share": _ratio(right[:, 1] + added, measured[:, 1] + smoothing, prior),
        "distance where right": _ratio(right[:, 2], right[:, 0], farthest),
        "distance where wrong": _ratio(wrong[:, 2], wrong[:, 0], farthest),
    }


def weights(
    distances: Among, farthest: Float64[NDArray[np.float64], "query 1"], kernel: Kernel
) -> Among:
    """The weight of each neighbour, positive; equal where all distances are 0.

    Args:
        distances: In increasing order.
        farthest: The distance to the K-th.
        kernel: `exponential` is meant for vectors of length 1, where 1 - d^2 / 2 is the cosine: the
            nearest neighbour has weight 1, and others less the smaller their cosine is.
    """
    if kernel == "exponential":
        nearest = distances[:, :1] ** 2
        return np.asarray(np.exp(_STEEPNESS / 2 * (nearest - distances**2)))
    relative = distances / np.where(farthest > 0, farthest, 1)
    if kernel == "gaussian":
        return np.asarray(np.exp(-(relative**2) / 2))
    return np.asarray(1 / np.maximum(relative, _NEAREST))


def _ratio(
    above: PerQueryAndTarget, below: PerQueryAndTarget, otherwise: NDArray[np.float64]
) -> PerQueryAndTarget:
    some = below > 0
    return np.where(some, above / np.where(some, below, 1), otherwise)


def _base_rates(correct: Labels) -> Float64[NDArray[np.float64], " target"]:
    """The mean label of each target; for a target without labels, the mean of all."""
    count = (~np.isnan(correct)).sum(axis=0)
    total = np.nansum(correct, axis=0, dtype=np.float64)
    overall = total.sum() / max(1, count.sum())
    return np.asarray(np.where(count > 0, total / np.maximum(count, 1), overall))
