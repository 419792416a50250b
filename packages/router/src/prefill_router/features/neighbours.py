"""Statistics of the nearest train queries: how often, and how close, each target was right.

Section 3.2 of the paper names the neighbour-correct ratio, distance-weighted correctness and
class-conditional distance means; the details are defined here.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Annotated, ClassVar, Literal, final, get_args

import numpy as np
from jaxtyping import Float32, Float64, UInt8
from numpy.typing import NDArray
from pydantic import Field

from prefill_router.activations import Activations
from prefill_router.data import RoutingDataset
from prefill_router.errors import ConfigError, FitError
from prefill_router.features.base import Columns, ColumnScaler, FamilyEntry, PromptStates
from prefill_router.features.single_site import (
    PerDimension,
    SingleSite,
    SingleSiteFamily,
    VectorsConfig,
)
from prefill_router.neighbours import NeighbourIndex, Vectors
from prefill_router.progress import Progress
from prefill_router.reduction import standard_scale
from prefill_router.serialization import Saved

Kernel = Literal["inverse", "gaussian", "exponential"]
KERNELS: tuple[Kernel, ...] = get_args(Kernel)
Labels = Float32[NDArray[np.float32], "row target"]
PerQueryAndTarget = Float64[NDArray[np.float64], "query target"]
Among = Float64[NDArray[np.float64], "query k"]

Statistic = Literal["share", "weighted share", "distance where right", "distance where wrong"]
STATISTICS: tuple[Statistic, ...] = get_args(Statistic)
"""The statistics of each K and each target, in the order of the columns."""

MOST_SEARCHED = 50_000
"""The most train rows among which neighbours are searched."""
MISSING = -1.0
"""The label of a train row where it wasn't measured, as it is stored."""
_KEY_BYTES = 32  # of a SHA-256
_QUERIES_AT_ONCE = 4096
_COUNTED_AT_ONCE = 512
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
        raise ConfigError(f"kernel is {kernel!r}; it must be one of {list(KERNELS)}")
    if not names or len(set(names)) < len(names) or not set(names) <= set(STATISTICS):
        raise ConfigError(
            f"statistics are {list(names)}; name some of {list(STATISTICS)}, each once"
        )
    if not 0 <= smoothing < np.inf:
        raise ConfigError(f"smoothing is {smoothing}; it is a number of neighbours, 0 or more")


def _select_searched(train: RoutingDataset) -> RoutingDataset:
    """The train rows that are searched: all, or those with the smallest content keys."""
    prompts = len(set(train.prompt_keys))
    if prompts < 2 or np.isnan(train.correct).all():
        raise FitError(
            f"neighbours of {prompts} different prompts with "
            f"{int((~np.isnan(train.correct)).sum())} labels aren't enough; give at least two "
            "prompts with a label"
        )
    if len(train) <= MOST_SEARCHED:
        return train
    smallest = np.argsort(np.array(train.prompt_keys), kind="stable")[:MOST_SEARCHED]
    return train.select([train.query_ids[row] for row in np.sort(smallest).tolist()])


