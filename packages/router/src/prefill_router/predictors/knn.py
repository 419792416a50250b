"""Predictors by likeness: votes of the nearest queries, and routing by clusters of queries.

Majority routing chooses the target with the most votes among the nearest train queries, so the
share of votes is its probability; the score is the mean of their labels, weighted by proximity (Li
2025, "Rethinking Predictive Modeling for LLM Routing"; section 3.2 of the paper, with k = 25 and
with inverse distances).

A target's neighbours are the k nearest queries for which it was *measured*. Where many labels are
missing, each target still has k votes, at somewhat greater distances.

Cluster routing groups the train queries by k-means. A query's probabilities are the rates at which
each target was right in its nearest clusters (Zhang 2025, "The Avengers", and Avengers-Pro, which
adds up the nearest few). k-means is Lloyd's algorithm from k-means++ starts. It is deterministic
given the seed, and an empty cluster gets the row that is farthest from its centre, so that no
cluster ends without rows.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Annotated, ClassVar, Literal, final, get_args

import numpy as np
from jaxtyping import Bool, Float32, Float64, Int
from numpy.typing import NDArray
from pydantic import NonNegativeFloat, PositiveFloat, PositiveInt

from prefill_router.data import binary
from prefill_router.errors import ConfigError
from prefill_router.geometry import NeighbourIndex
from prefill_router.options import Count, NotNegative, Positive
from prefill_router.predictors.base import (
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
from prefill_router.serialization import Part, Saved
from prefill_router.statistics import row_numbers

MISSING = -1.0
_MOST = 0.5
_SPARE = 8

Distances = Float64[NDArray[np.float64], "query neighbour"]
Votes = Float64[NDArray[np.float64], "query neighbour"]


@final
@dataclass(frozen=True, eq=False)
class NeighbourRows(Part):
    """The train rows and their labels.

    Attributes:
        vectors: The features of the train rows.
        labels: The labels in [0, 1], `MISSING` where not measured.
        rates: Base rates, for targets that can't be learned.
    """

    axes: ClassVar[Mapping[str, str]] = {"row": "rows"}
    vectors: Float32[NDArray[np.float32], "row feature"]
    labels: Float32[NDArray[np.float32], "row target"]
    rates: Annotated[Float32[NDArray[np.float32], " target"], Share]

    @classmethod
    def of(cls, examples: Examples) -> "NeighbourRows":
        """Store the train rows."""
        used = usable_rows(examples)
        labels = np.where(used.present & examples.learnable, used.correct, MISSING)
        rates = examples.base_rates.astype(np.float32)
        memory = cls(used.features, labels.astype(np.float32), rates)
        _ = memory.searches  # so that a missing package is reported now
        return memory

    @property
    def rows(self) -> int:
        """The number of rows."""
        return len(self.vectors)

    @property
    def width(self) -> int:
        """The number of features."""
        return int(self.vectors.shape[1])

    @property
    def learned(self) -> Bool[NDArray[np.bool_], " target"]:
        """Whether each target has neighbours; others get their base rate."""
        return np.asarray((self.labels != MISSING).any(axis=0))

    @cached_property
    def searches(self) -> tuple["NeighbourSearch", ...]:
        """One search for all targets measured on most rows, and one per set of rows for others."""
        groups: dict[bytes, list[int]] = {}
        measured = self.labels != MISSING
        for target in np.flatnonzero(self.learned).tolist():
            column = measured[:, target]
            groups.setdefault(b"" if column.mean() > _MOST else column.tobytes(), []).append(target)
        return tuple(self._search(np.array(targets)) for targets in groups.values())

    def _search(self, targets: NDArray[np.int64]) -> "NeighbourSearch":
        labels = self.labels[:, targets].astype(np.float64)
        rows = (labels != MISSING).any(axis=1)
        return NeighbourSearch(NeighbourIndex.of(self.vectors[rows]), labels[rows], targets)

    def verify(self) -> None:
        """Check that the labels are in [0, 1] or missing."""
        if not ((self.labels == MISSING) | ((self.labels >= 0) & (self.labels <= 1))).all():
            raise ConfigError(f"its labels must be in [0, 1], or {MISSING} where missing")


@final
@dataclass(frozen=True, eq=False)
class NeighbourSearch:
    """A search for the neighbours of several targets.

    Attributes:
        index: The index of the rows on which any of them was measured.
        labels: The labels of these rows and targets, `MISSING` where not measured.
        targets: The columns of these targets.
    """

    index: NeighbourIndex
    labels: Float64[NDArray[np.float64], "row target"]
    targets: NDArray[np.int64]

    def nearest(self, features: Features, k: int) -> Iterator[tuple[int, Distances, Votes]]:
        """Each target, and the distances and labels of its k nearest measured rows.

        If a target has fewer than k rows, all of them are returned.
        """
        measured = self.labels != MISSING
        wanted = np.minimum(k, measured.sum(axis=0))
        found, rows = self._enough(features, measured, wanted)
        for place, target in enumerate(self.targets.tolist()):
            missing = ~measured[rows, place]
            first = np.argsort(missing, axis=1, kind="stable")[:, : wanted[place]]
            taken = np.take_along_axis(rows, first, axis=1)
            distances = np.take_along_axis(found, first, axis=1)
            yield target, distances, self.labels[taken, place]

    def _enough(
        self, features: Features, measured: NDArray[np.bool_], wanted: NDArray[np.int64]
    ) -> tuple[Distances, NDArray[np.int64]]:
        """Enough of the nearest rows that every target has the measured ones that it needs."""
        least = float(measured.mean(axis=0).min())
        most = int(wanted.max())
        count = most if least == 1 else int(1.2 * most / least) + _SPARE
        while True:
            count = min(count, len(measured))
            distances, rows = self.index.search(features, count)
            if count == len(measured) or (measured[rows].sum(axis=1) >= wanted).all():
                return distances, rows
            count *= 2


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

    With u the distance divided by the bandwidth, the weight of a neighbour is proportional to 1
    (uniform), 1/u (inverse), exp(-u^2/2) (gaussian), exp(-u) (exponential), 1-u (triangular) or
    1-u^2 (epanechnikov), the last two never less than 0. Where all weights would be 0 they are
    equal; with `inverse`, neighbours at distance 0 take all the weight, which is the limit.

    Args:
        distances: The distances to the neighbours, nearest first, not negative.
        kernel: The name of the function.
        bandwidth: A multiple of the distance to the query's last neighbour. The inverse and the
            uniform weights don't depend on it.
    """
    last = distances[:, -1:]
    share = np.divide(distances, last, out=np.zeros_like(distances), where=last > 0)
    raw = _raw(share / bandwidth, kernel)
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


