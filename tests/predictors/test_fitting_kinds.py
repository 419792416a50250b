"""Every kind of predictor goes through the suite for fitting."""

import pytest
from fit_contract import FIT_CHECKS, Case

from prefill_router.predictors import TrunkConfig

CASES = {
    "shared_trunk": Case(
        config=TrunkConfig(hidden=(16, 8), seeds=2, keep=1, max_epochs=25, batch_size=32),
        order_atol=None,
    ),
}


@pytest.mark.parametrize("check", FIT_CHECKS)
@pytest.mark.parametrize("kind", CASES)
def test_fitting(kind: str, check: str) -> None:
    FIT_CHECKS[check](CASES[kind])
