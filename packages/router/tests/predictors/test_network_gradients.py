"""The gradients of hidden layers with heads, the steps of Adam, and the losses."""

from typing import Any

import numpy as np
import pytest

from packages.router.tests.predictors.gradient_contract import (
    FEATURES,
    RATES,
    TARGETS,
    TorchOutputs,
    TorchPass,
    check_autograd,
    check_finite_differences,
)
from prefill_router.predictors.networks import Heads, Network
from prefill_router.predictors.networks.layers import ParameterBuffer
from prefill_router.predictors.networks.losses import cross_entropy
from prefill_router.predictors.networks.optimiser import Adam


def heads(networks: int, **options: Any) -> Heads:
    each = {"correctness": TARGETS // networks, "difficulty": 1}
    return Heads(Network((FEATURES, 8, 6), each, networks), RATES.reshape(networks, -1), **options)


CASES = {
    "a network per target": heads(TARGETS),
    "with difficulty": heads(TARGETS, difficulty=0.7),
    "with pairs": heads(1, difficulty=0.7, pairs=0.5),
}


def forward_in_torch(architecture: Heads, step: TorchPass) -> TorchOutputs:
    units = step.hidden(architecture.network)
    correct, pairs = step.linear(units, "correctness"), architecture.pairs
    outputs = TorchOutputs(correct, preference=correct if pairs else None, preference_weight=pairs)
    if architecture.difficulty is not None:
        outputs.difficulty = step.linear(units, "difficulty")[..., 0]
        outputs.difficulty_weight = architecture.difficulty
    return outputs


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_gradients_equal_finite_differences(name: str) -> None:
    has_difficulty = CASES[name].difficulty is not None
    untrained = set() if has_difficulty else {"weight.difficulty", "bias.difficulty"}
    check_finite_differences(CASES[name], untrained)


@pytest.mark.parametrize("name", CASES)
def test_gradients_equal_autograd(name: str) -> None:
    check_autograd(CASES[name], forward_in_torch)


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
