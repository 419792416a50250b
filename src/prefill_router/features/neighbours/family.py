"""The neighbour statistics, fitted."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, final

import numpy as np
from numpy.typing import NDArray

from prefill_router.activations import Provenance, Site
from prefill_router.features.base import Columns, EncoderStates, Family, Reading
from prefill_router.features.neighbours.statistics import Kernel, Labels, statistics
from prefill_router.features.standard import Standard
from prefill_router.features.vectors import VectorSource
from prefill_router.neighbours import NeighbourIndex

_QUERIES_AT_ONCE = 4096


@final
@dataclass(frozen=True, eq=False)
class Neighbours(Family):
    """Frozen neighbour statistics: made by `NeighboursConfig.fit` or `from_dict`.

    Attributes:
        source: Where the vectors are read.
        index: The train rows.
        correct: Their labels, NaN where missing.
        ks: Over how many neighbours, rising.
        kernel: How distances weigh.
        standard: The scale of each column. Columns go by K, then by `STATISTICS`, then by target.
    """

    kind: ClassVar[str] = "neighbours"

    source: VectorSource
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
        return (self.source.source,)

    def sites_of(self, provenance: Provenance) -> tuple[Site, ...]:
        """What it reads of one encoder."""
        return self.source.sites_of(provenance)

    def read(self, reading: Reading) -> Columns:
        """The columns of these queries; a train row's leave itself out."""
        vectors = self.source.read(reading.states, reading.keys)
        result = np.empty((len(vectors), self.width), dtype=np.float32)
        for start in range(0, len(vectors), _QUERIES_AT_ONCE):
            rows = slice(start, start + _QUERIES_AT_ONCE)
            raw = statistics(
                self.index,
                self.correct,
                vectors[rows],
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
