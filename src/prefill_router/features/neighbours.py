"""Statistics of the nearest train queries: how often, and how close, each target was right.

The family of features with its options; `neighbour_statistics` computes the statistics.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Annotated, ClassVar, final

import numpy as np
from jaxtyping import Float32, UInt8
from numpy.typing import NDArray
from pydantic import Field

from prefill_router.activations import Activations
from prefill_router.data import RoutingDataset
from prefill_router.errors import ConfigError, FitError
from prefill_router.features.base import (
    Columns,
    ColumnScaler,
    FamilyEntry,
    PromptStates,
)
from prefill_router.features.neighbour_statistics import (
    STATISTICS,
    Kernel,
    Labels,
    Statistic,
    check_options,
    statistics,
)
from prefill_router.features.single_site import SingleSite, SingleSiteFamily, VectorsConfig
from prefill_router.neighbours import NeighbourIndex, Vectors
from prefill_router.progress import Progress
from prefill_router.reduction import standard_scale
from prefill_router.serialization import Saved

PerDimension = Float32[NDArray[np.float32], " hidden"]


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
        return _unit(states) if self.normalise else states


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
        if len(set(train.prompt_keys)) < 2 or np.isnan(train.correct).all():
            raise FitError(
                f"neighbours of {len(set(train.prompt_keys))} different prompts with "
                f"{int((~np.isnan(train.correct)).sum())} labels aren't enough; give at least two "
                "prompts with a label"
            )
        if len(train) > MOST_SEARCHED:
            smallest = np.argsort(np.array(train.prompt_keys), kind="stable")[:MOST_SEARCHED]
            train = train.select([train.query_ids[row] for row in np.sort(smallest).tolist()])
        store, where = self.where_of(states)
        reading = PromptStates.of_dataset(train, [store])
        space = self._space(where, store, train)
        parts = [vectors for _, vectors in vectors_of(where, reading, space)]
        vectors = np.concatenate(parts)
        index = NeighbourIndex.of(vectors, train.prompt_keys)
        correct = train.correct.astype(np.float32)
        raw = statistics(
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

    def _space(self, where: SingleSite, store: Activations, train: RoutingDataset) -> VectorSpace:
        if not self.standardise:
            return VectorSpace(self.normalise, None, None)
        moments = where.moments(store, train.prompt_keys, lambda rows: rows.astype(np.float64))
        scale, _ = standard_scale(moments)
        return VectorSpace(
            self.normalise, moments.mean.astype(np.float32), scale.astype(np.float32)
        )


MOST_SEARCHED = 50_000
"""The most train rows among which neighbours are searched."""
MISSING = -1.0
_KEY_BYTES = 32  # of a SHA-256
_QUERIES_AT_ONCE = 4096


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
            raw = statistics(
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


def _unit(vectors: Vectors) -> Vectors:
    """Vectors scaled to unit length; zero vectors stay zero."""
    wide = vectors.astype(np.float64)
    length = np.linalg.norm(wide, axis=1, keepdims=True)
    return np.asarray(wide / np.where(length > 0, length, 1), dtype=np.float32)


__all__ = ["ENTRY", "Neighbours", "NeighboursConfig"]

ENTRY = FamilyEntry(NeighboursConfig, Neighbours)
