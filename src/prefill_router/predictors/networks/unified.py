"""`unified_multitask`: one network for all targets and the difficulty (section 3.2).

It is adapted from MIRT-Router (Song and others, 2025), as the paper's baseline of that name is.
"""

from dataclasses import dataclass
from typing import ClassVar, final

import numpy as np
from jaxtyping import Float64
from numpy.typing import NDArray

from prefill_router.predictors.base import Examples, Features, PredictorFit
from prefill_router.predictors.networks import ensemble
from prefill_router.predictors.networks.ensemble import (
    CORRECTNESS,
    DIFFICULTY,
    Arrays,
    Logits,
    MultiTaskConfig,
    NetworkEnsemble,
    Rows,
)
from prefill_router.predictors.registry import PredictorEntry
from prefill_router.progress import Progress
from prefill_router.serialization import Shape


@final
@dataclass(frozen=True, eq=False)
class UnifiedNetwork(NetworkEnsemble):
    """One network with a head for each target's correctness and one for the difficulty."""

    kind: ClassVar[str] = "unified_multitask"

    @staticmethod
    def shapes(widths: Shape, targets: int) -> dict[str, Shape]:
        """The names and shapes of the arrays."""
        heads = [(CORRECTNESS, targets), (DIFFICULTY, 1)]
        return ensemble.perceptron_shapes(widths, heads, side_by_side=1)

    def _logits(self, arrays: Arrays, rows: Rows) -> Logits:
        return ensemble.perceptron_outputs(arrays, rows, len(self.widths) - 1, CORRECTNESS)

    def difficulty(self, features: Features) -> Float64[NDArray[np.float64], " query"]:
        """The share of targets that answers each query wrongly, as it is predicted."""

        def head(arrays: Arrays, rows: Rows) -> Logits:
            return ensemble.perceptron_outputs(arrays, rows, len(self.widths) - 1, DIFFICULTY)

        return self._mean(features, head, 1)[:, 0]


@final
@dataclass(frozen=True, kw_only=True)
class UnifiedConfig(MultiTaskConfig):
    """Options of one multi-task network for all targets."""

    hidden: tuple[int, ...] = (256, 128)
    learning_rate: float = 5e-4
    dropout: float = 0.3
    difficulty_weight: float = 0.3

    def fit(
        self, examples: Examples, *, seed: int = 0, progress: Progress | None = None
    ) -> PredictorFit:
        """Fit on train rows; it stops when the correctness of all targets together is learned."""
        from prefill_router.predictors.networks.architectures import Heads
        from prefill_router.predictors.networks.fit import fit_ensemble

        widths = (examples.features.shape[1], *self.hidden)
        return fit_ensemble(
            examples,
            self,
            UnifiedNetwork,
            lambda material: Heads(widths, material.rates[None], difficulty=True),
            inner=tuple(self.hidden),
            difficulty_weight=self.difficulty_weight,
            seed=seed,
            progress=progress,
        )


ENTRY = PredictorEntry(
    UnifiedConfig, UnifiedNetwork, "Unified multi-task", "MIRT-Router, Song and others 2025"
)
