"""The lab's predictors but the graph are fitted where torch isn't installed."""

from typing import Any

import pytest

from packages.router.tests.predictors.test_without_torch import check_without_torch

pytestmark = pytest.mark.slow

KINDS: dict[str, dict[str, Any]] = {
    "mlp": {"max_epochs": 2},
    "multitask": {"max_epochs": 2},
    "matrix_factorisation": {"max_epochs": 2},
    "pairwise_factorisation": {"max_epochs": 2},
    "irt": {"max_epochs": 2},
    "clusters": {},
}


def test_fitting_never_imports_torch() -> None:
    check_without_torch(KINDS)
