"""`multitask`: one network per target that learns how difficult a query is, too (section 3.2)."""

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
class MultiTaskNetworks(NetworkEnsemble):
    """A network of its own for each target, with a head for the difficulty beside its own."""

    kind: ClassVar[str] = "multitask"

    @staticmethod
    def shapes(widths: Shape, targets: int) -> dict[str, Shape]:
        """The names and shapes of the arrays."""
        heads = [(CORRECTNESS, 1), (DIFFICULTY, 1)]
        return ensemble.perceptron_shapes(widths, heads, side_by_side=targets)

    def _logits(self, arrays: Arrays, rows: Rows) -> Logits:
        return ensemble.perceptron_outputs(arrays, rows, len(self.widths) - 1, CORRECTNESS)

    def difficulty(self, features: Features) -> Float64[NDArray[np.float64], " query"]:
        """The share of targets that answers each query wrongly, as all networks say on average."""

        def head(arrays: Arrays, rows: Rows) -> Logits:
            return ensemble.perceptron_outputs(arrays, rows, len(self.widths) - 1, DIFFICULTY)

        found: NDArray[np.float64] = self._mean(features, head, len(self.learned)).mean(axis=1)
        return found


@final
@dataclass(frozen=True, kw_only=True)
class TargetMultiTaskConfig(MultiTaskConfig):
    """Options of one multi-task network per target."""

    seeds: int = 3

    def fit(
        self, examples: Examples, *, seed: int = 0, progress: Progress | None = None
    ) -> PredictorFit:
        """Fit on train rows; each target's network stops when its own correctness is learned."""
        from prefill_router.predictors.networks.architectures import Heads
        from prefill_router.predictors.networks.fit import fit_ensemble

        widths = (examples.features.shape[1], *self.hidden)
        return fit_ensemble(
            examples,
            self,
            MultiTaskNetworks,
            lambda material: Heads(widths, material.rates[:, None], difficulty=True),
            inner=tuple(self.hidden),
            difficulty_weight=self.difficulty_weight,
            seed=seed,
            progress=progress,
        )


ENTRY = PredictorEntry(
    TargetMultiTaskConfig, MultiTaskNetworks, "Per-target multi-task", "section 3.2 of the paper"
)
