"""Predictors by similarity: the nearest train queries vote.

Majority routing chooses the target with the most votes among the nearest train queries, so the
share of votes is its probability. The score is the mean of their labels, weighted by proximity (Li
2025, "Rethinking Predictive Modeling for LLM Routing"; section 3.2 of the paper, with k = 25 and
with inverse distances).

A target's neighbours are the k nearest queries for which it was *measured*. Where many labels are
missing, each target still has k votes, at somewhat greater distances.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Annotated, ClassVar, Literal, final, get_args

import numpy as np
from jaxtyping import Bool, Float32, Float64
from numpy.typing import NDArray
from pydantic import PositiveFloat, PositiveInt

from prefill_router.data import binary
from prefill_router.errors import ConfigError
from prefill_router.neighbours import NeighbourIndex
from prefill_router.options import Count, Positive
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
        return tuple(self._make_search(np.array(targets)) for targets in groups.values())

    def _make_search(self, targets: NDArray[np.int64]) -> "NeighbourSearch":
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
        distances, rows = self._search_enough(features, measured, wanted)
        for place, target in enumerate(self.targets.tolist()):
            missing = ~measured[rows, place]
            first = np.argsort(missing, axis=1, kind="stable")[:, : wanted[place]]
            chosen = np.take_along_axis(rows, first, axis=1)
            nearest = np.take_along_axis(distances, first, axis=1)
            yield target, nearest, self.labels[chosen, place]

    def _search_enough(
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
    raw = _weigh_distances(share / bandwidth, kernel)
    total = raw.sum(axis=1, keepdims=True)
    weights = np.full_like(raw, 1 / raw.shape[1])
    np.divide(raw, total, out=weights, where=total > 0)
    return weights


def _weigh_distances(share: Weights, kernel: Kernel) -> Weights:
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
