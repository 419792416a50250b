"""Logs of traffic: systems whose labels chance selected, or that err."""

from dataclasses import replace

import numpy as np

from packages.router.tests.evaluation.trials import Array, random_system
from prefill_router.data import RoutingDataset
from prefill_router.policy import Predictions


def traffic(
    *, queries: int = 1500, label_share: float = 0.3, error: float = 0.0, seed: int = 0
) -> tuple[Predictions, RoutingDataset, RoutingDataset]:
    """Predictions, what the log has, and all labels.

    A random target answers each query and is labelled; each other one is with the probability
    `label_share`.
    """
    predictions, dataset = random_system(queries=queries, seed=seed)
    random = np.random.default_rng([seed, 1])
    shape = dataset.correct.shape
    answered = random.integers(0, shape[1], queries)[:, None] == np.arange(shape[1])
    chance = np.where(answered, 1.0, label_share)
    return predictions, draw_observed(dataset, chance, random, error=error), dataset


def draw_observed(
    dataset: RoutingDataset, chance: Array, random: np.random.Generator, *, error: float = 0.0
) -> RoutingDataset:
    """The labels, each observed with its probability."""
    is_observed = random.random(chance.shape) < chance
    wrong = random.random(chance.shape) < error
    label = np.where(wrong, 1 - dataset.correct, dataset.correct)
    return replace(
        dataset,
        correct=np.where(is_observed, label, np.nan),
        recorded_cost=np.where(is_observed, dataset.recorded_cost, np.nan),
        propensity=chance,
        label_error=np.where(is_observed, error, np.nan) if error else None,
    )
