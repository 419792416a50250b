"""kNN score: the mean of the nearest train queries' labels, weighted by how near they are.

sum_i w_i y_i / sum_i w_i over a target's k nearest measured queries (Li 2025, "Rethinking
Predictive Modeling for LLM Routing"; section 3.2 of the paper, with inverse distances).
"""

import math
from dataclasses import dataclass
from typing import ClassVar, final

from pydantic import PositiveFloat, PositiveInt

from prefill_router.errors import ConfigError
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
    KERNELS,
    Kernel,
    NeighbourRows,
    check_neighbours,
    neighbour_weights,
    neighbours_mean,
)
from prefill_router.predictors.registry import PredictorEntry
from prefill_router.progress import Progress


@final
@dataclass(frozen=True, eq=False)
class KnnScore(Predictor):
    """The weighted mean of labels.

    Attributes:
        k: How many neighbours; all rows where there are fewer.
        kernel: How their weights fall with the distance.
        bandwidth: A multiple of the distance to the last of them.
        memory: The train rows.
    """

    kind: ClassVar[str] = "knn_score"
    k: PositiveInt
    kernel: Kernel
    bandwidth: PositiveFloat
    memory: NeighbourRows

    @property
    def width(self) -> int:
        """How many features it was fitted on."""
        return self.memory.width

    def correctness(self, features: Features) -> Correctness:
        """The weighted mean of the labels of each target's k nearest measured rows.

        Raises:
            MissingExtraError: FAISS isn't installed.
        """
        return neighbours_mean(
            self.memory,
            features,
            k=self.k,
            weigh=lambda d: neighbour_weights(d, self.kernel, bandwidth=self.bandwidth),
        )


@final
@dataclass(frozen=True, kw_only=True)
class KnnScoreConfig(PredictorConfig):
    """Options of the weighted score.

    Attributes:
        k: How many neighbours.
        kernel: How their weights fall with the distance (`knn.weights.neighbour_weights`).
        bandwidth: A multiple of the distance to the last of them; less is more local.
    """

    k: int = 100
    kernel: Kernel = "inverse"
    bandwidth: float = 1.0

    def __post_init__(self) -> None:
        check_neighbours(self.k)
        if self.kernel not in KERNELS:
            raise ConfigError(f"kernel is {self.kernel!r}; it must be one of {list(KERNELS)}")
        if not 0 < self.bandwidth < math.inf:
            raise ConfigError(f"bandwidth is {self.bandwidth}; it must be positive and finite")

    def fit(
        self, examples: Examples, *, seed: int = 0, progress: Progress | None = None
    ) -> PredictorFit:
        """Keep the train rows; soft labels count as they are."""
        del seed, progress
        memory = NeighbourRows.of(examples)
        predictor = KnnScore(examples.targets, self.k, self.kernel, float(self.bandwidth), memory)
        return PredictorFit(
            predictor, (*examples.target_notes(), *left_out_note(examples, memory.rows))
        )


ENTRY = PredictorEntry(
    KnnScoreConfig,
    KnnScore,
    "kNN score",
    "Li 2025, Rethinking Predictive Modeling for LLM Routing",
)
