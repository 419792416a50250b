"""Options of training: the weight of disagreement, and those that make no sense."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from packages.router.tests.predictors.network_cases import CASES
from packages.router.tests.predictors.network_contract import (
    OPTIONS_WITHOUT_SENSE,
    check_disagreement,
    check_options,
    check_weight_of_one,
)
from prefill_router.errors import ConfigError
from prefill_router.predictors import TrunkConfig
from prefill_router.predictors.networks import UnifiedConfig
from prefill_router.predictors.training import query_weights

pytestmark = pytest.mark.slow

TRUNK = TrunkConfig(hidden=(16, 8), seeds=1, keep=1, max_epochs=12, batch_size=64)
CONFIGS: dict[str, Any] = {
    "shared_trunk": replace(TRUNK, learning_rate=0.02, dropout=(0.0, 0.0))
} | {kind: case.config for kind, case in CASES.items()}


@pytest.mark.parametrize("kind", CONFIGS)
def test_disagreement_weighs_as_much_as_its_weight(kind: str) -> None:
    check_disagreement(CONFIGS[kind])


@pytest.mark.parametrize("kind", CONFIGS)
def test_a_weight_of_one_changes_nothing(kind: str) -> None:
    check_weight_of_one(CONFIGS[kind])


def test_weights_of_queries() -> None:
    correct = np.array([[1, 0, 1], [1, 1, 1], [0, 0, 0], [1, np.nan, 0.2], [np.nan, 1, np.nan]])
    weights = query_weights(correct, disagreement_weight=4)
    np.testing.assert_allclose(weights / weights[1], [4, 1, 1, 4, 1])
    measured = (~np.isnan(correct)).sum(axis=1)
    assert np.average(weights, weights=measured) == pytest.approx(1)
    assert np.array_equal(query_weights(correct), np.ones(5))
    assert np.array_equal(query_weights(np.full((2, 2), np.nan)), np.ones(2))


@pytest.mark.parametrize("wrong", OPTIONS_WITHOUT_SENSE)
@pytest.mark.parametrize("kind", CASES)
def test_shared_options_that_make_no_sense(kind: str, wrong: dict[str, Any]) -> None:
    check_options(CASES[kind].config, wrong)


@pytest.mark.parametrize(
    ("config", "wrong"),
    [
        (UnifiedConfig, {"hidden": ()}),
        (UnifiedConfig, {"hidden": (8, 0)}),
        (UnifiedConfig, {"difficulty_weight": -1.0}),
        (UnifiedConfig, {"difficulty_weight": np.inf}),
        (TrunkConfig, {"disagreement_weight": -2.0}),
    ],
)
def test_options_that_make_no_sense_for_a_kind(config: Any, wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="must be"):
        config(**wrong)