def neighbour_statistics(
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
    labels_and_mask = np.concatenate([np.where(present, correct, 0), present], axis=1).astype(
        np.float64
    )
    parts = [np.empty((0, len(ks) * len(names) * len(prior)))]
    for start in range(0, len(vectors), _COUNTED_AT_ONCE):
        some = slice(start, start + _COUNTED_AT_ONCE)
        distances, rows = index.search(vectors[some], ks[-1], keys[some])
        labels = np.where(rows[:, :, None] < 0, 0, labels_and_mask[rows])
        for_k = [
            _compute_statistics(distances[:, :k], labels[:, :k], prior, kernel, smoothing)
            for k in ks
        ]
        parts.append(np.concatenate([block[name] for block in for_k for name in names], axis=1))
    return np.concatenate(parts)


def _compute_statistics(
    distances: Among,
    labels: Float64[NDArray[np.float64], "query k twice"],
    prior: Float64[NDArray[np.float64], " target"],
    kernel: Kernel,
    smoothing: float,
) -> dict[Statistic, PerQueryAndTarget]:
    """The statistics for one K; `labels` are y and whether it is known, 0 without a neighbour."""
    finite = np.where(np.isinf(distances), 0, distances)
    farthest = finite.max(axis=1, keepdims=True)
    by = np.stack([np.ones_like(finite), weights(finite, farthest, kernel), finite], axis=1)
    sums = by @ labels
    right, measured = np.split(sums, 2, axis=2)
    wrong = measured - right
    added = smoothing * prior
    return {
        "share": _divide_or(right[:, 0] + added, measured[:, 0] + smoothing, prior),
        "weighted share": _divide_or(right[:, 1] + added, measured[:, 1] + smoothing, prior),
        "distance where right": _divide_or(right[:, 2], right[:, 0], farthest),
        "distance where wrong": _divide_or(wrong[:, 2], wrong[:, 0], farthest),
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


def _divide_or(
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


@final
@dataclass(frozen=True, eq=False)
class VectorSpace:
    """What is made of states before they are compared.

    Attributes:
        normalise: Whether each row is brought to length 1, last.
        centre: What is taken off; None where dimensions aren't standardised.
        spread: What they are divided by, likewise.
    """

    normalise: bool
    centre: PerDimension | None
    spread: PerDimension | None

    def vectors(self, states: Vectors) -> Vectors:
        """The rows that are compared."""
        if self.centre is not None and self.spread is not None:
            states = (states - self.centre) / self.spread
        return _scale_to_unit(states) if self.normalise else states


@final
@dataclass(frozen=True, kw_only=True)
class NeighboursConfig(VectorsConfig):
    """Options of the neighbour statistics.

    Attributes:
        ks: The numbers of neighbours; each gives a column per statistic and target.
        kernel: The weight of a distance d in the weighted share, with h the distance to the K-th
            neighbour and d1 that to the first: `inverse` is h / d, `gaussian` exp(-(d / h)^2 / 2),
            `exponential` exp(-4 (d^2 - d1^2)), which for vectors of length 1 is exp(8 (s - s1)) of
            their cosines s.
        standardise: Whether dimensions are first scaled to mean 0 and standard deviation 1 over the
            train rows, so that a few large ones don't determine the neighbours.
        statistics: Which of the four statistics are computed.
        smoothing: The number of pseudo-neighbours at the base rate that are added to the shares.
    """

    ks: tuple[int, ...] = (5, 10, 25, 50, 100)
    kernel: Kernel = "inverse"
    standardise: bool = False
    statistics: tuple[Statistic, ...] = STATISTICS
    smoothing: float = 0.0

    def __post_init__(self) -> None:
        check_options(self.ks, self.kernel, self.statistics, self.smoothing)
        super().__post_init__()

    def fit(
        self,
        train: RoutingDataset,
        states: Sequence[Activations],
        *,
        seed: int = 0,
        progress: Progress | None = None,
    ) -> "Neighbours":
        """Store the train rows, and fit the scaler to their own statistics.

        Not random. A train row's statistics leave out itself and all rows with the same prompt. Of
        more than `MOST_SEARCHED`, those with the smallest content keys are stored, since the time
        of an exact search grows with rows times queries.

        Raises:
            FitError: There are fewer than two different prompts, or no label.
        """
        del seed, progress
        train = _select_searched(train)
        store, where = self.where_of(states)
        reading = PromptStates.of_dataset(train, [store])
        space = self._fit_space(where, store, train)
        parts = [vectors for _, vectors in vectors_of(where, reading, space)]
        vectors = np.concatenate(parts)
        index = NeighbourIndex.of(vectors, train.prompt_keys)
        correct = train.correct.astype(np.float32)
        raw = neighbour_statistics(
            index,
            correct,
            vectors,
            index.keys,
            ks=self.ks,
            kernel=self.kernel,
            names=self.statistics,
            smoothing=self.smoothing,
        )
        standard = ColumnScaler.fit(raw)
        labels = np.where(np.isnan(correct), np.float32(MISSING), correct)
        keys = np.frombuffer(bytes.fromhex("".join(train.prompt_keys)), dtype=np.uint8)
        return Neighbours(
            where=where,
            normalise=self.normalise,
            ks=self.ks,
            kernel=self.kernel,
            vectors=vectors,
            labels=labels,
            keys=keys.reshape(-1, _KEY_BYTES),
            standard=standard,
            statistics=self.statistics,
            smoothing=self.smoothing,
            standardised=None if space.centre is None else len(space.centre),
            centre=space.centre,
            spread=space.spread,
        )

    def _fit_space(
        self, where: SingleSite, store: Activations, train: RoutingDataset
    ) -> VectorSpace:
        if not self.standardise:
            return VectorSpace(self.normalise, None, None)
        moments = where.moments(store, train.prompt_keys, lambda rows: rows.astype(np.float64))
        scale, _ = standard_scale(moments)
        return VectorSpace(
            self.normalise, moments.mean.astype(np.float32), scale.astype(np.float32)
        )


@final
@dataclass(frozen=True, eq=False)
class Neighbours(SingleSiteFamily):
    """Neighbour statistics. Frozen; made by `NeighboursConfig.fit` or `from_dict`.

    Attributes:
        where: The site whose states are the vectors.
        normalise: Whether each is scaled to unit length first.
        ks: The numbers of neighbours, increasing.
        kernel: The weight as a function of the distance.
        vectors: The vectors of the train rows.
        labels: The labels of the train rows in [0, 1], `MISSING` where not measured.
        keys: The content key of each row, a SHA-256.
        standard: The scaler of the columns, which are ordered by K, statistic and target.
        statistics: The statistics that are computed.
        smoothing: The number of pseudo-neighbours at the base rate in the shares.
        standardised: The number of standardised dimensions: all, or None.
        centre: The mean of the train rows' states if dimensions are standardised, else None.
        spread: Their standard deviation, or None.
    """

    kind: ClassVar[str] = "neighbours"

    axes: ClassVar[Mapping[str, str]] = {"standardised": "standardised"}
    normalise: bool
    ks: tuple[int, ...]
    kernel: Kernel
    vectors: Float32[NDArray[np.float32], "row hidden"]
    labels: Annotated[Float32[NDArray[np.float32], "row target"], Saved("correct")]
    keys: UInt8[NDArray[np.uint8], "row 32"]
    standard: ColumnScaler
    statistics: Annotated[tuple[Statistic, ...], Saved(sparse=True)] = STATISTICS
    smoothing: Annotated[float, Saved(sparse=True)] = 0.0
    standardised: Annotated[int | None, Saved(sparse=True)] = None
    centre: Float32[NDArray[np.float32], " standardised"] | None = None
    spread: Annotated[Float32[NDArray[np.float32], " standardised"] | None, Field(gt=0)] = None

    @cached_property
    def space(self) -> VectorSpace:
        """What is made of states before they are compared."""
        return VectorSpace(self.normalise, self.centre, self.spread)

    @cached_property
    def index(self) -> NeighbourIndex:
        """The search index of the train rows."""
        return NeighbourIndex.of(self.vectors, [row.tobytes().hex() for row in self.keys])

    @cached_property
    def correct(self) -> Labels:
        """The labels of the train rows, NaN where missing."""
        return np.where(self.labels == MISSING, np.float32(np.nan), self.labels)

    def verify(self) -> None:
        """Check that there are rows, labels and a column for each statistic."""
        check_options(self.ks, self.kernel, self.statistics, self.smoothing)
        width = self.where.source.provenance.hidden_size
        if self.standardised not in (None, width):
            raise ConfigError(f"{self.standardised} dimensions are standardised, of {width}")
        rows, targets = self.labels.shape
        if rows < 2 or not targets:
            raise ConfigError(f"it has {rows} rows of {targets} targets; it needs two rows or more")
        if not ((self.labels == MISSING) | ((self.labels >= 0) & (self.labels <= 1))).all():
            raise ConfigError(f"its labels must be in [0, 1], or {MISSING} where missing")
        if self.width != len(self.ks) * len(self.statistics) * targets:
            raise ConfigError(f"{self.width} columns aren't those of {targets} targets")

    @property
    def width(self) -> int:
        """The number of columns."""
        return len(self.standard.mean)

    def read(self, reading: PromptStates) -> Columns:
        """The columns of these queries; a train row isn't its own neighbour."""
        result = np.empty((len(reading), self.width), dtype=np.float32)
        for rows, vectors in vectors_of(self.where, reading, self.space):
            raw = neighbour_statistics(
                self.index,
                self.correct,
                vectors,
                reading.keys[rows],
                ks=self.ks,
                kernel=self.kernel,
                names=self.statistics,
                smoothing=self.smoothing,
            )
            result[rows] = self.standard.apply(raw)
        return result


def vectors_of(
    where: SingleSite, reading: PromptStates, space: VectorSpace
) -> Iterator[tuple[slice, Vectors]]:
    """Rows (a slice of the queries) and their vectors, in chunks.

    Raises:
        ProvenanceError: The states are of another encoder, site or type.
        StoreError: Some states are missing.
    """
    for rows, states in where.read(reading):
        for start in range(0, len(states), _QUERIES_AT_ONCE):
            some = states[start : start + _QUERIES_AT_ONCE]
            first = rows.start + start
            yield slice(first, first + len(some)), space.vectors(some)


def _scale_to_unit(vectors: Vectors) -> Vectors:
    """Vectors scaled to unit length; zero vectors stay zero."""
    wide = vectors.astype(np.float64)
    length = np.linalg.norm(wide, axis=1, keepdims=True)
    return np.asarray(wide / np.where(length > 0, length, 1), dtype=np.float32)


ENTRY = FamilyEntry(NeighboursConfig, Neighbours)
