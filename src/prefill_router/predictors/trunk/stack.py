"""The arithmetic of several networks at once: stacked layers, their losses and gradients.

The gradients are written out, not recorded: a step is a dozen batched operations in memory that is
allocated once, which is what makes it faster than one network after another.
"""

import math
from collections.abc import Sequence
from typing import final

import numpy as np
import torch
from jaxtyping import Bool, Float
from numpy.typing import NDArray
from torch import Tensor

Rows = Float[Tensor, "network row feature"]
Logits = Float[Tensor, "network row target"]
Kept = Bool[NDArray[np.bool_], "network row _"]
Broadcast = Float[Tensor, "*shared row target"]  # the same for all networks, or for each
Cells = Float[Tensor, "network row target"]


@final
class Stack:
    """Layers of several networks.

    Args:
        weights: Of each layer, [network, in, out].
        biases: Of each layer, [network, 1, out].
        keep: The probability with which the units of each hidden layer stay in training.
        rows: The most rows of a step.
    """

    def __init__(
        self, weights: list[Tensor], biases: list[Tensor], *, keep: Sequence[float], rows: int
    ) -> None:
        self.weights, self.biases = weights, biases
        self.weight_gradients = [torch.empty_like(w) for w in weights]
        self.bias_gradients = [torch.empty_like(b) for b in biases]
        self._scale = [1 / probability for probability in keep]
        sizes = [w.shape[0] * rows * w.shape[1] for w in weights]
        self._into = [weights[0].new_empty(size) for size in sizes]
        self._back = [weights[0].new_empty(size) for size in sizes]

    def __len__(self) -> int:
        return len(self.weights[0])

    def input(self, rows: int) -> Rows:
        """The memory that the features of a step are put into before `step`."""
        return self._view(self._into[0], rows, 0)

    def _view(self, memory: Tensor, rows: int, layer: int) -> Tensor:
        shape = (len(self), rows, self.weights[layer].shape[1])
        return memory[: math.prod(shape)].view(shape)

    def logits(self, features: Float[Tensor, "row feature"]) -> Logits:
        """The logits of the same rows under every network, without dropout."""
        hidden = features.expand(len(self), *features.shape)
        for weight, bias in zip(self.weights, self.biases, strict=True):
            if weight is not self.weights[0]:
                hidden.clamp_min_(0)
            hidden = _linear(
                hidden, weight, bias, hidden.new_empty(*hidden.shape[:2], bias.shape[2])
            )
        return hidden

    def step(
        self, labels: Cells, present: Cells, kept: Sequence[Kept]
    ) -> Float[Tensor, " network"]:
        """Losses of one step on `input`; leaves their gradients in `weight_` and `bias_gradients`.

        Args:
            labels: In [0, 1]; what stands where `present` is 0 has no effect.
            present: What each counts, 0 or more.
            kept: The units of each hidden layer that stay.
        """
        rows = labels.shape[1]
        into = [self._view(memory, rows, i) for i, memory in enumerate(self._into)]
        logits = self._forward(into, kept)
        share = present / present.sum((1, 2), keepdim=True).clamp_min_(1)
        wrong = torch.stack([torch.sigmoid(each) for each in logits]).sub_(labels)
        self._backward(into, wrong.mul_(share))
        return cross_entropy(logits, labels, present)

    def _forward(self, into: list[Tensor], kept: Sequence[Kept]) -> Tensor:
        layers = list(zip(self.weights, self.biases, strict=True))
        for i, (weight, bias) in enumerate(layers[:-1]):
            hidden = _linear(into[i], weight, bias, into[i + 1]).clamp_min_(0)
            # NumPy multiplies by a mask three times as fast as torch, which converts it first.
            with np.errstate(invalid="ignore"):  # an overflow is found in the loss
                np.multiply(hidden.numpy(), kept[i], out=hidden.numpy())
            hidden.mul_(self._scale[i])
        weight, bias = layers[-1]
        logits = into[-1].new_empty(*into[-1].shape[:2], bias.shape[2])
        return _linear(into[-1], weight, bias, logits)

    def _backward(self, into: list[Tensor], gradient: Tensor) -> None:
        for i in reversed(range(len(into))):
            _products(into[i].mT, gradient, self.weight_gradients[i])
            for part, total in zip(gradient, self.bias_gradients[i], strict=True):
                torch.sum(part, 0, keepdim=True, out=total)
            if i:
                back = self._view(self._back[i], gradient.shape[1], i)
                _products(gradient, self.weights[i].mT, back).mul_(self._scale[i - 1])
                # A unit that is 0 was below 0 or dropped; nothing flows through it either way.
                torch.ops.aten.threshold_backward.grad_input(back, into[i], 0, grad_input=back)
                gradient = back

    def keep(self, networks: list[int]) -> None:
        """Drop all but these networks."""
        for parts in (self.weights, self.biases, self.weight_gradients, self.bias_gradients):
            parts[:] = [part[networks] for part in parts]


def cross_entropy(
    logits: Logits, labels: Broadcast, present: Broadcast
) -> Float[Tensor, " network"]:
    """Binary cross-entropy of each network, in nats: the weighted mean over the present cells."""
    each = torch.nn.functional.binary_cross_entropy_with_logits(
        logits, labels.expand_as(logits), reduction="none"
    )
    present = present.expand_as(logits)
    return (each * present).sum((1, 2)) / present.sum((1, 2)).clamp_min(1)


# One product, sum or sigmoid per network, and not a batched one: the libraries round a batch of one
# in another way than a batch of several, and a seed's losses would depend on its company.


def _products(one: Tensor, other: Tensor, out: Tensor) -> Tensor:
    for a, b, c in zip(one, other, out, strict=True):
        torch.mm(a, b, out=c)
    return out


def _linear(rows: Tensor, weight: Tensor, bias: Tensor, out: Tensor) -> Tensor:
    for a, b, c, d in zip(rows, weight, bias, out, strict=True):
        torch.addmm(c, a, b, out=d)
    return out
