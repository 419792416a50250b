"""Predictions of train rows by predictors that were fitted on the others.

A recipe's cascade is learned from what a predictor says of train rows that it hasn't seen.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import final

import numpy as np
from jaxtyping import Float64, Int64
from numpy.typing import NDArray

from prefill_router.data import RoutingDataset, stratified_folds
from prefill_router.errors import DataError, FitError
from prefill_router.policy import FrugalCascade, Policy
from prefill_router.predictors import Correctness, Examples, PredictorConfig
from prefill_router.progress import Progress, SilentProgress

FOLDS = 5


@final
@dataclass(frozen=True, eq=False)
class OutOfFold:
    """Predictions of train rows that no predictor of theirs has seen.

    Attributes:
        correctness: Probabilities; NaN for the rows of a fold without which nothing can be fitted.
        folds: The fold of each row.
    """

    correctness: Float64[NDArray[np.float64], "query target"]
    folds: Int64[NDArray[np.int64], " query"]


def out_of_fold(
    config: PredictorConfig,
    examples: Examples,
    train: RoutingDataset,
    *,
    seed: int,
    count: int = FOLDS,
    progress: Progress | None = None,
) -> OutOfFold:
    """Fit the predictor several times, each time without one fold, and predict that fold.

    The features stay as they were fitted, and networks are averaged over fewer
    (`PredictorConfig.lighter`).

    Args:
        config: How the predictor is fitted.
        examples: What it was fitted on, the rows of `train`.
        train: The train part; folds are stratified, and equal prompts share one.
        seed: Of the folds and the fits.
        count: How many folds there are.
        progress: Shows how far it is.

    Raises:
        MissingExtraError: A package isn't installed.
    """
    result = np.full(examples.correct.shape, np.nan)
    folds = folds_of(train, seed=seed, count=count)
    if not folds.any():
        return OutOfFold(result, folds)
    with (progress or SilentProgress()).task("out of fold", total=float(count)) as advance:
        for fold in range(count):
            result[folds == fold] = _predicted(config, examples, folds, fold, seed)
            advance()
    return OutOfFold(result, folds)


def folds_of(
    train: RoutingDataset, *, seed: int, count: int = FOLDS
) -> Int64[NDArray[np.int64], " query"]:
    """The fold of each train row, stratified; all 0 with fewer distinct prompts than folds."""
    try:
        return stratified_folds(train, count=count, seed=seed)
    except DataError:
        return np.zeros(len(train), dtype=np.int64)


def _predicted(
    config: PredictorConfig,
    examples: Examples,
    folds: Int64[NDArray[np.int64], " query"],
    fold: int,
    seed: int,
) -> NDArray[np.float64] | float:
    rest = np.flatnonzero(folds != fold)
    try:
        others = replace(
            examples,
            features=examples.features[rest],
            correct=examples.correct[rest],
            groups=tuple(examples.groups[row] for row in rest),
            costs=None if examples.costs is None else examples.costs[rest],
        )
        fitted = config.lighter().fit(others, seed=seed)
    except FitError:  # such as one whose labels are all the same
        return np.nan
    return fitted.predictor.correctness(examples.features[folds == fold])


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
