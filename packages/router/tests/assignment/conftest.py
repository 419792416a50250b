"""A router of made-up answers that reads the text alone, and the answers, also unseen ones."""

from pathlib import Path

import pytest

from prefill_router.data import RoutingDataset, write_dataset
from prefill_router.fitting import FitConfig, fit_router, recipe_from_dict
from prefill_router.router import Router
from prefill_router.testing import make_routing_dataset

_RECIPE = {
    "features": {"kind": "complexity"},
    "predictor": {"kind": "logistic"},
    "cost": "median",
}


@pytest.fixture(scope="session")
def answers() -> RoutingDataset:
    return make_routing_dataset(queries=200, missing=0.05)


@pytest.fixture(scope="session")
def router(answers: RoutingDataset) -> Router:
    config = FitConfig(test=0.4, recipe=recipe_from_dict(_RECIPE), resamples=0)
    return fit_router(answers, config=config).router


@pytest.fixture(scope="session")
def workspace(
    router: Router, answers: RoutingDataset, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """A folder with the router and the answers."""
    folder = tmp_path_factory.mktemp("saved")
    router.save(folder / "router")
    write_dataset(answers, folder / "answers")
    return folder
