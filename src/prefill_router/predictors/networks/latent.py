"""Networks that join a vector of the query to a vector of each target, while they train."""

from dataclasses import dataclass
from typing import final

import numpy as np
import torch
from jaxtyping import Float64
from numpy.typing import NDArray
from scipy.special import logit
from torch.nn.functional import softplus

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

_SPREAD = 0.1  # of what is drawn around the first values
_UNIT = float(np.log(np.e - 1))  # where softplus is 1


@final
@dataclass(frozen=True, eq=False)
class Factors(Architecture):
    """Matrix factorisation; see `factorisation`.

    Attributes:
        width: How many features there are.
        dimensions: Of the vectors.
        rates: The targets' base rates, which it begins with.
    """

    width: int
    dimensions: int
    rates: Float64[NDArray[np.float64], " target"]

    @property
    def networks(self) -> int:
        """One for all targets."""
        return 1

    def initial(self, draw: torch.Generator) -> Parameters:
        """The first dimension holds the base rates, the others are drawn."""
        weight, bias = linear(draw, 1, self.width, self.dimensions)
        target = torch.empty(1, len(self.rates), self.dimensions).normal_(generator=draw)
        combine = torch.full((1, 1, self.dimensions), self.dimensions**-0.5)
        weight[..., 0], bias[..., 0], combine[..., 0] = 0, 1, 1
        target[..., 0] = torch.from_numpy(logit(self.rates))
        return {"weight.query": weight, "bias.query": bias, "target": target, "combine": combine}

    def outputs(self, parameters: Parameters, rows: Rows, drop: Drop) -> Outputs:
        """The logits; the dimensions are what is dropped of."""
        query = drop(apply(parameters, rows, "query"))
        return Outputs(query * parameters["combine"] @ parameters["target"].mT)


@final
@dataclass(frozen=True, eq=False)
class Items(Architecture):
    """Item response theory; see `irt`.

    Attributes:
        widths: Of the features and of each hidden layer.
        dimensions: Of the abilities.
        rates: The targets' base rates, which it begins with.
    """

    widths: tuple[int, ...]
    dimensions: int
    rates: Float64[NDArray[np.float64], " target"]

    @property
    def networks(self) -> int:
        """One for all targets."""
        return 1

    def initial(self, draw: torch.Generator) -> Parameters:
        """Equal discriminations of 1, and abilities about those that the base rates tell."""
        found = hidden_layers(draw, 1, self.widths)
        one = _UNIT if self.dimensions == 1 else 1.0
        for name, count, first in (("discrimination", self.dimensions, one), ("difficulty", 1, 0)):
            found[f"weight.{name}"], _ = linear(draw, 1, self.widths[-1], count)
            found[f"bias.{name}"] = torch.full((1, 1, count), float(first))
        shares = torch.from_numpy(logit(self.rates)).float() / self.dimensions
        noise = torch.empty(1, len(shares), self.dimensions).normal_(generator=draw)
        found["ability"] = shares[:, None] + _SPREAD * noise * (self.dimensions > 1)
        return found

    def outputs(self, parameters: Parameters, rows: Rows, drop: Drop) -> Outputs:
        """The logits of a right answer; the difficulty has no label of its own."""
        units = through_hidden(parameters, rows, len(self.widths) - 1, drop)
        matters = apply(parameters, units, "discrimination")
        if self.dimensions == 1:
            matters = softplus(matters)
        hard = apply(parameters, units, "difficulty")
        return Outputs(matters @ parameters["ability"].mT - hard)
