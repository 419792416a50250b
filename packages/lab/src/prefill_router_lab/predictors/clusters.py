"""Routing by clusters of queries.

Cluster routing groups the train queries by k-means. A query's probabilities are the rates at which
each target was right in its nearest clusters (Zhang 2025, "The Avengers", and Avengers-Pro, which
adds up the nearest few). k-means is Lloyd's algorithm from k-means++ starts. It is deterministic
given the seed, and an empty cluster gets the row that is farthest from its centre, so that no
cluster ends without rows.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, ClassVar, final

import numpy as np
from jaxtyping import Float32, Float64, Int
from numpy.typing import NDArray
from pydantic import NonNegativeFloat, PositiveInt

from prefill_router.options import Count, NotNegative
from prefill_router.predictors import (
    Correctness,
    Examples,
    Features,
    Predictor,
    PredictorConfig,
    PredictorEntry,
    PredictorFit,
    Share,
    check_features,
    left_out_note,
    usable_rows,
)
from prefill_router.progress import Progress
from prefill_router.statistics import row_numbers

Rows = Float64[NDArray[np.float64], "row feature"]
Centres = Float64[NDArray[np.float64], "cluster feature"]
Cluster = Int[NDArray[np.int64], " row"]
_NEAR = 1e-200  # the least squared distance of rows that differ, where rounding gives 0
_ROWS_AT_ONCE = 4096  # whose distances are computed together; bounds the memory


def kmeans(
    rows: Float32[NDArray[np.float32], "row feature"],
    clusters: int,
    *,
    seed: int,
    restarts: int,
    iterations: int,
) -> Centres:
    """The centres with the least total squared distance among several starts.

    Args:
        rows: The rows, finite, at least one.
        clusters: The number of clusters; no more than there are distinct rows.
        seed: The seed of the starts.
        restarts: The number of starts.
        iterations: The most iterations of each start; it stops when no row changes its cluster.
    """
    wide = rows.astype(np.float64)
    wide -= wide.mean(axis=0)
    same = row_numbers(wide)
    clusters = min(clusters, int(same.max()) + 1)
    best, least = wide[:0], np.inf
    for random in np.random.default_rng(seed).spawn(restarts):
        centres = _run_lloyd(wide, _choose_starts(wide, same, clusters, random), iterations)
        total = float(squared_distances(wide, centres).min(axis=1).sum())
        if not len(best) or total < least:
            best, least = centres, total
    return np.asarray(best + rows.mean(axis=0, dtype=np.float64))


def squared_distances(rows: Rows, centres: Centres) -> Float64[NDArray[np.float64], "row cluster"]:
    """The squared Euclidean distance of every row to every centre."""
    result = np.empty((len(rows), len(centres)))
    lengths_of_centres = np.einsum("cf,cf->c", centres, centres)
    for start in range(0, len(rows), _ROWS_AT_ONCE):
        batch = rows[start : start + _ROWS_AT_ONCE]
        lengths_of_rows = np.einsum("rf,rf->r", batch, batch)[:, None]
        result[start : start + _ROWS_AT_ONCE] = (
            lengths_of_rows + lengths_of_centres - 2 * (batch @ centres.T)
        )
    return np.maximum(result, 0)


def _choose_starts(
    rows: Rows, same: Cluster, clusters: int, random: np.random.Generator
) -> Centres:
    """k-means++ (Arthur and Vassilvitskii 2007): distant rows are likelier to be the next centre.

    Args:
        rows: The rows to choose from.
        same: A number for each row that equal rows share; at most one of equal rows is chosen.
        clusters: The number of centres.
        random: The random generator.
    """
    chosen = [int(random.integers(len(rows)))]
    nearest = np.full(len(rows), np.inf)
    while len(chosen) < clusters:
        distances = squared_distances(rows, rows[chosen[-1:]])[:, 0]
        nearest = np.minimum(nearest, np.maximum(distances, _NEAR))
        nearest[same == same[chosen[-1]]] = 0
        chosen.append(int(random.choice(len(rows), p=nearest / nearest.sum())))
    return rows[chosen]


def _run_lloyd(rows: Rows, centres: Centres, iterations: int) -> Centres:
    before = None
    for _ in range(iterations):
        squared = squared_distances(rows, centres)
        assignment = _fill_empty(squared, squared.argmin(axis=1))
        if before is not None and np.array_equal(assignment, before):
            break
        centres, before = _average_rows(rows, assignment, len(centres)), assignment
    return centres


def _fill_empty(
    squared: Float64[NDArray[np.float64], "row cluster"], assignment: Cluster
) -> Cluster:
    """Give each empty cluster the row that is farthest from its centre and isn't alone there."""
    counts = np.bincount(assignment, minlength=squared.shape[1])
    distances = squared[np.arange(len(assignment)), assignment]
    for empty in np.flatnonzero(counts == 0):
        row = int(np.where(counts[assignment] > 1, distances, -1.0).argmax())
        counts[assignment[row]] -= 1
        assignment[row], distances[row], counts[empty] = empty, 0.0, 1
    return assignment


