"""kNN majority vote: the share of the nearest train queries that a target got right.

A router by majority asks the target with the most votes, so the share is its probability
(Li 2025, "Rethinking Predictive Modeling for LLM Routing"; section 3.2 of the paper, k = 25).
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar, final

from numpy.typing import NDArray
from pydantic import PositiveInt

from prefill_router.data import binary
from prefill_router.predictors.base import (
    Correctness,
    Examples,
    Features,
    Predictor,
    PredictorConfig,
    PredictorFit,
    SavedPredictor,
    Tensors,
    left_out_note,
    read_saved,
)
from prefill_router.predictors.knn import (
    NeighbourRows,
    check_neighbours,
    neighbour_weights,
    neighbours_mean,
)
from prefill_router.predictors.registry import PredictorEntry
from prefill_router.progress import Progress


@final
@dataclass(frozen=True, eq=False)
class KnnMajority(Predictor):
    """The share of votes.

    Attributes:
        names: The targets' names.
        k: Neighbours that vote; all rows where there are fewer.
        memory: The train rows, with labels cut at 0.5.
    """

    kind: ClassVar[str] = "knn_majority"
    names: tuple[str, ...]
    k: int
    memory: NeighbourRows

    @property
    def targets(self) -> tuple[str, ...]:
        """The targets' names, in the order of the result's columns."""
        return self.names

    @property
    def width(self) -> int:
        """How many features it was fitted on."""
        return self.memory.width

    def correctness(self, features: Features) -> Correctness:
        """The share of each target's k nearest measured rows that it got right.

        Raises:
            MissingExtraError: FAISS isn't installed.
        """
        return neighbours_mean(
            self.memory, features, k=self.k, weigh=lambda d: neighbour_weights(d, "uniform")
        )

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return {
            "kind": self.kind,
            "targets": list(self.names),
            "width": self.width,
            "k": self.k,
            "rows": self.memory.rows,
        }

    def tensors(self) -> dict[str, NDArray[Any]]:
        """Those of the memory."""
        return dict(self.memory.tensors())

    @classmethod
    def from_dict(cls, config: Mapping[str, Any], tensors: Tensors) -> "KnnMajority":
        """The predictor of `to_dict` and `tensors`, checked.

        Raises:
            CorruptError: They are incomplete or contradict each other.
        """
        saved = read_saved(_SavedKnnMajority, config, kind=cls.kind)
        memory = NeighbourRows.from_tensors(
            tensors, rows=saved.rows, width=saved.width, targets=len(saved.targets)
        )
        return cls(tuple(saved.targets), saved.k, memory)


class _SavedKnnMajority(SavedPredictor):
    k: PositiveInt
    rows: PositiveInt


@final
@dataclass(frozen=True, kw_only=True)
class KnnMajorityConfig(PredictorConfig):
    """Options of the majority vote.

    Attributes:
        k: Neighbours that vote.
    """

    k: int = 25

    def __post_init__(self) -> None:
        check_neighbours(self.k)

    def fit(
        self, examples: Examples, *, seed: int = 0, progress: Progress | None = None
    ) -> PredictorFit:
        """Keep the train rows; soft labels are cut at 0.5, since a vote is for or against."""
        del seed, progress
        votes = replace(examples, correct=binary(examples.correct))
        memory = NeighbourRows.of(votes)
        predictor = KnnMajority(examples.targets, self.k, memory)
        return PredictorFit(predictor, (*votes.target_notes(), *left_out_note(votes, memory.rows)))


ENTRY = PredictorEntry(
    KnnMajorityConfig,
    KnnMajority,
    "kNN majority vote",
    "Li 2025, Rethinking Predictive Modeling for LLM Routing",
)
