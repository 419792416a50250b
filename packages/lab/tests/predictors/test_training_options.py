"""Options of training the lab's networks: the weight of disagreement, and those without sense."""

from typing import Any

import pytest

from packages.lab.tests.predictors.network_cases import CASES
from packages.router.tests.predictors.network_contract import (
    OPTIONS_WITHOUT_SENSE,
    check_disagreement,
    check_options,
    check_weight_of_one,
)
from prefill_router.errors import ConfigError
from prefill_router_lab.predictors.latent import IRTConfig
from prefill_router_lab.predictors.perceptrons import MLPConfig

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("kind", CASES)
def test_disagreement_weighs_as_much_as_its_weight(kind: str) -> None:
    check_disagreement(CASES[kind].config)


@pytest.mark.parametrize("kind", CASES)
def test_a_weight_of_one_changes_nothing(kind: str) -> None:
    check_weight_of_one(CASES[kind].config)


@pytest.mark.parametrize("wrong", OPTIONS_WITHOUT_SENSE)
@pytest.mark.parametrize("kind", CASES)
def test_shared_options_that_make_no_sense(kind: str, wrong: dict[str, Any]) -> None:
    check_options(CASES[kind].config, wrong)


@pytest.mark.parametrize(
    ("config", "wrong"),
    [
        (MLPConfig, {"hidden": ()}),
        (MLPConfig, {"hidden": (8, 0)}),
        (IRTConfig, {"dimensions": 0}),
        (IRTConfig, {"hidden": (0,)}),
    ],
)
def test_options_that_make_no_sense_for_a_kind(config: Any, wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="must be"):
        config(**wrong)