def _average_rows(rows: Rows, assignment: Cluster, clusters: int) -> Centres:
    order = np.argsort(assignment, kind="stable")
    starts = np.searchsorted(assignment[order], np.arange(clusters))
    sums = np.add.reduceat(rows[order], starts, axis=0)
    return np.asarray(sums / np.bincount(assignment, minlength=clusters)[:, None])


@final
@dataclass(frozen=True, eq=False)
class Clusters(Predictor):
    """The rates of the nearest clusters.

    Attributes:
        centres: The centre of each cluster.
        rates: The probability of each target in each cluster.
        nearest: The number of nearest clusters that count for a query.
        sharpness: The decay of their weights, exp(-sharpness (d^2 - least d^2) / spread).
        spread: The mean squared distance of a train row to its own centre.
    """

    kind: ClassVar[str] = "clusters"
    axes: ClassVar[Mapping[str, str]] = {**Predictor.axes, "cluster": "clusters"}
    centres: Float32[NDArray[np.float32], "cluster feature"]
    rates: Annotated[Float32[NDArray[np.float32], "cluster target"], Share]
    nearest: PositiveInt
    sharpness: NonNegativeFloat
    spread: NonNegativeFloat

    @property
    def width(self) -> int:
        """The number of features it was fitted on."""
        return int(self.centres.shape[1])

    def correctness(self, features: Features) -> Correctness:
        """The weighted mean of the rates of the nearest clusters."""
        check_features(features, width=self.width)
        centres = self.centres.astype(np.float64)
        middle = centres.mean(axis=0)
        squared = squared_distances(features.astype(np.float64) - middle, centres - middle)
        order = np.argsort(squared, axis=1, kind="stable")[:, : self.nearest]
        distances = np.take_along_axis(squared, order, axis=1)
        beyond = (
            (distances - distances[:, :1]) / self.spread
            if self.spread
            else distances - distances[:, :1]
        )
        weights = np.exp(-np.minimum(self.sharpness * beyond, 700))
        weights /= weights.sum(axis=1, keepdims=True)
        mean = np.einsum("qc,qct->qt", weights, self.rates.astype(np.float64)[order])
        return np.asarray(np.clip(mean, 0, 1))


@final
@dataclass(frozen=True, kw_only=True)
class ClustersConfig(PredictorConfig):
    """Options of cluster routing.

    Attributes:
        clusters: The number of clusters, limited to the number of distinct rows.
        nearest: The number of nearest clusters that count for a query; 1 for its own cluster only.
        sharpness: The decay of their weights with the squared distance, in units of the mean
            squared distance of a train row to its own centre.
        smoothing: Pseudo-queries with a target's overall rate that are added to each cluster.
        restarts: The number of starts of k-means, of which the best is kept.
        iterations: The most iterations of each start.
    """

    clusters: Count = 64
    nearest: Count = 4
    sharpness: NotNegative = 3.0
    smoothing: NotNegative = 10.0
    restarts: Count = 3
    iterations: Count = 50

    def fit(
        self, examples: Examples, *, seed: int = 0, progress: Progress | None = None
    ) -> PredictorFit:
        """Cluster the train rows and count each target's right answers in each cluster."""
        del progress
        usable = usable_rows(examples)
        centres = kmeans(
            usable.features,
            self.clusters,
            seed=seed,
            restarts=self.restarts,
            iterations=self.iterations,
        ).astype(np.float32)
        squared = squared_distances(usable.features.astype(np.float64), centres.astype(np.float64))
        cluster_rates = _count_rates(usable, squared.argmin(axis=1), len(centres), self.smoothing)
        rates = np.where(examples.learnable, cluster_rates, examples.base_rates)
        predictor = Clusters(
            examples.targets,
            centres,
            rates.astype(np.float32),
            min(self.nearest, len(centres)),
            float(self.sharpness),
            float(squared.min(axis=1).mean()),
        )
        notes = (*examples.target_notes(), *left_out_note(examples, len(usable.features)))
        return PredictorFit(predictor, notes, {"clusters": len(centres)})


def _count_rates(
    usable: Examples, assignment: NDArray[np.int64], clusters: int, smoothing: float
) -> NDArray[np.float64]:
    """Each target's rate in each cluster, smoothed towards its overall rate."""
    member = (assignment[:, None] == np.arange(clusters)).astype(np.float64)
    right, count = member.T @ np.nan_to_num(usable.correct), member.T @ usable.present
    base_rates, total = usable.base_rates, count + smoothing
    rates = np.tile(base_rates, (clusters, 1))
    np.divide(right + smoothing * base_rates, total, where=total > 0, out=rates)
    return rates


ENTRY = PredictorEntry(ClustersConfig, Clusters, "Clusters (Avengers)", "Zhang 2025, The Avengers")
