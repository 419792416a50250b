"""How networks are trained, by kind: initialisation, forward pass and gradients.

Every parameter's first axis is the networks that are trained side by side on the same rows, each
with its own early stopping: one per target, or one for all targets.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float, Float64
from numpy.typing import NDArray
from scipy.special import logit

from prefill_router.predictors.networks.layers import Pass
from prefill_router.predictors.networks.losses import NetworkLabels, Outputs, Slopes
from prefill_router.predictors.networks.network import CORRECTNESS, DIFFICULTY, Network
from prefill_router.predictors.training import Draws

Parameters = dict[str, NDArray[Any]]
Rows = Float[NDArray[np.floating], "row feature"]
Backward = Callable[[Slopes], None]


@dataclass(frozen=True, eq=False)
class Architecture(ABC):
    """The initialisation, forward pass and gradients of networks of one kind.

    Attributes:
        network: The layers; its parallel networks are trained side by side.
        rates: The base rates of the targets, from which biases are initialised.
    """

    network: Network
    rates: Float64[NDArray[np.float64], "*_ target"]

    @abstractmethod
    def initial(self, draws: Draws) -> Parameters:
        """Initial parameters; AdamW's decay applies to names that start with `weight`."""

    def _draw_layers(self, draws: Draws) -> Parameters:
        """Weights and biases as torch's Linear begins: uniform within 1 / sqrt(inputs)."""
        parameters: Parameters = {}
        for layer in self.network.layers:
            for name in (f"weight.{layer.name}", f"bias.{layer.name}"):
                shape = self.network.shapes[name]
                parameters[name] = draws.uniform(shape, bound=1 / math.sqrt(layer.inputs))
        return parameters

    @abstractmethod
    def forward(self, step: Pass, rows: Rows) -> tuple[Outputs, Backward]:
        """The outputs, and what puts the gradients of a loss with given slopes in `step`."""

    def fit_on_validation(
        self,
        parameters: Parameters,
        rows: Rows,  # noqa: ARG002
        labels: NetworkLabels,  # noqa: ARG002
    ) -> Parameters:
        """The trained parameters, with those fitted on the held-out rows; by default unchanged.

        Args:
            parameters: The parameters of the best epoch.
            rows: The held-out rows.
            labels: Their labels.
        """
        return parameters


@dataclass(frozen=True, eq=False)
class Heads(Architecture):
    """Hidden layers and heads.

    Attributes:
        difficulty: The weight of the difficulty's loss; None where there is no head for it.
        pairs: The weight of the loss of pairs of targets, of the difference of their logits.
    """

    difficulty: float | None = None
    pairs: float = 0.0

    def initial(self, draws: Draws) -> Parameters:
        """Initialised like torch's Linear, but the outputs' biases are logits of the base rates."""
        biases = logit(self.rates).astype(np.float32)
        return self._draw_layers(draws) | {f"bias.{CORRECTNESS}": biases[:, None]}

    def forward(self, step: Pass, rows: Rows) -> tuple[Outputs, Backward]:
        """The logits of the heads."""
        units = step.hidden(rows, self.network)
        correct = step.linear(units[-1], CORRECTNESS)
        preference = correct if self.pairs else None
        hard = None if self.difficulty is None else step.linear(units[-1], DIFFICULTY)

        def backward(slopes: Slopes) -> None:
            total = slopes.correct
            if slopes.preference is not None:
                total = total + slopes.preference
            back = step.linear_back(units[-1], CORRECTNESS, total)
            if slopes.difficulty is not None:
                back += step.linear_back(units[-1], DIFFICULTY, slopes.difficulty[..., None])
            step.hidden_back(units, back)

        if hard is None or self.difficulty is None:
            outputs = Outputs(correct, preference=preference, preference_weight=self.pairs)
        else:
            outputs = Outputs(correct, hard[..., 0], self.difficulty, preference, self.pairs)
        return outputs, backward
