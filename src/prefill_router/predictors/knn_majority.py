"""kNN majority vote: the share of the nearest train queries that a target got right.

A router by majority asks the target with the most votes, so the share is its probability
(Li 2025, "Rethinking Predictive Modeling for LLM Routing"; section 3.2 of the paper, k = 25).
"""

from dataclasses import dataclass, replace
from typing import ClassVar, final

from pydantic import PositiveInt

from prefill_router.data import binary
from prefill_router.predictors.base import (
    Correctness,
    Examples,
    Features,
    Predictor,
    PredictorConfig,
    PredictorFit,
    left_out_note,
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
        k: Neighbours that vote; all rows where there are fewer.
        memory: The train rows, with labels cut at 0.5.
    """

    kind: ClassVar[str] = "knn_majority"
    k: PositiveInt
    memory: NeighbourRows

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
