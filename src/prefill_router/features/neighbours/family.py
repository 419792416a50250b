"""The neighbour statistics, fitted."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, final

import numpy as np
from numpy.typing import NDArray

from prefill_router.activations import Provenance, Site
from prefill_router.features.base import Columns, EncoderStates, Family, Reading
from prefill_router.features.neighbours.statistics import Kernel, Labels, statistics
from prefill_router.features.one_site import OneSite
from prefill_router.features.standard import Standard
from prefill_router.neighbours import NeighbourIndex, Vectors

_QUERIES_AT_ONCE = 4096


@final
@dataclass(frozen=True, eq=False)
class Neighbours(Family):
    """Frozen neighbour statistics: made by `NeighboursConfig.fit` or `from_dict`.

    Attributes:
        where: Which states are the vectors.
        normalise: Whether each is brought to length 1 first.
        index: The train rows.
        correct: Their labels, NaN where missing.
        ks: Over how many neighbours, rising.
        kernel: How distances weigh.
        standard: The scale of each column. Columns go by K, then by `STATISTICS`, then by target.
    """

    kind: ClassVar[str] = "neighbours"

    where: OneSite
    normalise: bool
    index: NeighbourIndex
    correct: Labels
    ks: tuple[int, ...]
    kernel: Kernel
    standard: Standard

    @property
    def width(self) -> int:
        """How many columns it has."""
        return len(self.standard.mean)

    @property
    def sources(self) -> tuple[EncoderStates, ...]:
        """The kind of states that it reads."""
        return (self.where.source,)

    def sites_of(self, provenance: Provenance) -> tuple[Site, ...]:
        """What it reads of one encoder."""
        return self.where.sites_of(provenance)

    def read(self, reading: Reading) -> Columns:
        """The columns of these queries; a train row's leave itself out."""
        result = np.empty((len(reading), self.width), dtype=np.float32)
        for rows, vectors in vectors_of(self.where, reading, normalise=self.normalise):
            raw = statistics(
                self.index,
                self.correct,
                vectors,
                reading.keys[rows],
                ks=self.ks,
                kernel=self.kernel,
            )
            result[rows] = self.standard.apply(raw)
        return result

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON; together with `tensors` they are all of it."""
        from prefill_router.features.neighbours.saved import to_dict

        return to_dict(self)

    def tensors(self) -> dict[str, NDArray[Any]]:
        """The train rows' vectors, labels (-1 where missing) and keys, and the scaler."""
        from prefill_router.features.neighbours.saved import to_tensors

        return to_tensors(self)

    @classmethod
    def from_dict(
        cls, config: Mapping[str, Any], tensors: Mapping[str, NDArray[Any]]
    ) -> "Neighbours":
        """The family of `to_dict` and `tensors`.

        Raises:
            CorruptError: They are incomplete or contradict each other.
        """
        from prefill_router.features.neighbours.saved import from_dict

        return from_dict(config, tensors)


def vectors_of(
    where: OneSite, reading: Reading, *, normalise: bool
) -> Iterator[tuple[slice, Vectors]]:
    """Rows (a slice into the queries) and their vectors, some at a time.

    Raises:
        ProvenanceError: The states are of another encoder, site or type.
        StoreError: Some aren't held.
    """
    for rows, states in where.read(reading):
        for start in range(0, len(states), _QUERIES_AT_ONCE):
            some = states[start : start + _QUERIES_AT_ONCE]
            first = rows.start + start
            yield slice(first, first + len(some)), _unit(some) if normalise else some


def _unit(vectors: Vectors) -> Vectors:
    """Of length 1; what is zero stays so."""
    wide = vectors.astype(np.float64)
    length = np.linalg.norm(wide, axis=1, keepdims=True)
    return np.asarray(wide / np.where(length > 0, length, 1), dtype=np.float32)
