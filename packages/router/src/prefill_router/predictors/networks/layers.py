"""Forward and backward passes of small networks in NumPy, with gradients written out.

Every parameter's first axis is the networks that are trained side by side. Results of a pass are
in memory that the next pass reuses, since NumPy would otherwise allocate each array again.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, final

import numpy as np
from jaxtyping import Bool, Float
from numpy.typing import DTypeLike, NDArray

from prefill_router.predictors.networks.network import Network

Rows = Float[NDArray[np.floating], "... row _"]  # shared by the networks, or of each
Units = Float[NDArray[np.floating], "network row _"]
Mask = Bool[NDArray[np.bool_], "... row _"]


@final
class ParameterBuffer:
    """Arrays of parameters, or of their gradients, as views of one vector.

    Args:
        arrays: The initial values. Those with names that start with `weight` come first in the
            vector, since weight decay may apply to them alone.
    """

    def __init__(self, arrays: Mapping[str, NDArray[np.floating]]) -> None:
        names = sorted(arrays, key=lambda name: not name.startswith("weight"))
        self.vector: NDArray[Any] = np.concatenate([arrays[name].ravel() for name in names])
        self.weights = sum(arrays[name].size for name in names if name.startswith("weight"))
        ends = np.cumsum([arrays[name].size for name in names])[:-1]
        parts = zip(names, np.split(self.vector, ends), strict=True)
        self.arrays = {name: part.reshape(arrays[name].shape) for name, part in parts}

    def zeros(self) -> "ParameterBuffer":
        """Zeros of the same shapes."""
        return ParameterBuffer({name: np.zeros_like(a) for name, a in self.arrays.items()})


@final
class Workspace:
    """Arrays by name, in memory that later arrays of that name reuse."""

    def __init__(self, dtype: DTypeLike) -> None:
        self._dtype = np.dtype(dtype)
        self._memory: dict[str, NDArray[Any]] = {}

    def array(
        self, name: str, shape: Sequence[int], dtype: DTypeLike | None = None
    ) -> NDArray[Any]:
        """An array with undefined values; the last one of this name is overwritten."""
        size = math.prod(shape)
        memory = self._memory.get(name)
        if memory is None or memory.size < size:
            memory = self._memory[name] = np.empty(size, dtype or self._dtype)
        return memory[:size].reshape(shape)


@final
class Pass:
    """A pass of rows through networks, and back.

    Args:
        parameters: The parameters, by name.
        gradients: Where the gradients go.
        work: The memory of the units.
        keep: Draws which units dropout keeps, into an array; the number is that of the layer, 0
            for the features. Returns the probability with which they are kept. None if nothing is
            dropped, as in validation.
    """

    def __init__(
        self,
        parameters: Mapping[str, NDArray[Any]],
        gradients: Mapping[str, NDArray[Any]],
        work: Workspace,
        keep: Callable[[int, Mask], float] | None = None,
    ) -> None:
        self.parameters, self.gradients = parameters, gradients
        self._work, self._keep = work, keep
        self._slopes: list[NDArray[Any]] = []

    def linear(self, units: Rows, name: str) -> Units:
        """`units @ weight + bias` of one layer."""
        weight, bias = self.parameters[f"weight.{name}"], self.parameters[f"bias.{name}"]
        shape = (len(weight), units.shape[-2], weight.shape[2])
        outputs = np.matmul(units, weight, out=self._work.array(f"units.{name}", shape))
        outputs += bias
        return outputs

    def linear_back(self, units: Rows, name: str, slopes: Units) -> Units:
        """Keep the gradients of a layer; returns the slopes of its input.

        Args:
            units: The layer's input.
            name: The layer's name.
            slopes: The derivatives of the loss by the layer's output.
        """
        self.keep_gradients(units, name, slopes)
        weight = self.parameters[f"weight.{name}"]
        back = self._work.array(f"slopes.{name}", (*slopes.shape[:2], weight.shape[1]))
        return np.matmul(slopes, weight.swapaxes(1, 2), out=back)

    def keep_gradients(self, units: Rows, name: str, slopes: Units) -> None:
        """Keep the gradients of a layer whose input needs no slopes."""
        np.matmul(units.swapaxes(-1, -2), slopes, out=self.gradients[f"weight.{name}"])
        np.add.reduce(slopes, axis=1, keepdims=True, out=self.gradients[f"bias.{name}"])

    def dropout(self, units: Rows, layer: int) -> Rows | None:
        """Drop units in place; returns the derivatives of the result by the units, None for 1."""
        mask = self._draw_mask(units.shape, layer)
        return None if mask is None else self._scale_units(units, layer, *mask)

    def _draw_mask(self, shape: tuple[int, ...], layer: int) -> tuple[Mask, float] | None:
        if self._keep is None:
            return None
        mask = self._work.array(f"mask.{layer}", shape, np.bool_)
        probability = self._keep(layer, mask)
        return None if probability == 1 else (mask, probability)

    def _scale_units(self, units: Rows, layer: int, mask: Mask, probability: float) -> Rows:
        slopes = self._work.array(f"scale.{layer}", units.shape)
        np.multiply(mask, slopes.dtype.type(1 / probability), out=slopes)
        units *= slopes
        return slopes

    def hidden(self, rows: Rows, network: Network) -> list[Rows]:
        """The rows, then the units of each hidden layer, after ReLU and dropout."""
        units, self._slopes = [rows], []
        for i, layer in enumerate(network.hidden):
            now = self.linear(units[-1], layer.name)
            if self._keep is None:
                np.maximum(now, np.zeros(now.shape[-1], now.dtype), out=now)
            else:
                self._slopes.append(self._rectify(now, i + 1))
            units.append(now)
        return units

    def _rectify(self, units: Units, layer: int) -> Units:
        """ReLU and dropout in one product; returns the derivatives."""
        positive = self._work.array(f"positive.{layer}", units.shape, np.bool_)
        np.greater(units, 0, out=positive)
        mask = self._draw_mask(units.shape, layer)
        if mask is not None:
            positive &= mask[0]
        return self._scale_units(units, layer, positive, mask[1] if mask else 1.0)

    def hidden_back(self, units: Sequence[Rows], slopes: Units) -> None:
        """Keep the gradients of the hidden layers.

        Args:
            units: What `hidden` returned.
            slopes: The derivatives of the loss by the last layer's units; overwritten.
        """
        for i in reversed(range(len(units) - 1)):
            slopes *= self._slopes[i]
            if i:
                slopes = self.linear_back(units[i], f"{i}", slopes)
            else:
                self.keep_gradients(units[0], "0", slopes)
