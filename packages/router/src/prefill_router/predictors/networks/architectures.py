"""The architectures of networks in training: initialisation and forward pass.

Every parameter's first axis is the networks that are trained side by side on the same rows, each
with its own early stopping: one per target, or one for all targets.

There are networks of hidden layers with heads; networks that combine a vector of the query with a
vector of each target (matrix factorisation, item response theory); and the matrix factorisation
that learns from pairs.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import final

import numpy as np
import torch
from jaxtyping import Float, Float32, Float64
from numpy.typing import NDArray
from scipy.special import logit
from torch import Tensor
from torch.nn.functional import normalize, softplus

from prefill_router.predictors.networks.ensemble import CORRECTNESS, DIFFICULTY, DISCRIMINATION
from prefill_router.serialization import Shape
from prefill_router.statistics import shrunken_logistic

Parameters = dict[str, Tensor]
Rows = Float32[Tensor, "row feature"]
Drop = Callable[[Tensor], Tensor]


@final
@dataclass(frozen=True, eq=False)
class Outputs:
    """The outputs of networks for some rows.

    Attributes:
        correct: Logits of a right answer; with one network per target, each has one column.
        difficulty: Logits of the difficulty, where there is a head for it.
        difficulty_weight: The weight of its loss relative to that of the correctness.
        preference: Scores for learning from pairs: the difference between two targets' scores is
            the logit of one being right given that exactly one of them is.
        preference_weight: The weight of the loss of pairs, where that of the correctness has 1.
    """

    correct: Float[Tensor, "network row target"]
    difficulty: Float[Tensor, "network row"] | None = None
    difficulty_weight: float = 0.0
    preference: Float[Tensor, "network row target"] | None = None
    preference_weight: float = 1.0


@dataclass(frozen=True, eq=False)
class Architecture(ABC):
    """The initialisation and forward pass of networks of one kind.

    Attributes:
        shapes: Shapes of the parameters of a seed, by name; see `NetworkEnsemble.shapes`.
        rates: The base rates of the targets, from which biases are initialised.
    """

    shapes: Mapping[str, Shape]
    rates: Float64[NDArray[np.float64], "*_ target"]

    @property
    def networks(self) -> int:
        """The number of networks trained side by side."""
        return next(iter(self.shapes.values()))[0]

    @abstractmethod
    def initial(self, draw: torch.Generator) -> Parameters:
        """Initial parameters; weight decay applies to names that start with `weight`."""

    def _layers(self, draw: torch.Generator) -> Parameters:
        """Weights and biases initialised like torch's Linear: uniform within 1 / sqrt(inputs)."""
        found: Parameters = {}
        for name in (name for name in self.shapes if name.startswith("weight.")):
            bound = 1 / math.sqrt(self.shapes[name][1])
            for part in (name, name.replace("weight.", "bias.")):
                found[part] = torch.empty(self.shapes[part])
                found[part].uniform_(-bound, bound, generator=draw)
        return found

    @abstractmethod
    def outputs(self, parameters: Parameters, rows: Rows, drop: Drop) -> Outputs:
        """The forward pass; `drop` is applied to the units of hidden layers."""

    def settled(
        self,
        parameters: Parameters,
        rows: Rows,  # noqa: ARG002
        labels: Tensor,  # noqa: ARG002
        weights: Tensor,  # noqa: ARG002
    ) -> Parameters:
        """The trained parameters, with those fitted on the held-out rows; by default unchanged.

        Args:
            parameters: The parameters of the best epoch.
            rows: The held-out rows.
            labels: In [0, 1], [network, row, target].
            weights: The weight of each label; 0 where missing.
        """
        return parameters


