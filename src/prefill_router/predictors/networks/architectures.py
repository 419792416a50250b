"""What networks are while they train: parameters by name, and what they make of rows.

Every parameter's first axis counts networks that are trained side by side on the same rows, each of
which stops on its own: one per target, or one for all targets.

There are networks of hidden layers with heads; networks that join a vector of the query to a vector
of each target (matrix factorisation, item response theory); and the matrix factorisation that
learns from pairs.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import final

import numpy as np
import torch
from jaxtyping import Float, Float32, Float64
from numpy.typing import NDArray
from scipy.optimize import minimize
from scipy.special import expit, logit
from torch import Tensor
from torch.nn.functional import normalize, softplus

from prefill_router.predictors.networks.ensemble import CORRECTNESS, DIFFICULTY

Parameters = dict[str, Tensor]
Rows = Float32[Tensor, "row feature"]
Drop = Callable[[Tensor], Tensor]


@final
@dataclass(frozen=True, eq=False)
class Outputs:
    """What networks say of rows.

    Attributes:
        correct: Logits of a right answer; one network per target has one column.
        difficulty: Logits of the difficulty, where there is a head for it.
        preference: Where they learn from pairs: the difference between two targets' numbers is the
            logit of the one being right where the other is wrong.
    """

    correct: Float[Tensor, "network row target"]
    difficulty: Float[Tensor, "network row"] | None = None
    preference: Float[Tensor, "network row target"] | None = None


class Architecture(ABC):
    """How networks of one kind begin, and how they compute."""

    @property
    @abstractmethod
    def networks(self) -> int:
        """How many are trained side by side."""

    @abstractmethod
    def initial(self, draw: torch.Generator) -> Parameters:
        """First values; those whose name starts with `weight` decay."""

    @abstractmethod
    def outputs(self, parameters: Parameters, rows: Rows, drop: Drop) -> Outputs:
        """What they make of rows; `drop` is applied to the units of hidden layers."""

    def settled(
        self,
        parameters: Parameters,
        rows: Rows,  # noqa: ARG002
        labels: Tensor,  # noqa: ARG002
        weights: Tensor,  # noqa: ARG002
    ) -> Parameters:
        """The trained parameters, with what is chosen on the rows held out; as they are by default.

        Args:
            parameters: Of the best epoch.
            rows: The rows held out.
            labels: In [0, 1], [network, row, target].
            weights: What each label counts; 0 where missing.
        """
        return parameters


def linear(draw: torch.Generator, networks: int, before: int, after: int) -> tuple[Tensor, Tensor]:
    """Weights and biases as torch's Linear draws them: uniform within 1 / sqrt(inputs)."""
    bound = 1 / math.sqrt(before)
    weight = torch.empty(networks, before, after).uniform_(-bound, bound, generator=draw)
    return weight, torch.empty(networks, 1, after).uniform_(-bound, bound, generator=draw)


def hidden_layers(draw: torch.Generator, networks: int, widths: Sequence[int]) -> dict[str, Tensor]:
    """`weight.0`, `bias.0`, ... of hidden layers; the first width is that of the features."""
    found: Parameters = {}
    for i, (before, after) in enumerate(pairwise(widths)):
        found[f"weight.{i}"], found[f"bias.{i}"] = linear(draw, networks, before, after)
    return found


def through_hidden(parameters: Parameters, rows: Tensor, layers: int, drop: Drop) -> Tensor:
    """The units of the last hidden layer; the rows where there is none, [network, row, unit]."""
    units = rows
    for i in range(layers):
        units = drop(apply(parameters, units, f"{i}").relu())
    return units


def apply(parameters: Parameters, units: Tensor, name: str) -> Tensor:
    """`units @ weight + bias` of one layer."""
    return units @ parameters[f"weight.{name}"] + parameters[f"bias.{name}"]


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


Numbers = Float64[NDArray[np.float64], " parameter"]
Cells = Float64[NDArray[np.float64], "row target"]


