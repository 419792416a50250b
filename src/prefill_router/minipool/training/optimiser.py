"""Muon for the matrices of a small network, AdamW for everything else.

Muon (K. Jordan and others, 2024) replaces each matrix's momentum by the nearest half-orthogonal
matrix, found by five Newton-Schulz steps. On these networks it needs about half the examples that
AdamW alone does. Matrices of one shape are treated together, which is what makes it cheap here.
"""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import final

import torch
from jaxtyping import Float
from torch import Tensor, nn

_COEFFICIENTS = (3.4445, -4.7750, 2.0315)
_STEPS = 5
_MOMENTUM = 0.95


@final
class Optimiser:
    """Updates a network's parameters from their gradients."""

    def __init__(self, network: nn.Module, *, rate: float, muon_rate: float, decay: float) -> None:
        matrices, others = _parted(network.named_parameters())
        self._matrices = matrices
        self._momenta = [torch.zeros_like(torch.stack([*group])) for group in matrices]
        self._rate, self._decay = muon_rate, decay
        self._adam_rate = rate
        self._adam = torch.optim.AdamW(
            others, lr=rate, betas=(0.9, 0.98), weight_decay=0.0, fused=True
        )

    def step(self, share: float) -> None:
        """One step, at this share of the highest learning rates."""
        self._adam.param_groups[0]["lr"] = self._adam_rate * share
        self._adam.step()
        self._adam.zero_grad()
        for group, momentum in zip(self._matrices, self._momenta, strict=True):
            _muon_step(group, momentum, rate=self._rate * share, decay=self._decay)


def _parted(
    named: Iterable[tuple[str, nn.Parameter]],
) -> tuple[list[list[nn.Parameter]], list[nn.Parameter]]:
    """Matrices by shape, then embeddings and vectors."""
    by_shape: dict[torch.Size, list[nn.Parameter]] = defaultdict(list)
    others = []
    for name, parameter in named:
        if parameter.dim() == 2 and "embed" not in name:
            by_shape[parameter.shape].append(parameter)
        else:
            others.append(parameter)
    return list(by_shape.values()), others


@torch.no_grad()
def _muon_step(
    group: Sequence[nn.Parameter], momentum: Tensor, *, rate: float, decay: float
) -> None:
    gradient = torch.stack([p.grad for p in group if p.grad is not None])
    momentum.lerp_(gradient, 1 - _MOMENTUM)
    update = orthogonal(gradient.lerp_(momentum, _MOMENTUM))
    scale = max(1.0, update.shape[-2] / update.shape[-1]) ** 0.5
    for parameter, direction in zip(group, update, strict=True):
        parameter.mul_(1 - rate * decay).add_(direction, alpha=-rate * scale)
        parameter.grad = None


def orthogonal(stacked: Float[Tensor, "matrix row column"]) -> Float[Tensor, "matrix row column"]:
    """About the nearest half-orthogonal matrix of each: singular values between 0.7 and 1.2."""
    a, b, c = _COEFFICIENTS
    tall = stacked.shape[-2] > stacked.shape[-1]
    x = (stacked.mT if tall else stacked).bfloat16()
    x = x / (x.norm(dim=(-2, -1), keepdim=True) + 1e-7)
    for _ in range(_STEPS):
        gram = x @ x.mT
        x = torch.baddbmm(x, torch.baddbmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    return (x.mT if tall else x).to(stacked.dtype)
