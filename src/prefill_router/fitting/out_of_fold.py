"""Out-of-fold predictions for train rows, and what is learned from them.

A recipe's cascade is one such thing. Another are training labels that may be wrong: they are
replaced by how probably they are right. A judge's label y that is wrong with the probability e says
by Bayes' rule, given the probability p that was predicted without it, that the answer is correct
with the probability

    p (1 - e) / (p (1 - e) + (1 - p) e)     for y = 1, and with e in the place of 1 - e for y = 0.

The predictions are out of fold, so that no label confirms itself. They are learned from the labels
as they are, and corrected for their errors. Soft labels train any predictor; exact labels stay as
they are.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, final

import numpy as np
from jaxtyping import Float64, Int64
from numpy.typing import NDArray

from prefill_router.calibration import CalibratorFit, CalibratorKind, fit_calibrator
from prefill_router.data import RoutingDataset, stratified_folds
from prefill_router.errors import DataError, FitError
from prefill_router.policy import FrugalCascade, Policy
from prefill_router.predictors import Correctness, Examples, PredictorConfig, out_of_fold
from prefill_router.progress import Progress

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


Table = Float64[NDArray[np.float64], "query target"]
_EDGE: Final = 0.02
"""Corrected predictions are kept this far from 0 and 1, where the correction is unsure."""
_LEAST: Final = 1e-6
_ROUNDS: Final = 3
"""Rounds in which a calibrator and the labels that it learns from are fitted in turn."""


def posterior(label: Table, error: Table, prior: Table) -> Table:
    """The probability that each answer is correct, given its label and a prior.

    Args:
        label: Labels in [0, 1]; NaN stays NaN.
        error: The probability that each is wrong, below 0.5; 0 or NaN where it is exact.
        prior: The probability without the label.
    """
    wrong = np.nan_to_num(error)

    def given(chance: Table) -> Table:
        right = prior * chance
        return right / (right + (1 - prior) * (1 - chance))

    erring = wrong > 0
    wrong = np.where(erring, wrong, 0.25)  # any error: the result is used for erring labels only
    soft = label * given(1 - wrong) + (1 - label) * given(wrong)
    return np.where(erring, soft, label)


def corrected(label: Table, error: Table | None) -> Table:
    """Labels that are right on average; single ones may lie outside [0, 1]."""
    if error is None:
        return label
    wrong = np.nan_to_num(error)
    return (label - wrong) / (1 - 2 * wrong)


def posterior_labels(
    config: PredictorConfig,
    examples: Examples,
    error: Table | None,
    *,
    seed: int,
    progress: Progress,
) -> Table:
    """The labels to train on.

    Args:
        config: The predictor's options.
        examples: Its training data, with the labels as they are.
        error: The probability that each is wrong; NaN or 0 where it is exact, None where all are.
        seed: The seed of the fits.
        progress: Shows the progress.

    Raises:
        MissingExtraError: A package isn't installed.
    """
    if error is None or not (examples.present & (np.nan_to_num(error) > 0)).any():
        return examples.correct
    count = np.maximum(examples.present.sum(axis=0), 1)
    mean = np.where(examples.present, np.nan_to_num(error), 0).sum(axis=0) / count
    rates = np.clip((examples.base_rates - mean) / (1 - 2 * mean), _EDGE, 1 - _EDGE)
    said = out_of_fold(config, examples, seed=seed, progress=progress)
    prior = np.clip((said - mean) / (1 - 2 * mean), _EDGE, 1 - _EDGE)
    return posterior(examples.correct, error, np.where(np.isnan(said), rates, prior))


def calibrate(kind: CalibratorKind, predicted: Table, part: RoutingDataset) -> CalibratorFit:
    """A calibrator; from labels that may be wrong by expectation maximisation.

    Args:
        kind: The kind of calibrator.
        predicted: Predictions for the calibration part.
        part: The calibration part.
    """
    label, error, names = part.correct, part.label_error, part.pool.names
    if error is None:
        return fit_calibrator(kind, predicted, label, names)
    prior = predicted
    for _ in range(_ROUNDS):
        inside = np.clip(prior, _LEAST, 1 - _LEAST)
        found = fit_calibrator(kind, predicted, posterior(label, error, inside), names)
        prior = found.calibrator.calibrate(predicted)
    return found


def error_notes(train: RoutingDataset) -> tuple[str, ...]:
    """A note on how many of the labels are wrong, if any."""
    if train.label_error is None or np.isnan(train.label_error).all():
        return ()
    mean = float(np.nan_to_num(train.label_error)[~np.isnan(train.correct)].mean())
    return (f"{100 * mean:.1f} % of the training labels are expected to be wrong",)
