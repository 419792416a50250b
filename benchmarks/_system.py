"""Made-up predictions and answers of the size of the real case."""

import os
import platform
from typing import Any

import numpy as np

from prefill_router.cost import CostScale
from prefill_router.data import Query, RoutingDataset
from prefill_router.policy import Predictions
from prefill_router.targets import Pool, Target

QUERIES, TARGETS = 1450, 14


def make_trial_data(*, noise: float, seed: int = 0) -> tuple[Predictions, RoutingDataset]:
    """A system, and what happened; the same seed gives the same answers for any noise.

    Args:
        noise: How little the probabilities know, from 0 on.
        seed: Other answers.
    """
    random = np.random.default_rng(seed)
    shape = (QUERIES, TARGETS)
    skill = random.permutation(np.linspace(0.3, 0.75, TARGETS))
    chance = np.clip(skill + random.normal(0, 0.25, (QUERIES, 1)), 0.02, 0.98)
    correct = (random.random(shape) < chance).astype(np.float64)
    estimated = 1e-5 * np.geomspace(1, 60, TARGETS) * random.uniform(0.5, 2, (QUERIES, 1))
    cost = estimated * random.lognormal(0, 0.5, shape)
    missing = random.random(shape) < 0.01
    correct[missing], cost[missing] = np.nan, np.nan
    pool = Pool(tuple(Target(name=f"target-{k}") for k in range(TARGETS)))
    queries = [Query(f"q{i}", "?") for i in range(QUERIES)]
    predictions = Predictions(
        query_ids=tuple(query.id for query in queries),
        targets=pool.names,
        correctness=np.clip(chance + random.normal(0, noise, shape), 0, 1),
        estimated_cost=estimated,
        scale=CostScale(float(estimated.min()), float(estimated.max())),
    )
    return predictions, RoutingDataset.of(queries, pool, correct, recorded_cost=cost)


def machine() -> dict[str, Any]:
    """What the figures were measured on."""
    return {"numpy": np.__version__, "cores": os.cpu_count(), "system": platform.platform()}
