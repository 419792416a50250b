"""Logs of traffic: systems whose labels chance selected, or that err."""

from dataclasses import replace

import numpy as np

from packages.router.tests.evaluation.trials import Array, random_system
from prefill_router.data import RoutingDataset
from prefill_router.policy import Predictions


def traffic(
    *, queries: int = 1500, asked: float = 0.3, error: float = 0.0, seed: int = 0
) -> tuple[Predictions, RoutingDataset, RoutingDataset]:
    """Predictions, what the log has, and all labels.

    A random target answers each query and is labelled, the others with the probability `asked`.
    """
    predictions, whole = random_system(queries=queries, seed=seed)
    random = np.random.default_rng([seed, 1])
    shape = whole.correct.shape
    answered = random.integers(0, shape[1], queries)[:, None] == np.arange(shape[1])
    chance = np.where(answered, 1.0, asked)
    return predictions, observed(whole, chance, random, error=error), whole


def observed(
    whole: RoutingDataset, chance: Array, random: np.random.Generator, *, error: float = 0.0
) -> RoutingDataset:
    """What is observed of the labels, with these probabilities."""
    seen = random.random(chance.shape) < chance
    wrong = random.random(chance.shape) < error
    label = np.where(wrong, 1 - whole.correct, whole.correct)
    return replace(
        whole,
        correct=np.where(seen, label, np.nan),
        recorded_cost=np.where(seen, whole.recorded_cost, np.nan),
        propensity=chance,
        label_error=np.where(seen, error, np.nan) if error else None,
    )
