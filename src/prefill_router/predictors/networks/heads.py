"""Networks of hidden layers with heads, while they train."""

from dataclasses import dataclass
from typing import final

import numpy as np
import torch
from jaxtyping import Float64
from numpy.typing import NDArray
from scipy.special import logit

from prefill_router.predictors.networks.architecture import (
    Architecture,
    Drop,
    Outputs,
    Parameters,
    Rows,
    apply,
    hidden_layers,
    linear,
    through_hidden,
)
from prefill_router.predictors.networks.perceptron import CORRECTNESS, DIFFICULTY


@final
@dataclass(frozen=True, eq=False)
class Heads(Architecture):
    """Hidden layers and heads.

    Attributes:
        widths: Of the features and each hidden layer.
        rates: The base rates of the targets that each network knows; the heads begin there.
        difficulty: Whether there is a head for it.
    """

    widths: tuple[int, ...]
    rates: Float64[NDArray[np.float64], "network target"]
    difficulty: bool

    @property
    def networks(self) -> int:
        """How many are trained side by side."""
        return len(self.rates)

    def initial(self, draw: torch.Generator) -> Parameters:
        """As torch's Linear begins; only the outputs' biases are the logits of the base rates."""
        networks, targets = self.rates.shape
        found = hidden_layers(draw, networks, self.widths)
        heads = [(CORRECTNESS, targets)] + [(DIFFICULTY, 1)] * self.difficulty
        for name, width in heads:
            weight, bias = linear(draw, networks, self.widths[-1], width)
            found[f"weight.{name}"], found[f"bias.{name}"] = weight, bias
        biases = torch.from_numpy(logit(self.rates)).float()
        found[f"bias.{CORRECTNESS}"] = biases[:, None]
        return found

    def outputs(self, parameters: Parameters, rows: Rows, drop: Drop) -> Outputs:
        """The logits of the heads."""
        units = through_hidden(parameters, rows, len(self.widths) - 1, drop)
        correct = apply(parameters, units, CORRECTNESS)
        if not self.difficulty:
            return Outputs(correct)
        return Outputs(correct, apply(parameters, units, DIFFICULTY)[..., 0])
