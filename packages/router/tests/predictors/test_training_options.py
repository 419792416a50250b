"""Options of training: the weight of disagreement, and those that make no sense."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from packages.router.tests.predictors.network_cases import CASES
from prefill_router.errors import ConfigError
from prefill_router.predictors import Examples, TrunkConfig
from prefill_router.predictors.networks.ensemble import NetworkConfig
from prefill_router.predictors.networks.latent import IRTConfig
from prefill_router.predictors.networks.perceptrons import MLPConfig, UnifiedConfig
from prefill_router.predictors.training import query_weights

pytestmark = pytest.mark.slow

Array = NDArray[Any]
TRUNK = TrunkConfig(hidden=(16, 8), seeds=1, keep=1, max_epochs=12, batch_size=64)
CONFIGS: dict[str, Any] = {
    "shared_trunk": replace(TRUNK, learning_rate=0.02, dropout=(0.0, 0.0))
} | {kind: case.config for kind, case in CASES.items()}


def examples(features: Array, correct: Array) -> Examples:
    names = tuple(f"t{i}" for i in range(correct.shape[1]))
    return Examples(features, correct, names, ("",) * len(features))


def conflict(rows: int = 400) -> Examples:
    """The first target is right where the feature says so; where they disagree it is wrong."""
    random = np.random.default_rng(0)
    features = random.normal(size=(rows, 4)).astype(np.float32)
    first = (features[:, 0] > 0).astype(np.float64)
    both = np.stack([first, first], axis=1)
    disagree = random.random(rows) < 0.3
    both[disagree, 0], both[disagree, 1] = 1 - first[disagree], first[disagree]
    return examples(features, both)


@pytest.mark.parametrize("kind", CONFIGS)
def test_disagreement_weighs_what_it_is_told_to(kind: str) -> None:
    """In three of ten queries the targets disagree, and the first answers against the feature."""
    train = conflict()
    rows = np.zeros((2, 4), np.float32)
    rows[:, 0] = 1, -1
    gaps = []
    for weight in (0.1, 1.0, 20.0):
        config: Any = replace(CONFIGS[kind], disagreement_weight=weight)
        probability = config.fit(train).predictor.correctness(rows)
        gaps.append(probability[0, 0] - probability[1, 0])
    # Of the weight of all queries the others have 0.96, 0.7 and 0.1.
    assert gaps[0] > gaps[1] > 0.1
    assert gaps[2] < 0 < gaps[1] < gaps[0]


@pytest.mark.parametrize("kind", CONFIGS)
def test_a_weight_of_one_changes_nothing(kind: str) -> None:
    train = conflict(100)
    always = replace(train, correct=train.correct[:, 1:], targets=("t1",))
    for data, weight in ((train, 1.0), (always, 5.0)):  # a single target never disagrees
        config: Any = replace(CONFIGS[kind], disagreement_weight=weight)
        one = CONFIGS[kind].fit(data).predictor.tensors()
        other = config.fit(data).predictor.tensors()
        assert all(np.array_equal(one[name], other[name]) for name in one)


def test_weights_of_queries() -> None:
    correct = np.array([[1, 0, 1], [1, 1, 1], [0, 0, 0], [1, np.nan, 0.2], [np.nan, 1, np.nan]])
    weights = query_weights(correct, disagreement_weight=4)
    np.testing.assert_allclose(weights / weights[1], [4, 1, 1, 4, 1])
    measured = (~np.isnan(correct)).sum(axis=1)
    assert np.average(weights, weights=measured) == pytest.approx(1)
    assert np.array_equal(query_weights(correct), np.ones(5))
    assert np.array_equal(query_weights(np.full((2, 2), np.nan)), np.ones(2))


@pytest.mark.parametrize(
    "wrong",
    [
        {"seeds": 0},
        {"batch_size": 0},
        {"max_epochs": 0},
        {"patience": 0},
        {"dropout": 1.0},
        {"input_dropout": -0.1},
        {"learning_rate": 0.0},
        {"learning_rate": np.nan},
        {"weight_decay": -1.0},
        {"validation": 1.0},
        {"disagreement_weight": 0.0},
        {"disagreement_weight": np.inf},
    ],
)
@pytest.mark.parametrize("kind", CASES)
def test_shared_options_that_make_no_sense(kind: str, wrong: dict[str, Any]) -> None:
    config: type[NetworkConfig] = type(CASES[kind].config)  # type: ignore[assignment]
    with pytest.raises(ConfigError, match=f"{next(iter(wrong))} is .*must be"):
        config(**wrong)


@pytest.mark.parametrize(
    ("config", "wrong"),
    [
        (MLPConfig, {"hidden": ()}),
        (MLPConfig, {"hidden": (8, 0)}),
        (UnifiedConfig, {"hidden": ()}),
        (UnifiedConfig, {"difficulty_weight": -1.0}),
        (UnifiedConfig, {"difficulty_weight": np.inf}),
        (IRTConfig, {"dimensions": 0}),
        (IRTConfig, {"hidden": (0,)}),
        (TrunkConfig, {"disagreement_weight": -2.0}),
    ],
)
def test_options_that_make_no_sense_for_a_kind(config: Any, wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="must be"):
        config(**wrong)
