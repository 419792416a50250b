"""Made-up predictions to assign, and the best assignment by trying all of them."""

import itertools
from collections.abc import Mapping

import numpy as np

from prefill_router.cost import CostScale
from prefill_router.policy import Predictions


def predictions_of(correctness: np.ndarray, cost: np.ndarray) -> Predictions:
    return Predictions(
        query_ids=tuple(f"q{i}" for i in range(len(correctness))),
        targets=tuple(f"t{k}" for k in range(correctness.shape[1])),
        correctness=correctness,
        estimated_cost=cost,
        scale=CostScale(float(cost.min()), float(cost.max())),
    )


def random_predictions(prompts: int, targets: int, seed: int) -> Predictions:
    """Targets of rising price; probabilities follow the price on average."""
    random = np.random.default_rng(seed)
    level = np.linspace(-1, 1, targets)
    logits = random.normal(0, 1, (prompts, 1)) + level + random.normal(0, 0.7, (prompts, targets))
    cost = 3.0 ** np.arange(targets) * random.uniform(0.5, 2, (prompts, targets))
    return predictions_of(1 / (1 + np.exp(-logits)), cost)


def spread_of(predictions: Predictions) -> tuple[float, float]:
    """The cost of the cheapest and of the most expensive assignment."""
    cost = predictions.estimated_cost
    return float(cost.min(axis=1).sum()), float(cost.max(axis=1).sum())


def find_best_right(predictions: Predictions, budget: float, limits: Mapping[str, int]) -> float:
    """The expected right answers of the best assignment; -inf where none is allowed."""
    rows, count = range(len(predictions)), len(predictions.targets)
    most = [limits.get(name, len(predictions)) for name in predictions.targets]
    best = -np.inf
    for columns in itertools.product(range(count), repeat=len(predictions)):
        choice = list(columns)
        is_within = (np.bincount(choice, minlength=count) <= most).all()
        if is_within and predictions.estimated_cost[rows, choice].sum() <= budget:
            best = max(best, float(predictions.correctness[rows, choice].sum()))
    return best


def find_least_cost(predictions: Predictions, limits: Mapping[str, int]) -> float:
    """The cost of the cheapest assignment within the limits."""
    rows, count = range(len(predictions)), len(predictions.targets)
    most = [limits.get(name, len(predictions)) for name in predictions.targets]
    return min(
        float(predictions.estimated_cost[rows, list(columns)].sum())
        for columns in itertools.product(range(count), repeat=len(predictions))
        if (np.bincount(columns, minlength=count) <= most).all()
    )
