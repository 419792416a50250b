"""Routers that recipes give on made answers."""

from typing import Any

from packages.router.tests.fakes.planted_signal import states_of
from prefill_router.fitting import FitConfig, fit_router, recipe_from_dict
from prefill_router.router import Router
from prefill_router.testing import make_routing_dataset

ANSWERS = make_routing_dataset(queries=240, seed=3)
STATES = states_of(ANSWERS)
PREFILL: dict[str, Any] = {"kind": "prefill", "dim": 6}
SMALL: dict[str, Any] = {"kind": "shared_trunk", "seeds": 2, "keep": 1, "max_epochs": 5}


def fit_recipe(**parts: Any) -> Router:
    recipe = recipe_from_dict({"features": PREFILL, "predictor": "constant", **parts})
    return fit_router(
        ANSWERS, [STATES], config=FitConfig(test=0.15, recipe=recipe, resamples=0)
    ).router
