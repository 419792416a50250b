"""Learns a recipe's cascade from what a predictor says of train rows that it hasn't seen."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from prefill_router.data import RoutingDataset
from prefill_router.errors import FitError
from prefill_router.fitting.out_of_fold import OutOfFold
from prefill_router.policy import FrugalCascade, Policy
from prefill_router.predictors.base import Correctness


def learned_cascade(
    config: FrugalCascade,
    correctness: Correctness,
    unseen: OutOfFold,
    *,
    train: RoutingDataset,
    estimated_cost: NDArray[np.float64],
) -> tuple[Policy, Sequence[str]]:
    """The cascade, and notes.

    Args:
        config: What the recipe says of it.
        correctness: Predictions of train rows, out of fold, as the router will have them.
        unseen: What these were before, and the folds.
        train: The train part.
        estimated_cost: For answers whose cost wasn't observed, US dollars, [query, target].

    Raises:
        FitError: There is nothing to learn from, or no target keeps the budget.
    """
    if np.isnan(unseen.correctness).any():
        raise FitError(
            "a cascade learns from predictions out of fold, and some fold has too few queries or "
            "labels; score more answers"
        )
    paid = np.where(np.isnan(train.observed_cost), estimated_cost, train.observed_cost)
    found = config.fit(
        correctness,
        train.correct,
        paid,
        train.output_tokens,
        unseen.folds,
        targets=train.pool.names,
    )
    return found.policy, found.notes
