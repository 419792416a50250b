"""Out-of-fold predictions: for train rows, by predictors that were fitted on the others.

A recipe's cascade is learned from them.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

import numpy as np
from jaxtyping import Float64, Int64
from numpy.typing import NDArray

from prefill_router.data import RoutingDataset, stratified_folds
from prefill_router.errors import DataError, FitError
from prefill_router.policy import FrugalCascade, Policy
from prefill_router.predictors import Correctness

FOLDS = 5


@final
@dataclass(frozen=True, eq=False)
class OutOfFold:
    """Predictions for train rows by predictors that weren't fitted on them.

    Attributes:
        correctness: Probabilities; NaN for a fold where no predictor can be fitted on the others.
        folds: The fold of each row.
    """

    correctness: Float64[NDArray[np.float64], "query target"]
    folds: Int64[NDArray[np.int64], " query"]


def folds_of(
    train: RoutingDataset, *, seed: int, count: int = FOLDS
) -> Int64[NDArray[np.int64], " query"]:
    """The fold of each train row, stratified; all 0 with fewer distinct prompts than folds."""
    try:
        return stratified_folds(train, count=count, seed=seed)
    except DataError:
        return np.zeros(len(train), dtype=np.int64)


def learned_cascade(
    config: FrugalCascade,
    correctness: Correctness,
    unseen: OutOfFold,
    *,
    train: RoutingDataset,
    estimated_cost: NDArray[np.float64],
) -> tuple[Policy, Sequence[str]]:
    """The learned cascade, and notes on it.

    Args:
        config: The recipe's options for it.
        correctness: Out-of-fold predictions for train rows, shrunk as in the router.
        unseen: The same predictions before shrinkage, with the folds.
        train: The train rows.
        estimated_cost: For answers whose cost wasn't observed, US dollars, [query, target].

    Raises:
        FitError: There is nothing to learn from, or no target is within the budget.
    """
    if np.isnan(unseen.correctness).any():
        raise FitError(
            "a cascade is learned from out-of-fold predictions, and some fold has too few queries "
            "or labels; score more answers"
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
