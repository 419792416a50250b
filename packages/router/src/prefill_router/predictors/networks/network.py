"""What a network is: its layers, from which its arrays, its predictions and its training follow.

`Network.outputs` predicts. `layers.Pass` runs the same layers with dropout, and back with their
gradients. Tests run them in torch, whose autograd confirms the gradients.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from typing import Any, NamedTuple, final

import numpy as np
from jaxtyping import Float64
from numpy.typing import NDArray

from prefill_router.serialization import Shape

CORRECTNESS, DIFFICULTY = "correctness", "difficulty"

Arrays = Mapping[str, Float64[NDArray[np.float64], "..."]]
Rows = Float64[NDArray[np.float64], "query feature"]
Logits = Float64[NDArray[np.float64], "query output"]


@final
class Layer(NamedTuple):
    """A linear layer: its arrays are `weight.NAME` and `bias.NAME`."""

    name: str
    inputs: int
    outputs: int


@final
@dataclass(frozen=True)
class Network:
    """Hidden layers in a row, each with ReLU and then dropout, and linear heads side by side.

    Attributes:
        widths: The number of features, and the width of each hidden layer.
        heads: The widths of the heads by name, which read the last hidden layer; without hidden
            layers they read the features.
        side_by_side: The number of parallel networks, each with its own layers.
        tables: The shapes of the arrays that aren't layers, by name, such as vectors of targets.
    """

    widths: Shape
    heads: Mapping[str, int]
    side_by_side: int = 1
    tables: Mapping[str, Shape] = field(default_factory=dict)

    @cached_property
    def hidden(self) -> tuple[Layer, ...]:
        """The hidden layers, from the first to the last."""
        return tuple(Layer(str(i), *pair) for i, pair in enumerate(pairwise(self.widths)))

    @property
    def layers(self) -> tuple[Layer, ...]:
        """The hidden layers, then the heads."""
        last = self.widths[-1]
        return (*self.hidden, *(Layer(name, last, width) for name, width in self.heads.items()))

    @property
    def inputs(self) -> tuple[Layer, ...]:
        """The layers that read the features."""
        return self.hidden[:1] or self.layers

    @property
    def shapes(self) -> dict[str, Shape]:
        """The names and shapes of all arrays; the first axis is that of the parallel networks."""
        shapes: dict[str, Shape] = {}
        for name, inputs, outputs in self.layers:
            shapes[f"weight.{name}"] = (self.side_by_side, inputs, outputs)
            shapes[f"bias.{name}"] = (self.side_by_side, 1, outputs)
        return shapes | dict(self.tables)

    def outputs(self, arrays: Arrays, rows: Rows, head: str) -> Logits:
        """The outputs of one head, of all parallel networks in order."""
        units: NDArray[Any] = rows
        for layer in self.hidden:
            units = np.maximum(_apply_linear(arrays, units, layer.name), 0)
        return np.moveaxis(_apply_linear(arrays, units, head), 0, 1).reshape(len(rows), -1)


def _apply_linear(arrays: Arrays, units: NDArray[Any], name: str) -> NDArray[Any]:
    return np.asarray(units @ arrays[f"weight.{name}"] + arrays[f"bias.{name}"])
