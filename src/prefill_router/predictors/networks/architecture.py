"""What a network is while it trains: parameters by name, and what they make of rows.

Every parameter's first axis counts networks that are trained side by side on the same rows, each of
which stops on its own: one per target, or one for all targets.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import final

import torch
from jaxtyping import Float, Float32
from torch import Tensor

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
