"""Every predictor of the router goes through the suite for fitting."""

import pytest

from packages.router.tests.part_cases import check_cases
from packages.router.tests.predictors import network_cases
from packages.router.tests.predictors.fit_contract import FIT_CHECKS, Case, check_entries
from prefill_router.predictors import PREDICTORS, TrunkConfig
from prefill_router.predictors.constant import ConstantConfig
from prefill_router.predictors.given import GivenConfig
from prefill_router.predictors.knn import KnnMajorityConfig, KnnScoreConfig
from prefill_router.predictors.logistic import LogisticConfig
from prefill_router.predictors.stack import StackConfig

pytestmark = pytest.mark.slow

CASES = {
    "shared_trunk": Case(
        config=TrunkConfig(hidden=(16, 8), seeds=2, keep=1, max_epochs=25, batch_size=32),
        order_atol=None,
    ),
    "constant": Case(config=ConstantConfig(), signal="none"),
    "knn_majority": Case(config=KnnMajorityConfig(k=15), cuts_labels=True),
    "knn_score": Case(config=KnnScoreConfig(k=15)),
    "logistic": Case(config=LogisticConfig(grid=(1e-2, 1e-1, 1.0), folds=3)),
    "stack": Case(
        config=StackConfig(
            members=({"kind": "knn_score", "k": 15}, {"kind": "logistic", "c": 0.1})
        ),
    ),
    "given": Case(config=GivenConfig(), signal="given"),
}


@pytest.mark.parametrize("check", FIT_CHECKS)
@pytest.mark.parametrize("kind", CASES)
def test_fitting(kind: str, check: str) -> None:
    FIT_CHECKS[check](CASES[kind])


def test_every_kind_goes_through_the_suite() -> None:
    """Networks do in a file of their own; other distributions' kinds in their own tests."""
    cases = {**CASES, **{name.split()[0]: case for name, case in network_cases.CASES.items()}}
    to = "CASES in packages/router/tests/predictors/test_fitting_kinds.py"
    check_cases(PREDICTORS.own, cases, to=to, guide="predictors.md")
    check_entries({kind: PREDICTORS.find(kind) for kind in PREDICTORS.own}, cases)
