"""The lab's predictors with networks of their own hold to the suite for fitting."""

import pytest

from packages.lab.tests.predictors.network_cases import CASES
from packages.router.tests.predictors.fit_contract import FIT_CHECKS

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("check", FIT_CHECKS)
@pytest.mark.parametrize("kind", CASES)
def test_fitting_networks(kind: str, check: str) -> None:
    FIT_CHECKS[check](CASES[kind])
