"""Small, quick options of predictors with networks of their own, and data with planted signals."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from packages.router.tests.predictors.fit_contract import Case
from prefill_router.predictors import Examples
from prefill_router.predictors.networks import UnifiedConfig

Array = NDArray[Any]
QUICK: dict[str, Any] = {
    "seeds": 1,
    "max_epochs": 12,
    "batch_size": 64,
    "learning_rate": 0.02,
    "weight_decay": 0.01,
    "dropout": 0.0,
    "input_dropout": 0.0,
}
CASES = {"unified_multitask": Case(config=UnifiedConfig(**QUICK, hidden=(16, 8)))}


def draw_examples(rows: int = 500, targets: int = 4, *, seed: int = 0) -> tuple[Examples, Array]:
    """Targets of rising ability on queries whose difficulty is one of the features."""
    random = np.random.default_rng(seed)
    features = random.normal(size=(rows, 5)).astype(np.float32)
    hard = 2 * features[:, 0].astype(np.float64)
    logits = np.linspace(-1.5, 1.5, targets) - hard[:, None]
    correct = (random.logistic(size=logits.shape) < logits).astype(np.float64)
    names = tuple(f"t{i}" for i in range(targets))
    return Examples(features, correct, names, ("",) * rows), hard


def contest(rows: int = 3000, *, level: float, seed: int = 0) -> Examples:
    """Each target has a feature of its own; all share a level that no feature shows."""
    random = np.random.default_rng(seed)
    features = random.normal(size=(rows, 3)).astype(np.float32)
    logits = 1.5 * features + level * random.normal(size=(rows, 1))
    correct = (random.logistic(size=(rows, 3)) < logits).astype(np.float64)
    return Examples(features, correct, ("a", "b", "c"), ("",) * rows)


def conflict(rows: int = 400) -> Examples:
    """The first target is right where the feature says so; where they disagree it is wrong."""
    random = np.random.default_rng(0)
    features = random.normal(size=(rows, 4)).astype(np.float32)
    first = (features[:, 0] > 0).astype(np.float64)
    correct = np.stack([first, first], axis=1)
    disagree = random.random(rows) < 0.3
    correct[disagree, 0], correct[disagree, 1] = 1 - first[disagree], first[disagree]
    return Examples(features, correct, ("t0", "t1"), ("",) * rows)


def compute_slope(logits: Array, edge: Array) -> float:
    return float((logits * edge).sum() / (edge * edge).sum())
