"""Learns a recipe's cascade from what a predictor says of train rows that it hasn't seen."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from jaxtyping import Int
from numpy.typing import NDArray

from prefill_router.calibration import Calibrator
from prefill_router.data import RoutingDataset, stratified_folds
from prefill_router.fitting.recipe import Recipe
from prefill_router.policy import FrugalCascade, Policy
from prefill_router.predictors import Examples, PredictorConfig
from prefill_router.predictors.base import Correctness


def chosen_policy(
    examples: Examples,
    recipe: Recipe,
    *,
    train: RoutingDataset,
    estimated_cost: NDArray[np.float64],
    calibrator: Calibrator | None,
    seed: int,
) -> tuple[Policy, Sequence[str]]:
    """The recipe's policy, learned where it must be, and notes.

    Args:
        examples: What the predictor was fitted on.
        recipe: It.
        train: The train part.
        estimated_cost: For answers whose cost wasn't observed, US dollars, [query, target].
        calibrator: What maps the predictions, as the router will have them.
        seed: Of the folds and the fits.

    Raises:
        FitError: There is nothing to learn from, or no target keeps the budget.
        DataError: There are fewer distinct prompts than folds.
    """
    policy = recipe.policy
    if not isinstance(policy, FrugalCascade):
        return policy, ()
    folds = stratified_folds(train, count=policy.folds, seed=seed)
    correctness = out_of_fold(recipe.predictor, examples, folds, seed=seed)
    paid = np.where(np.isnan(train.observed_cost), estimated_cost, train.observed_cost)
    found = policy.fit(
        correctness if calibrator is None else calibrator.calibrate(correctness),
        train.correct,
        paid,
        train.output_tokens,
        folds,
        targets=train.pool.names,
    )
    return found.policy, found.notes


def out_of_fold(
    predictor: PredictorConfig,
    examples: Examples,
    folds: Int[NDArray[np.int64], " query"],
    *,
    seed: int,
) -> Correctness:
    """What predictors of the other folds say of each row.

    Raises:
        FitError: The rows of the other folds teach nothing.
    """
    found = np.empty(examples.correct.shape)
    for fold in np.unique(folds).tolist():
        held = folds == fold
        others = np.flatnonzero(~held).tolist()
        part = replace(
            examples,
            features=examples.features[others],
            correct=examples.correct[others],
            groups=tuple(examples.groups[row] for row in others),
            costs=None if examples.costs is None else examples.costs[others],
        )
        fitted = predictor.fit(part, seed=seed).predictor
        found[held] = fitted.correctness(examples.features[held])
    return found
