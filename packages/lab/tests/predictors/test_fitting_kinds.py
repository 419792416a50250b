"""Every predictor of the lab goes through the suite for fitting."""

import pytest

from packages.lab.tests.predictors import network_cases
from packages.router.tests.fitting.test_out_of_fold import check_lighter
from packages.router.tests.part_cases import check_cases
from packages.router.tests.predictors.fit_contract import FIT_CHECKS, Case, check_entries
from prefill_router.plugins import names_of
from prefill_router.predictors import PREDICTORS
from prefill_router_lab.predictors.boosting import BoostingConfig
from prefill_router_lab.predictors.clusters import ClustersConfig
from prefill_router_lab.predictors.graph import GraphConfig

pytestmark = pytest.mark.slow

QUICK_TREES = BoostingConfig(
    rounds=60, learning_rate=0.1, columns=0.5, least_weight=2.0, l2=1.0, patience=10
)
QUICK_GRAPH = GraphConfig(
    hidden=16,
    dropout=0.1,
    networks=1,
    max_epochs=12,
    patience=4,
    batch_size=100,
    context=128,
    learning_rate=0.02,
)
KINDS = names_of("prefill-router-lab", "prefill_router.predictors")
CASES = {
    "clusters": Case(config=ClustersConfig(clusters=24, nearest=3, sharpness=1.0)),
    "graph": Case(config=QUICK_GRAPH),
    "xgboost": Case(config=QUICK_TREES),
}


@pytest.mark.parametrize("check", FIT_CHECKS)
@pytest.mark.parametrize("kind", CASES)
def test_fitting(kind: str, check: str) -> None:
    FIT_CHECKS[check](CASES[kind])


def test_every_kind_goes_through_the_suite() -> None:
    """Networks do in a file of their own."""
    cases = {**CASES, **{name.split()[0]: case for name, case in network_cases.CASES.items()}}
    to = "CASES in packages/lab/tests/predictors/test_fitting_kinds.py"
    check_cases(KINDS, cases, to=to, guide="predictors.md")
    check_entries({kind: PREDICTORS.find(kind) for kind in KINDS}, cases)


@pytest.mark.parametrize("kind", KINDS)
def test_lighter_options_differ_in_how_many_networks_there_are_alone(kind: str) -> None:
    check_lighter(kind)
