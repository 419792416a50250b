"""One network for all targets: hidden layers, and heads for correctness and difficulty.

`unified_multitask` is adapted from MIRT-Router (Song and others, 2025), the paper's baseline of
that name. Other networks of hidden layers with such heads share its base classes.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, final

import numpy as np
from jaxtyping import Float64
from numpy.typing import NDArray

from prefill_router.options import Dropout, NotNegative, Positive, Widths
from prefill_router.predictors.base import Features, PredictorEntry
from prefill_router.predictors.networks.ensemble import NetworkConfig, NetworkEnsemble, Rates
from prefill_router.predictors.networks.network import (
    CORRECTNESS,
    DIFFICULTY,
    Arrays,
    Logits,
    Network,
    Rows,
)
from prefill_router.serialization import Shape

if TYPE_CHECKING:
    from prefill_router.predictors.networks.architectures import Architecture


@dataclass(frozen=True, eq=False)
class Perceptrons(NetworkEnsemble):
    """Hidden layers, then a head for the correctness, and one for the difficulty if it is learned.

    Attributes:
        shared: Whether one network serves all targets; otherwise each has its own.
        has_difficulty: Whether there is a head for the difficulty.
    """

    shared: ClassVar[bool] = False
    has_difficulty: ClassVar[bool] = False

    @classmethod
    def describe(cls, widths: Shape, targets: int) -> Network:
        """One network for all targets, or one for each, side by side."""
        side_by_side, outputs = (1, targets) if cls.shared else (targets, 1)
        heads = {CORRECTNESS: outputs} | ({DIFFICULTY: 1} if cls.has_difficulty else {})
        return Network(widths, heads, side_by_side)

    def _logits(self, arrays: Arrays, rows: Rows) -> Logits:
        return self.network.outputs(arrays, rows, CORRECTNESS)


@dataclass(frozen=True, eq=False)
class DifficultyNetworks(Perceptrons):
    """Networks that also predict how difficult a query is."""

    has_difficulty: ClassVar[bool] = True

    def difficulty(self, features: Features) -> Float64[NDArray[np.float64], " query"]:
        """The predicted share of targets that answer each query wrongly, mean over networks."""

        def head(arrays: Arrays, rows: Rows) -> Logits:
            return self.network.outputs(arrays, rows, DIFFICULTY)

        each = self._mean_sigmoid(features, head, self.network.side_by_side)
        difficulty: NDArray[np.float64] = each.mean(axis=1)
        return difficulty


@final
@dataclass(frozen=True, eq=False)
class UnifiedNetwork(DifficultyNetworks):
    """One network with a head for each target's correctness and one for the difficulty."""

    kind: ClassVar[str] = "unified_multitask"
    shared: ClassVar[bool] = True


@dataclass(frozen=True, kw_only=True)
class PerceptronConfig(NetworkConfig):
    """Options of networks of hidden layers; early stopping uses the loss of the correctness.

    Attributes:
        hidden: The widths of the hidden layers, at least one.
    """

    predictor: ClassVar[type[Perceptrons]]
    hidden: Widths = (32,)
    dropout: Dropout = 0.5

    @property
    def inner(self) -> tuple[int, ...]:
        """The widths of the hidden layers."""
        return tuple(self.hidden)

    @property
    def difficulty(self) -> float | None:
        """The weight of the difficulty's loss; None where it isn't learned."""
        return None

    @property
    def _pairs(self) -> float:
        return 0.0

    def architecture(self, network: Network, rates: Rates) -> "Architecture":
        """The training of a seed."""
        from prefill_router.predictors.networks.architectures import Heads

        each = rates.reshape(network.side_by_side, -1)
        return Heads(network, each, self.difficulty, self._pairs)


@dataclass(frozen=True, kw_only=True)
class MultiTaskConfig(PerceptronConfig):
    """Options of networks that also predict how difficult a query is.

    Attributes:
        difficulty_weight: The weight of the difficulty's loss, where that of the correctness has 1.
    """

    difficulty_weight: NotNegative = 1.0

    @property
    def difficulty(self) -> float | None:
        """The weight of the difficulty's loss."""
        return self.difficulty_weight


@final
@dataclass(frozen=True, kw_only=True)
class UnifiedConfig(MultiTaskConfig):
    """Options of one multi-task network for all targets.

    Attributes:
        pairs: The weight of a third loss, per pair of a target that was right and one that was
            wrong on the same query, of the difference of their logits.
    """

    predictor: ClassVar[type[Perceptrons]] = UnifiedNetwork
    hidden: Widths = (256, 128)
    learning_rate: Positive = 5e-4
    dropout: Dropout = 0.3
    difficulty_weight: NotNegative = 0.3
    pairs: NotNegative = 0.0

    @property
    def _pairs(self) -> float:
        return self.pairs


ENTRY = PredictorEntry(
    UnifiedConfig, UnifiedNetwork, "Unified multi-task", "MIRT-Router, Song and others 2025"
)
