"""A small search on made-up rows, of which it is known what is best."""

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np

from packages.router.tests.fakes.planted_signal import PLANTED, states_of
from prefill_router.data import RoutingDataset, split
from prefill_router.fitting import TrainOnly
from prefill_router.testing import make_routing_dataset
from prefill_router_lab.search import SealedTest, SearchConfig, Space, seal, search
from prefill_router_lab.search.space import space_from_dict
from prefill_router_lab.search.trials import SearchTrial


def _noisy(dataset: RoutingDataset, share: float) -> RoutingDataset:
    """Some answers the other way round, so that no target is right wherever a lesser one is."""
    turned = np.random.default_rng(0).random(dataset.correct.shape) < share
    return dataclasses.replace(dataset, correct=np.abs(dataset.correct - turned))


ANSWERS = _noisy(make_routing_dataset(queries=240, seed=3), 0.1)
STATES = states_of(ANSWERS)
SPLIT = split(ANSWERS, seed=0)
KNOWS, GUESSES = "knows", "guesses"
CONFIG = SearchConfig(trials=8, folds=3, objective="auc")
SMALL: dict[str, Any] = {
    "features": {
        GUESSES: {"kind": "prefill", "select": "mean.1", "try": {"dim": [4, 8]}},
        KNOWS: {"kind": "prefill", "select": f"mean.{PLANTED}", "try": {"dim": [4, 8]}},
    },
    "predictors": {
        "clusters": {"kind": "clusters", "restarts": 1, "try": {"clusters": [8, 4]}},
        "constant": "constant",
    },
    "calibrations": ["none", "platt", "isotonic"],
}


def small_space(**changes: Any) -> Space:
    return space_from_dict({**SMALL, **changes})


def seal_test(folder: Path, dataset: RoutingDataset = ANSWERS) -> tuple[TrainOnly, SealedTest]:
    return seal(dataset, SPLIT, folder)


def run_search(
    folder: Path | None = None,
    *,
    dataset: RoutingDataset = ANSWERS,
    space: Space | None = None,
    config: SearchConfig = CONFIG,
) -> list[SearchTrial]:
    train, _ = seal(dataset, SPLIT, folder or Path("unused"))
    return search(train, space or small_space(), [STATES], config=config, folder=folder)


def without_times(trials: list[SearchTrial]) -> list[dict[str, Any]]:
    return [{**trial.to_dict(), "seconds": 0.0} for trial in trials]
