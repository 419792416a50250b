"""Every kind of predictor goes through the suite for fitting."""

import pytest

from packages.lab.tests.predictors.test_graph import CASE as GRAPH
from packages.router.tests.predictors import network_cases
from packages.router.tests.predictors.fit_contract import FIT_CHECKS, Case
from prefill_router.predictors import PREDICTORS, TrunkConfig
from prefill_router.predictors.constant import ConstantConfig, GivenConfig
from prefill_router.predictors.knn import ClustersConfig, KnnMajorityConfig, KnnScoreConfig
from prefill_router.predictors.logistic import LogisticConfig
from prefill_router.predictors.stack import StackConfig
from prefill_router_lab.predictors.boosting import BoostingConfig

pytestmark = pytest.mark.slow

QUICK_TREES = BoostingConfig(
    rounds=60, learning_rate=0.1, columns=0.5, least_weight=2.0, l2=1.0, patience=10
)
CASES = {
    "shared_trunk": Case(
        config=TrunkConfig(hidden=(16, 8), seeds=2, keep=1, max_epochs=25, batch_size=32),
        order_atol=None,
    ),
    "constant": Case(config=ConstantConfig(), signal="none"),
    "knn_majority": Case(config=KnnMajorityConfig(k=15), cuts_labels=True),
    "knn_score": Case(config=KnnScoreConfig(k=15)),
    "clusters": Case(config=ClustersConfig(clusters=24, nearest=3, sharpness=1.0)),
    "logistic": Case(config=LogisticConfig(grid=(1e-2, 1e-1, 1.0), folds=3)),
    "xgboost": Case(config=QUICK_TREES),
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
    """Networks and the graph do in files of their own."""
    cases = [*CASES.values(), *network_cases.CASES.values(), GRAPH]
    entries = {kind: PREDICTORS.find(kind) for kind in PREDICTORS.names}
    tried = {type(case.config) for case in cases}
    assert tried == {entry.config for entry in entries.values()}
    assert len(tried) == len(PREDICTORS.names)
    for kind, entry in entries.items():
        assert entry.predictor.kind == kind
        assert entry.label
        assert entry.source
    assert len({entry.label for entry in entries.values()}) == len(PREDICTORS.names)