def through_hidden(parameters: Parameters, rows: Tensor, layers: int, drop: Drop) -> Tensor:
    """The units of the last hidden layer, or the rows if there is none, [network, row, unit]."""
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
        hidden: The number of hidden layers.
        difficulty: The weight of the difficulty's loss; None where there is no head for it.
        pairs: The weight of the loss of pairs of targets, of the difference of their logits.
    """

    hidden: int
    difficulty: float | None
    pairs: float = 0.0

    def initial(self, draw: torch.Generator) -> Parameters:
        """Initialised like torch's Linear, but the outputs' biases are logits of the base rates."""
        biases = torch.from_numpy(logit(self.rates)).float()
        return self._layers(draw) | {f"bias.{CORRECTNESS}": biases[:, None]}

    def outputs(self, parameters: Parameters, rows: Rows, drop: Drop) -> Outputs:
        """The logits of the heads."""
        units = through_hidden(parameters, rows, self.hidden, drop)
        correct = apply(parameters, units, CORRECTNESS)
        preference = correct if self.pairs else None
        if self.difficulty is None:
            return Outputs(correct, preference=preference, preference_weight=self.pairs)
        hard = apply(parameters, units, DIFFICULTY)[..., 0]
        return Outputs(correct, hard, self.difficulty, preference, self.pairs)


_SPREAD = 0.1  # standard deviation of the random part of initial values
_UNIT = float(np.log(np.e - 1))  # where softplus is 1


@final
@dataclass(frozen=True, eq=False)
class Factors(Architecture):
    """Matrix factorisation; see `perceptrons`."""

    def initial(self, draw: torch.Generator) -> Parameters:
        """The first dimension holds the base rates, the others are random."""
        found = self._layers(draw)
        target = torch.empty(self.shapes["target"]).normal_(generator=draw)
        combine = torch.full(self.shapes["combine"], target.shape[-1] ** -0.5)
        found["weight.query"][..., 0], found["bias.query"][..., 0], combine[..., 0] = 0, 1, 1
        target[..., 0] = torch.from_numpy(logit(self.rates))
        return found | {"target": target, "combine": combine}

    def outputs(self, parameters: Parameters, rows: Rows, drop: Drop) -> Outputs:
        """The logits; dropout applies to the dimensions."""
        query = drop(apply(parameters, rows, "query"))
        return Outputs(query * parameters["combine"] @ parameters["target"].mT)


@final
@dataclass(frozen=True, eq=False)
class Items(Architecture):
    """Item response theory; see `perceptrons`.

    Attributes:
        hidden: The number of hidden layers.
    """

    hidden: int

    @property
    def _dimensions(self) -> int:
        return self.shapes["ability"][-1]

    def initial(self, draw: torch.Generator) -> Parameters:
        """Discriminations of 1, and abilities near those that the base rates imply."""
        found, dimensions = self._layers(draw), self._dimensions
        one = _UNIT if dimensions == 1 else 1.0
        for name, first in ((DISCRIMINATION, one), (DIFFICULTY, 0.0)):
            found[f"bias.{name}"].fill_(first)
        shares = torch.from_numpy(logit(self.rates)).float() / dimensions
        noise = torch.empty(self.shapes["ability"]).normal_(generator=draw)
        return found | {"ability": shares[:, None] + _SPREAD * noise * (dimensions > 1)}

    def outputs(self, parameters: Parameters, rows: Rows, drop: Drop) -> Outputs:
        """The logits of a right answer; the difficulty has no label of its own."""
        units = through_hidden(parameters, rows, self.hidden, drop)
        matters = apply(parameters, units, DISCRIMINATION)
        if self._dimensions == 1:
            matters = softplus(matters)
        hard = apply(parameters, units, DIFFICULTY)
        return Outputs(matters @ parameters["ability"].mT - hard)


Numbers = Float64[NDArray[np.float64], " parameter"]
Cells = Float64[NDArray[np.float64], "row target"]


@final
@dataclass(frozen=True, eq=False)
class Preferences(Architecture):
    """Matrix factorisation on pairs; see `perceptrons`. The level begins at the mean rate."""

    def initial(self, draw: torch.Generator) -> Parameters:
        """The weights of features are initialised like torch's Linear."""
        found = self._layers(draw)
        found["bias.level"].fill_(float(logit(self.rates.mean())))
        shapes = self.shapes
        return found | {
            "target": torch.empty(shapes["target"]).normal_(generator=draw),
            "combine": torch.ones(shapes["combine"]),
            "slope": torch.ones(shapes["slope"]),
            "offset": torch.zeros(shapes["offset"]),
        }

    def outputs(self, parameters: Parameters, rows: Rows, drop: Drop) -> Outputs:
        """The outputs; the level learns from labels, the rest from pairs only."""
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
        """The parameters with scales and offsets fitted on the held-out rows, see `combine`."""
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

    They minimise the cross-entropy plus a penalty, of one label's weight, for leaving 1, 1 and 0,
    so that few labels change little. Neither scale is negative.

    Args:
        level: Logits that all targets share.
        ahead: Each target's score minus the mean over targets.
        labels: In [0, 1].
        weights: The weight of each label; 0 where missing.
    """
    first = np.concatenate([[1.0, 1.0], np.zeros(ahead.shape[1])])

    def logits(now: Numbers) -> Cells:
        return np.asarray(now[0] * level + now[1] * ahead + now[2:])

    def slopes(miss: Cells) -> Numbers:
        return np.concatenate([[(miss * level).sum(), (miss * ahead).sum()], miss.sum(axis=0)])

    bounds = [(0, None), (0, None), *[(None, None)] * ahead.shape[1]]
    return shrunken_logistic(first, logits, slopes, labels, weights=weights, bounds=bounds)
