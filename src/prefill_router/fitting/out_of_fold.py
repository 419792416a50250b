"""Out-of-fold predictions: for train rows, by predictors that were fitted on the others.

A recipe's cascade is learned from them.
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
    """Predictions for train rows by predictors that weren't fitted on them.

    Attributes:
        correctness: Probabilities; NaN for a fold where no predictor can be fitted on the others.
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

    The features stay as they were fitted, and fewer networks are averaged
    (`PredictorConfig.lighter`).

    Args:
        config: The predictor's options.
        examples: Its training data, the rows of `train`.
        train: The train rows; folds are stratified, and equal prompts share one.
        seed: The seed of the folds and the fits.
        count: The number of folds.
        progress: Shows the progress.

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
    except FitError:  # for example, all labels are the same
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
