"""The arithmetic of several networks at once: stacked layers, their losses and gradients.

The gradients are written out, not recorded: a step is a dozen batched operations in memory that is
allocated once, which is what makes it faster than one network after another.
"""

from collections.abc import Sequence
from typing import final

import torch
from jaxtyping import Bool, Float
from torch import Tensor

Rows = Float[Tensor, "network row feature"]
Logits = Float[Tensor, "network row target"]
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
        self._scale = [1.0, *(1 / k for k in keep)]
        self._into = [w.new_empty(w.shape[0], rows, w.shape[1]) for w in weights]
        self._back = [torch.empty_like(part) for part in self._into]

    def __len__(self) -> int:
        return len(self.weights[0])

    def input(self, rows: int) -> Rows:
        """The memory that the features of a step are put into before `step`."""
        return self._into[0][:, :rows]

    def logits(self, features: Float[Tensor, "row feature"]) -> Logits:
        """The logits of the same rows under every network, without dropout."""
        hidden = features.expand(len(self), *features.shape)
        for weight, bias in zip(self.weights[:-1], self.biases[:-1], strict=True):
            hidden = torch.baddbmm(bias, hidden, weight).clamp_min_(0)
        return torch.baddbmm(self.biases[-1], hidden, self.weights[-1])

    def step(
        self,
        labels: Cells,
        present: Cells,
        kept: Sequence[Bool[Tensor, "network row unit"]],
    ) -> Float[Tensor, " network"]:
        """Losses of one step on `input`; leaves their gradients in `weight_` and `bias_gradients`.

        Args:
            labels: In [0, 1]; what stands where `present` is 0 has no effect.
            present: 1 or 0.
            kept: The units of each hidden layer that stay.
        """
        into = [part[:, : labels.shape[1]] for part in self._into]
        logits = self._forward(into, kept)
        count = present.sum((1, 2), keepdim=True).clamp_min_(1)
        loss = cross_entropy(logits, labels, present)
        self._backward(into, (torch.sigmoid(logits) - labels).mul_(present).div_(count))
        return loss

    def _forward(self, into: list[Tensor], kept: Sequence[Tensor]) -> Tensor:
        last = len(self.weights) - 1
        for i in range(last):
            self._linear(i, into[i], out=into[i + 1]).clamp_min_(0).mul_(kept[i])
        return self._linear(last, into[last])

    def _linear(self, i: int, rows: Tensor, *, out: Tensor | None = None) -> Tensor:
        return torch.baddbmm(self.biases[i], rows, self.weights[i], alpha=self._scale[i], out=out)

    def _backward(self, into: list[Tensor], gradient: Tensor) -> None:
        for i in reversed(range(len(into))):
            scale = self._scale[i]
            out = self.weight_gradients[i]
            torch.baddbmm(out, into[i].mT, gradient, beta=0, alpha=scale, out=out)
            torch.sum(gradient, 1, keepdim=True, out=self.bias_gradients[i])
            if i:
                back = self._back[i][:, : gradient.shape[1]]
                torch.baddbmm(back, gradient, self.weights[i].mT, beta=0, alpha=scale, out=back)
                # A unit that is 0 was below 0 or dropped; nothing flows through it either way.
                torch.ops.aten.threshold_backward.grad_input(back, into[i], 0, grad_input=back)
                gradient = back

    def keep(self, networks: list[int]) -> None:
        """Drop all but these networks."""
        for parts in (self.weights, self.biases, self.weight_gradients, self.bias_gradients):
            parts[:] = [part[networks] for part in parts]
        for parts in (self._into, self._back):
            parts[:] = [part[: len(networks)] for part in parts]


def cross_entropy(logits: Logits, labels: Cells, present: Cells) -> Float[Tensor, " network"]:
    """Binary cross-entropy of each network, in nats: the mean over the present cells."""
    each = torch.nn.functional.binary_cross_entropy_with_logits(
        logits, labels.expand_as(logits), reduction="none"
    )
    present = present.expand_as(logits)
    return (each * present).sum((1, 2)) / present.sum((1, 2)).clamp_min(1)