@final
@dataclass(frozen=True, eq=False)
class Preferences(Architecture):
    """See `pairwise`.

    Attributes:
        width: How many features there are.
        dimensions: Of the vectors.
        rates: The targets' base rates; the level begins at their mean.
    """

    width: int
    dimensions: int
    rates: Float64[NDArray[np.float64], " target"]

    @property
    def networks(self) -> int:
        """One for all targets."""
        return 1

    def initial(self, draw: torch.Generator) -> Parameters:
        """What is multiplied by features is drawn as torch's Linear is."""
        weight, bias = linear(draw, 1, self.width, self.dimensions)
        level, _ = linear(draw, 1, self.width, 1)
        mean = torch.full((1, 1, 1), float(logit(self.rates.mean())))
        target = torch.empty(1, len(self.rates), self.dimensions).normal_(generator=draw)
        return {
            "weight.query": weight,
            "bias.query": bias,
            "target": target,
            "combine": torch.ones(1, 1, self.dimensions),
            "weight.level": level,
            "bias.level": mean,
            "slope": torch.ones(1, 1, 1),
            "offset": torch.zeros(1, 1, len(self.rates)),
        }

    def outputs(self, parameters: Parameters, rows: Rows, drop: Drop) -> Outputs:
        """The level learns from labels, the rest from pairs alone."""
        level, ahead = self._parts(parameters, rows, drop)
        return Outputs(level.expand_as(ahead), preference=ahead)

    def _parts(self, parameters: Parameters, rows: Rows, drop: Drop) -> tuple[Tensor, Tensor]:
        query = drop(apply(parameters, rows, "query"))
        vectors = normalize(parameters["target"], dim=-1)
        scores = query * parameters["combine"] @ vectors.mT
        return apply(parameters, rows, "level"), scores - scores.mean(-1, keepdim=True)

    def settled(
        self, parameters: Parameters, rows: Rows, labels: Tensor, weights: Tensor
    ) -> Parameters:
        """With the scale of level and scores, and each target's offset, that suit held-out rows."""
        level, ahead = self._parts(parameters, rows, lambda units: units)
        found = combine(
            *(part[0].numpy().astype(np.float64) for part in (level, ahead, labels, weights))
        )
        return parameters | {
            "weight.level": parameters["weight.level"] * float(found[0]),
            "bias.level": parameters["bias.level"] * float(found[0]),
            "slope": torch.full((1, 1, 1), float(found[1])),
            "offset": torch.from_numpy(found[2:]).float().reshape(1, 1, -1),
        }


def combine(
    level: Float64[NDArray[np.float64], "row 1"], ahead: Cells, labels: Cells, weights: Cells
) -> Numbers:
    """The scale of the level, that of the scores, and each target's offset.

    They have the least cross-entropy, with a penalty of one label's weight for leaving 1, 1 and 0,
    so that few labels change little. Neither scale is negative.

    Args:
        level: Logits that all targets share.
        ahead: How far each target's score is ahead of the mean of all.
        labels: In [0, 1].
        weights: What each label counts; 0 where missing.
    """
    first = np.concatenate([[1.0, 1.0], np.zeros(ahead.shape[1])])

    def loss(now: Numbers) -> tuple[float, Numbers]:
        logits = now[0] * level + now[1] * ahead + now[2:]
        each = np.logaddexp(0, logits) - labels * logits
        miss = weights * (expit(logits) - labels)
        slopes = [(miss * level).sum(), (miss * ahead).sum()]
        gradient = np.concatenate([slopes, miss.sum(axis=0)]) + now - first
        return float((weights * each).sum() + np.square(now - first).sum() / 2), gradient

    bounds = [(0, None), (0, None), *[(None, None)] * ahead.shape[1]]
    found: Numbers = minimize(loss, first, jac=True, method="L-BFGS-B", bounds=bounds).x
    return found
