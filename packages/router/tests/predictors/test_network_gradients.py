"""Gradients that are written out equal finite differences, and those of torch's autograd."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from prefill_router.predictors.networks.architectures import Architecture, Heads
from prefill_router.predictors.networks.ensemble import perceptron_shapes
from prefill_router.predictors.networks.latent import ItemResponse, PairwiseFactorisation
from prefill_router.predictors.networks.latent_architectures import Factors, Items, Preferences
from prefill_router.predictors.networks.layers import Kept, ParameterBuffer, Pass, Workspace
from prefill_router.predictors.networks.losses import (
    NetworkLabels,
    Outputs,
    compute_losses,
    cross_entropy,
)
from prefill_router.predictors.networks.optimiser import Adam
from prefill_router.predictors.training import Draws

Array = NDArray[Any]
ROWS, FEATURES, TARGETS = 9, 5, 3
KEEP = 0.7
RATES = np.array([0.3, 0.5, 0.8])


def heads(networks: int, **options: Any) -> Heads:
    outputs = TARGETS // networks
    layers = [("correctness", outputs), ("difficulty", 1)]
    shapes = perceptron_shapes((FEATURES, 8, 6), layers, side_by_side=networks)
    return Heads(shapes, RATES.reshape(networks, -1), hidden=2, **options)


LATENT = PairwiseFactorisation.shapes((FEATURES, 4), TARGETS)
FACTORS = {name: LATENT[name] for name in ("weight.query", "bias.query", "target", "combine")}
CASES: dict[str, Architecture] = {
    "a network per target": heads(TARGETS),
    "with difficulty": heads(TARGETS, difficulty=0.7),
    "with pairs": heads(1, difficulty=0.7, pairs=0.5),
    "factors": Factors(FACTORS, RATES),
    "preferences": Preferences(LATENT, RATES),
    "items": Items(ItemResponse.shapes((FEATURES, 6, 2), TARGETS), RATES, 1),
    "items of one dimension": Items(ItemResponse.shapes((FEATURES, 1), TARGETS), RATES, 0),
}


@dataclass
class Planted:
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
        networks = self.architecture.networks
        shape = (networks, ROWS, TARGETS // networks)
        weights = (random.random((1, ROWS, 1)) + 0.5) * (random.random(shape) < 0.7)
        self.labels = NetworkLabels(
            np.where(weights > 0, random.random(shape), 0),
            weights,
            random.random(ROWS),
            random.random(ROWS) + 0.5,
        )

    @staticmethod
    def keep(layer: int, kept: Kept) -> float:
        kept[...] = np.random.default_rng(layer).random(kept.shape) < KEEP
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
            found = cross_entropy(outputs.difficulty[..., None], *hard)[0].sum()
            total += outputs.difficulty_weight * float(found)
        return total


@pytest.mark.parametrize("name", CASES)
def test_gradients_equal_finite_differences(name: str) -> None:
    planted, step = Planted(CASES[name]), 1e-6
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
    untrained = set(planted.gradients.arrays) - set(trained)
    assert untrained <= {"slope", "offset", "weight.difficulty", "bias.difficulty"}


def autograd_total(planted: Planted, parameters: dict[str, Any]) -> Any:
    """The same loss, in torch."""
    import torch
    from torch.nn.functional import binary_cross_entropy_with_logits as entropy, softplus

    def masked(units: Any, layer: int) -> Any:
        kept = np.empty(tuple(units.shape), np.bool_)
        planted.keep(layer, kept)
        return units * torch.from_numpy(kept) / KEEP

    def layer(units: Any, name: str) -> Any:
        return units @ parameters[f"weight.{name}"] + parameters[f"bias.{name}"]

    architecture, labels = planted.architecture, planted.labels
    units = masked(torch.from_numpy(planted.rows), 0)
    for i in range(getattr(architecture, "hidden", 0)):
        units = masked(layer(units, f"{i}").relu(), i + 1)
    hard, ahead, pairs = None, None, 1.0
    match architecture:
        case Heads():
            correct, pairs = layer(units, "correctness"), architecture.pairs
            ahead = correct if pairs else None
            hard = None if architecture.difficulty is None else layer(units, "difficulty")[..., 0]
        case Items():
            matters = layer(units, "discrimination")
            if matters.shape[-1] == 1:
                matters = softplus(matters)
            correct = matters @ parameters["ability"].mT - layer(units, "difficulty")
        case _:
            query = masked(layer(units, "query"), 1) * parameters["combine"]
            vectors = parameters["target"]
            if isinstance(architecture, Preferences):
                scores = query @ torch.nn.functional.normalize(vectors, dim=-1).mT
                ahead = scores - scores.mean(-1, keepdim=True)
                correct = layer(units, "level").expand_as(ahead)
            else:
                correct = query @ vectors.mT
    wanted, weights = torch.from_numpy(labels.correct), torch.from_numpy(labels.weights)
    each = entropy(correct, wanted, reduction="none") * weights
    total = (each.sum((1, 2)) / weights.sum((1, 2))).sum()
    if ahead is not None:
        wins, loses = wanted * weights, (1 - wanted) * (weights > 0)
        both = wins[..., :, None] * loses[..., None, :]
        both.diagonal(dim1=-2, dim2=-1).zero_()
        gaps = ahead[..., :, None] - ahead[..., None, :]
        total = total + pairs * (softplus(-gaps) * both).sum() / both.sum()
    if hard is not None:
        share = torch.from_numpy(labels.difficulty_weights)
        level = torch.from_numpy(labels.difficulty).expand_as(hard)
        each = entropy(hard, level, reduction="none") * share
        total = total + architecture.difficulty * each.sum() / share.sum()
    return total


@pytest.mark.parametrize("name", CASES)
def test_gradients_equal_autograd(name: str) -> None:
    torch = pytest.importorskip("torch")
    planted = Planted(CASES[name])
    planted.backward()
    leaves = {
        name: torch.from_numpy(array.copy()).requires_grad_()
        for name, array in planted.parameters.arrays.items()
    }
    total = autograd_total(planted, leaves)
    total.backward()
    assert planted.total() == pytest.approx(total.item(), rel=1e-12)
    for part, leaf in leaves.items():
        expected = np.zeros(leaf.shape) if leaf.grad is None else leaf.grad.numpy()
        found = planted.gradients.arrays[part]
        np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("decoupled", [True, False])
def test_steps_are_those_of_adam(decoupled: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    torch = pytest.importorskip("torch")
    monkeypatch.setattr("prefill_router.predictors.networks.optimiser._BLOCK", 7)
    random = np.random.default_rng(0)
    first = {"bias.0": random.normal(size=5), "weight.0": random.normal(size=(4, 5))}
    parameters = ParameterBuffer(first)
    gradients = parameters.zeros()
    options = {"learning_rate": 0.01, "weight_decay": 0.3}
    ours = Adam(parameters, gradients, decoupled=decoupled, **options)
    leaves = {name: torch.from_numpy(array.copy()) for name, array in first.items()}
    decays = {"weight.0": 0.3, "bias.0": 0.0 if decoupled else 0.3}
    groups = [{"params": [leaves[name]], "weight_decay": w} for name, w in decays.items()]
    kind = torch.optim.AdamW if decoupled else torch.optim.Adam
    theirs = kind(groups, lr=0.01)
    for size in (1.0, 1e-3, 0.0, 30.0, 1.0):
        for name, leaf in leaves.items():
            gradients.arrays[name][...] = size * random.normal(size=leaf.shape)
            leaf.grad = torch.from_numpy(gradients.arrays[name].copy())
        ours.step()
        theirs.step()
    for name, leaf in leaves.items():
        np.testing.assert_allclose(parameters.arrays[name], leaf.numpy(), rtol=1e-10)
        assert np.abs(parameters.arrays[name] - first[name]).max() > 1e-2


def test_losses_of_confident_logits_are_finite() -> None:
    logits = np.array([[[-1e4], [1e4], [0.0]]], np.float32)
    losses, slopes = cross_entropy(logits, np.ones_like(logits), np.ones_like(logits))
    assert losses[0] == pytest.approx((1e4 + np.log(2)) / 3, rel=1e-5)
    np.testing.assert_allclose(slopes[0, :, 0], [-1 / 3, 0, -1 / 6])