_QUERIES_AT_ONCE = 2048  # searched together; bounds the memory


@dataclass(frozen=True, eq=False)
class NearestRows(Predictor):
    """The weighted mean of the labels of each target's k nearest measured rows.

    Attributes:
        k: The number of neighbours; all rows where there are fewer.
        kernel: The function by which weights fall with the distance.
        bandwidth: A multiple of the distance to the last neighbour.
        memory: The train rows.
    """

    k: PositiveInt
    kernel: Kernel
    bandwidth: PositiveFloat
    memory: NeighbourRows

    @property
    def width(self) -> int:
        """The number of features it was fitted on."""
        return self.memory.width

    def correctness(self, features: Features) -> Correctness:
        """The weighted mean of the labels of each target's k nearest measured rows."""
        check_features(features, width=self.width)
        result = np.tile(self.memory.rates.astype(np.float64), (len(features), 1))
        for start in range(0, len(features), _QUERIES_AT_ONCE):
            rows = slice(start, start + _QUERIES_AT_ONCE)
            for search in self.memory.searches:
                for target, distances, votes in search.nearest(features[rows], self.k):
                    weights = neighbour_weights(distances, self.kernel, bandwidth=self.bandwidth)
                    result[rows, target] = np.clip((weights * votes).sum(axis=1), 0, 1)
        return result

    def with_notes(self, examples: Examples) -> PredictorFit:
        """The predictor with notes on its examples."""
        notes = (*examples.target_notes(), *left_out_note(examples, self.memory.rows))
        return PredictorFit(self, notes)


@final
@dataclass(frozen=True, eq=False)
class KnnMajority(NearestRows):
    """The share of votes: labels cut at 0.5, with equal weights."""

    kind: ClassVar[str] = "knn_majority"
    kernel: Annotated[Kernel, Saved(never=True)] = field(default="uniform", init=False)
    bandwidth: Annotated[float, Saved(never=True)] = field(default=1.0, init=False)


@final
@dataclass(frozen=True, eq=False)
class KnnScore(NearestRows):
    """sum_i w_i y_i / sum_i w_i over the neighbours i, with labels as they are."""

    kind: ClassVar[str] = "knn_score"


