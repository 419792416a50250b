"""Gradients that are written out equal finite differences, and those of torch's autograd."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from prefill_router.predictors import Draws
from prefill_router.predictors.networks import (
    Architecture,
    Network,
    NetworkLabels,
    Outputs,
    Pass,
    Workspace,
)
from prefill_router.predictors.networks.layers import Mask, ParameterBuffer
from prefill_router.predictors.networks.losses import compute_losses, cross_entropy

Array = NDArray[Any]
ROWS, FEATURES, TARGETS = 9, 5, 3
KEEP = 0.7
RATES = np.array([0.3, 0.5, 0.8])


@dataclass
class PlantedNetwork:
    """Parameters, rows and labels in double precision, and the same dropout in each pass."""

    architecture: Architecture

    def __post_init__(self) -> None:
        random = np.random.default_rng(0)
        first = self.architecture.initial(Draws(0, 0))
        self.parameters = ParameterBuffer(
            {name: a + 0.3 * random.normal(size=a.shape) for name, a in first.items()}
        )
        self.gradients = self.parameters.zeros()
        self.rows = random.normal(size=(ROWS, FEATURES))
        networks = self.architecture.network.side_by_side
        shape = (networks, ROWS, TARGETS // networks)
        weights = (random.random((1, ROWS, 1)) + 0.5) * (random.random(shape) < 0.7)
        self.labels = NetworkLabels(
            np.where(weights > 0, random.random(shape), 0),
            weights,
            random.random(ROWS),
            random.random(ROWS) + 0.5,
        )

    @staticmethod
    def keep(layer: int, mask: Mask) -> float:
        mask[...] = np.random.default_rng(layer).random(mask.shape) < KEEP
        return KEEP

    def run(self, parameters: dict[str, Array]) -> tuple[Outputs, Callable[..., None]]:
        step = Pass(parameters, self.gradients.arrays, Workspace(np.float64), self.keep)
        features = self.rows.copy()
        step.dropout(features, 0)
        return self.architecture.forward(step, features)

    def backward(self) -> None:
        outputs, backward = self.run(self.parameters.arrays)
        backward(compute_losses(outputs, self.labels)[1])

    def total(self) -> float:
        outputs, _ = self.run(self.parameters.arrays)
        total = float(compute_losses(outputs, self.labels)[0].sum())
        if outputs.difficulty is not None:
            shape = (*outputs.difficulty.shape, 1)
            cells = (self.labels.difficulty, self.labels.difficulty_weights)
            hard = [np.broadcast_to(values[:, None], shape).copy() for values in cells]
            loss = cross_entropy(outputs.difficulty[..., None], *hard)[0].sum()
            total += outputs.difficulty_weight * float(loss)
        return total


def check_finite_differences(architecture: Architecture, untrained: set[str]) -> None:
    """The gradients equal finite differences, and all but some parameters have some.

    Args:
        architecture: The networks.
        untrained: Parameters that may have no gradient.
    """
    planted, step = PlantedNetwork(architecture), 1e-6
    planted.backward()
    vector = planted.parameters.vector
    expected = np.empty_like(vector)
    for i, value in enumerate(vector.copy()):
        ends = []
        for sign in (1, -1):
            vector[i] = value + sign * step
            ends.append(planted.total())
        vector[i] = value
        expected[i] = (ends[0] - ends[1]) / (2 * step)
    np.testing.assert_allclose(planted.gradients.vector, expected, rtol=1e-5, atol=1e-8)
    trained = [n for n, a in planted.gradients.arrays.items() if np.abs(a).max() > 1e-4]
    assert set(planted.gradients.arrays) - set(trained) <= untrained


@dataclass
class TorchPass:
    """A forward pass in torch, with the dropout of `PlantedNetwork`.

    Attributes:
        parameters: Torch's tensors by name.
        rows: The features after dropout.
    """

    parameters: dict[str, Any]
    rows: Any

    def drop(self, units: Any, layer: int) -> Any:
        import torch

        mask = np.empty(tuple(units.shape), np.bool_)
        PlantedNetwork.keep(layer, mask)
        return units * torch.from_numpy(mask) / KEEP

    def linear(self, units: Any, name: str) -> Any:
        return units @ self.parameters[f"weight.{name}"] + self.parameters[f"bias.{name}"]

    def hidden(self, network: Network) -> Any:
        """The last hidden layer, or the features."""
        units = self.rows
        for i, layer in enumerate(network.hidden):
            units = self.drop(self.linear(units, layer.name).relu(), i + 1)
        return units


@dataclass
class TorchOutputs:
    """The outputs of an architecture in torch; see `Outputs`."""

    correct: Any
    difficulty: Any = None
    difficulty_weight: float = 0.0
    preference: Any = None
    preference_weight: float = 1.0


def compute_torch_loss(outputs: TorchOutputs, labels: NetworkLabels) -> Any:
    """The same loss as `compute_losses`, in torch."""
    import torch
    from torch.nn.functional import binary_cross_entropy_with_logits as entropy, softplus

    correct, weights = torch.from_numpy(labels.correct), torch.from_numpy(labels.weights)
    each = entropy(outputs.correct, correct, reduction="none") * weights
    total = (each.sum((1, 2)) / weights.sum((1, 2))).sum()
    if outputs.preference is not None:
        wins, loses = correct * weights, (1 - correct) * (weights > 0)
        pair_weights = wins[..., :, None] * loses[..., None, :]
        pair_weights.diagonal(dim1=-2, dim2=-1).zero_()
        gaps = outputs.preference[..., :, None] - outputs.preference[..., None, :]
        mean = (softplus(-gaps) * pair_weights).sum() / pair_weights.sum()
        total = total + outputs.preference_weight * mean
    if outputs.difficulty is not None:
        share = torch.from_numpy(labels.difficulty_weights)
        level = torch.from_numpy(labels.difficulty).expand_as(outputs.difficulty)
        each = entropy(outputs.difficulty, level, reduction="none") * share
        total = total + outputs.difficulty_weight * each.sum() / share.sum()
    return total


def check_autograd(
    architecture: Architecture, forward: Callable[[Any, TorchPass], TorchOutputs]
) -> None:
    """The gradients equal those of torch's autograd.

    Args:
        architecture: The networks.
        forward: Their forward pass in torch.
    """
    torch = pytest.importorskip("torch")
    planted = PlantedNetwork(architecture)
    planted.backward()
    leaves = {
        name: torch.from_numpy(array.copy()).requires_grad_()
        for name, array in planted.parameters.arrays.items()
    }
    step = TorchPass(leaves, None)
    step.rows = step.drop(torch.from_numpy(planted.rows), 0)
    total = compute_torch_loss(forward(architecture, step), planted.labels)
    total.backward()
    assert planted.total() == pytest.approx(total.item(), rel=1e-12)
    for name, leaf in leaves.items():
        expected = np.zeros(leaf.shape) if leaf.grad is None else leaf.grad.numpy()
        gradient = planted.gradients.arrays[name]
        np.testing.assert_allclose(gradient, expected, rtol=1e-9, atol=1e-12)
