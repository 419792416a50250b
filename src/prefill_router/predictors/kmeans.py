"""k-means: Lloyd's iterations from k-means++ starts.

All draws are the seed's, and empty clusters are given the row that is farthest from its centre, so
that every cluster ends with rows of its own.
"""

import numpy as np
from jaxtyping import Float32, Float64, Int
from numpy.typing import NDArray

Rows = Float64[NDArray[np.float64], "row feature"]
Centres = Float64[NDArray[np.float64], "cluster feature"]
Cluster = Int[NDArray[np.int64], " row"]
_NEAR = 1e-200  # of rows that differ, however small rounding makes their distance
_ROWS = 4096  # of one pass; bounds the memory of a large set


def kmeans(
    rows: Float32[NDArray[np.float32], "row feature"],
    clusters: int,
    *,
    seed: int,
    restarts: int,
    iterations: int,
) -> Centres:
    """The centres of least total squared distance among several starts.

    Args:
        rows: Finite, at least one.
        clusters: How many; no more than there are distinct rows.
        seed: Of the starts.
        restarts: How many starts.
        iterations: Of each, at most; it ends before once no row changes its cluster.
    """
    wide = rows.astype(np.float64)
    wide -= wide.mean(axis=0)
    numbers: dict[bytes, int] = {}
    same = np.array([numbers.setdefault(row.tobytes(), len(numbers)) for row in wide])
    clusters = min(clusters, len(numbers))
    best, least = wide[:0], np.inf
    for random in np.random.default_rng(seed).spawn(restarts):
        centres = _lloyd(wide, _start(wide, same, clusters, random), iterations)
        total = float(squared_distances(wide, centres).min(axis=1).sum())
        if not len(best) or total < least:
            best, least = centres, total
    return np.asarray(best + rows.mean(axis=0, dtype=np.float64))


def squared_distances(rows: Rows, centres: Centres) -> Float64[NDArray[np.float64], "row cluster"]:
    """The squared Euclidean distance of every row to every centre."""
    result = np.empty((len(rows), len(centres)))
    lengths = np.einsum("cf,cf->c", centres, centres)
    for start in range(0, len(rows), _ROWS):
        some = rows[start : start + _ROWS]
        own = np.einsum("rf,rf->r", some, some)[:, None]
        result[start : start + _ROWS] = own + lengths - 2 * (some @ centres.T)
    return np.maximum(result, 0)


def _start(rows: Rows, same: Cluster, clusters: int, random: np.random.Generator) -> Centres:
    """k-means++ (Arthur and Vassilvitskii 2007): far rows are likelier to be the next centre.

    Args:
        rows: To choose from.
        same: A number of each row that equal rows share; no two of them are chosen.
        clusters: How many.
        random: Draws.
    """
    chosen = [int(random.integers(len(rows)))]
    nearest = np.full(len(rows), np.inf)
    while len(chosen) < clusters:
        away = squared_distances(rows, rows[chosen[-1:]])[:, 0]
        nearest = np.minimum(nearest, np.maximum(away, _NEAR))
        nearest[same == same[chosen[-1]]] = 0
        chosen.append(int(random.choice(len(rows), p=nearest / nearest.sum())))
    return rows[chosen]


def _lloyd(rows: Rows, centres: Centres, iterations: int) -> Centres:
    before = None
    for _ in range(iterations):
        squared = squared_distances(rows, centres)
        own = _filled(squared, squared.argmin(axis=1))
        if before is not None and np.array_equal(own, before):
            break
        centres, before = _means(rows, own, len(centres)), own
    return centres


def _filled(squared: Float64[NDArray[np.float64], "row cluster"], own: Cluster) -> Cluster:
    """Give each empty cluster the row that is farthest from its centre and isn't alone there."""
    counts = np.bincount(own, minlength=squared.shape[1])
    away = squared[np.arange(len(own)), own]
    for empty in np.flatnonzero(counts == 0):
        row = int(np.where(counts[own] > 1, away, -1.0).argmax())
        counts[own[row]] -= 1
        own[row], away[row], counts[empty] = empty, 0.0, 1
    return own


def _means(rows: Rows, own: Cluster, clusters: int) -> Centres:
    order = np.argsort(own, kind="stable")
    starts = np.searchsorted(own[order], np.arange(clusters))
    sums = np.add.reduceat(rows[order], starts, axis=0)
    return np.asarray(sums / np.bincount(own, minlength=clusters)[:, None])