@final
@dataclass(frozen=True, kw_only=True)
class KnnMajorityConfig(PredictorConfig):
    """Options of the majority vote.

    Attributes:
        k: The number of neighbours.
    """

    k: Count = 25

    def fit(
        self, examples: Examples, *, seed: int = 0, progress: Progress | None = None
    ) -> PredictorFit:
        """Store the train rows; soft labels are cut at 0.5 to be votes."""
        del seed, progress
        votes = replace(examples, correct=binary(examples.correct))
        return KnnMajority(votes.targets, self.k, NeighbourRows.of(votes)).with_notes(votes)


@final
@dataclass(frozen=True, kw_only=True)
class KnnScoreConfig(PredictorConfig):
    """Options of the weighted score.

    Attributes:
        k: The number of neighbours.
        kernel: The function by which weights fall with the distance (`neighbour_weights`).
        bandwidth: A multiple of the distance to the last neighbour; smaller is more local.
    """

    k: Count = 100
    kernel: Kernel = "inverse"
    bandwidth: Positive = 1.0

    def fit(
        self, examples: Examples, *, seed: int = 0, progress: Progress | None = None
    ) -> PredictorFit:
        """Store the train rows; soft labels are used as they are."""
        del seed, progress
        memory, bandwidth = NeighbourRows.of(examples), float(self.bandwidth)
        predictor = KnnScore(examples.targets, self.k, self.kernel, bandwidth, memory)
        return predictor.with_notes(examples)


LI = "Li 2025, Rethinking Predictive Modeling for LLM Routing"
MAJORITY = PredictorEntry(KnnMajorityConfig, KnnMajority, "kNN majority vote", LI)
SCORE = PredictorEntry(KnnScoreConfig, KnnScore, "kNN score", LI)


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
        centres = _lloyd(wide, _start(wide, same, clusters, random), iterations)
        total = float(squared_distances(wide, centres).min(axis=1).sum())
        if not len(best) or total < least:
            best, least = centres, total
    return np.asarray(best + rows.mean(axis=0, dtype=np.float64))


def squared_distances(rows: Rows, centres: Centres) -> Float64[NDArray[np.float64], "row cluster"]:
    """The squared Euclidean distance of every row to every centre."""
    result = np.empty((len(rows), len(centres)))
    lengths = np.einsum("cf,cf->c", centres, centres)
    for start in range(0, len(rows), _ROWS_AT_ONCE):
        some = rows[start : start + _ROWS_AT_ONCE]
        own = np.einsum("rf,rf->r", some, some)[:, None]
        result[start : start + _ROWS_AT_ONCE] = own + lengths - 2 * (some @ centres.T)
    return np.maximum(result, 0)


def _start(rows: Rows, same: Cluster, clusters: int, random: np.random.Generator) -> Centres:
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
        away = np.take_along_axis(squared, order, axis=1)
        beyond = (away - away[:, :1]) / self.spread if self.spread else away - away[:, :1]
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
        used = usable_rows(examples)
        centres = kmeans(
            used.features,
            self.clusters,
            seed=seed,
            restarts=self.restarts,
            iterations=self.iterations,
        ).astype(np.float32)
        squared = squared_distances(used.features.astype(np.float64), centres.astype(np.float64))
        counted = _rates(used, squared.argmin(axis=1), len(centres), self.smoothing)
        rates = np.where(examples.learnable, counted, examples.base_rates)
        predictor = Clusters(
            examples.targets,
            centres,
            rates.astype(np.float32),
            min(self.nearest, len(centres)),
            float(self.sharpness),
            float(squared.min(axis=1).mean()),
        )
        notes = (*examples.target_notes(), *left_out_note(examples, len(used.features)))
        return PredictorFit(predictor, notes, {"clusters": len(centres)})


def _rates(
    used: Examples, own: NDArray[np.int64], clusters: int, smoothing: float
) -> NDArray[np.float64]:
    """Each target's rate in each cluster, smoothed towards its overall rate."""
    member = (own[:, None] == np.arange(clusters)).astype(np.float64)
    right, count = member.T @ np.nan_to_num(used.correct), member.T @ used.present
    whole, total = used.base_rates, count + smoothing
    found = np.tile(whole, (clusters, 1))
    np.divide(right + smoothing * whole, total, where=total > 0, out=found)
    return found


CLUSTERS = PredictorEntry(
    ClustersConfig, Clusters, "Clusters (Avengers)", "Zhang 2025, The Avengers"
)
