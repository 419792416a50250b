"""Training labels that may be wrong are replaced by how probably they are right.

A judge's label y that is wrong with the probability e says by Bayes' rule, given the probability p
that was predicted without it, that the answer is correct with the probability

    p (1 - e) / (p (1 - e) + (1 - p) e)     for y = 1, and with e in the place of 1 - e for y = 0.

The predictions are out of fold, so that no label confirms itself. They are learned from the labels
as they are, and corrected for their errors. Soft labels train any predictor; exact labels stay as
they are.
"""

from typing import Final

import numpy as np
from jaxtyping import Float64
from numpy.typing import NDArray

from prefill_router.calibration import CalibratorFit, CalibratorKind, fit_calibrator
from prefill_router.data import RoutingDataset
from prefill_router.predictors import Examples, PredictorConfig, out_of_fold
from prefill_router.progress import Progress

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
