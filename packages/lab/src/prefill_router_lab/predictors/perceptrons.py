"""One small network of hidden layers per target.

`mlp`: the paper's plain MLP. `multitask`: the same, with the query's difficulty as a second task.
"""

from dataclasses import dataclass
from typing import ClassVar, final

from prefill_router.options import Count
from prefill_router.predictors import PredictorEntry
from prefill_router.predictors.networks import (
    DifficultyNetworks,
    MultiTaskConfig,
    PerceptronConfig,
    Perceptrons,
)


@final
@dataclass(frozen=True, eq=False)
class TargetNetworks(Perceptrons):
    """A separate network for each target."""

    kind: ClassVar[str] = "mlp"


@final
@dataclass(frozen=True, eq=False)
class MultiTaskNetworks(DifficultyNetworks):
    """A separate network for each target, with heads for correctness and difficulty."""

    kind: ClassVar[str] = "multitask"


@final
@dataclass(frozen=True, kw_only=True)
class MLPConfig(PerceptronConfig):
    """Options of one small network per target."""

    predictor: ClassVar[type[Perceptrons]] = TargetNetworks
    seeds: Count = 3


@final
@dataclass(frozen=True, kw_only=True)
class TargetMultiTaskConfig(MultiTaskConfig):
    """Options of one multi-task network per target."""

    predictor: ClassVar[type[Perceptrons]] = MultiTaskNetworks
    seeds: Count = 3


PAPER = "section 3.2 of the paper"
MLP = PredictorEntry(MLPConfig, TargetNetworks, "MLP", PAPER)
MULTITASK = PredictorEntry(TargetMultiTaskConfig, MultiTaskNetworks, "Per-target multi-task", PAPER)
