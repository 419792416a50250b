"""The train rows that nearest neighbours are looked for among, for each target.

A target's neighbours are the k nearest of the queries that it was *measured* on. Where labels are
missing in many places, each target still has k votes, at somewhat greater distances.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import final

import numpy as np
from jaxtyping import Bool, Float32, Float64
from numpy.typing import NDArray

from prefill_router.errors import CorruptError
from prefill_router.neighbours import NeighbourIndex
from prefill_router.predictors.base import Features, Tensors, take_tensors
from prefill_router.predictors.constant import check_rates
from prefill_router.predictors.fitted import Examples
from prefill_router.predictors.rows import usable_rows

MISSING = -1.0

Distances = Float64[NDArray[np.float64], "query neighbour"]
Votes = Float64[NDArray[np.float64], "query neighbour target"]


@final
@dataclass(frozen=True, eq=False)
class Memory:
    """Rows and labels as they were trained on.

    Attributes:
        vectors: The features of the train rows.
        labels: Their labels in [0, 1], `MISSING` where not measured.
        rates: Base rates, for targets that can't be learned.
    """

    vectors: Float32[NDArray[np.float32], "row feature"]
    labels: Float32[NDArray[np.float32], "row target"]
    rates: Float32[NDArray[np.float32], " target"]

    @classmethod
    def of(cls, examples: Examples) -> "Memory":
        """That of the train rows.

        Raises:
            MissingExtraError: FAISS isn't installed.
        """
        used = usable_rows(examples)
        labels = np.where(used.present & examples.learnable, used.correct, MISSING)
        rates = examples.base_rates.astype(np.float32)
        memory = cls(used.features, labels.astype(np.float32), rates)
        _ = memory.searches  # so that a missing package is told of now
        return memory

    @property
    def rows(self) -> int:
        """How many rows it holds."""
        return len(self.vectors)

    @property
    def width(self) -> int:
        """How many features a row has."""
        return int(self.vectors.shape[1])

    @property
    def learned(self) -> Bool[NDArray[np.bool_], " target"]:
        """Whether a target has neighbours; others have their base rate."""
        return np.asarray((self.labels != MISSING).any(axis=0))

    @cached_property
    def searches(self) -> tuple["Search", ...]:
        """One for each set of rows that some targets were measured on."""
        groups: dict[bytes, list[int]] = {}
        measured = self.labels != MISSING
        for target in np.flatnonzero(self.learned).tolist():
            groups.setdefault(measured[:, target].tobytes(), []).append(target)
        return tuple(self._search(np.array(targets)) for targets in groups.values())

    def _search(self, targets: NDArray[np.int64]) -> "Search":
        rows = self.labels[:, targets[0]] != MISSING
        labels = self.labels[np.ix_(rows, targets)].astype(np.float64)
        return Search(NeighbourIndex.of(self.vectors[rows]), labels, targets)

    def tensors(self) -> dict[str, NDArray[np.float32]]:
        """`vectors`, `labels` and `rates`."""
        return {"vectors": self.vectors, "labels": self.labels, "rates": self.rates}

    @classmethod
    def from_tensors(cls, tensors: Tensors, *, rows: int, width: int, targets: int) -> "Memory":
        """The memory of `tensors`.

        Raises:
            CorruptError: They are incomplete, of another shape, or no labels.
        """
        shapes = {"vectors": (rows, width), "labels": (rows, targets), "rates": (targets,)}
        vectors, labels, rates = take_tensors(tensors, shapes)
        if not ((labels == MISSING) | ((labels >= 0) & (labels <= 1))).all():
            raise CorruptError(
                f"the predictor's labels must be in [0, 1], or {MISSING} where missing; "
                "copy or make the router again"
            )
        check_rates(rates)
        return cls(vectors, labels, rates)


@final
@dataclass(frozen=True, eq=False)
class Search:
    """Targets that were measured on the same rows.

    Attributes:
        index: These rows.
        labels: Of these rows and targets.
        targets: Which of all targets.
    """

    index: NeighbourIndex
    labels: Float64[NDArray[np.float64], "row target"]
    targets: NDArray[np.int64]

    def nearest(self, features: Features, k: int) -> tuple[Distances, Votes]:
        """The distances and labels of the k nearest rows, or of all where there are fewer."""
        distances, rows = self.index.search(features, min(k, len(self.labels)))
        return distances, self.labels[rows]
