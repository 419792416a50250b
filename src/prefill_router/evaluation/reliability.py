"""Whether probabilities hold: calibration error, Brier decomposition, log loss.

Of the queries that are given 0.7, do seven in ten turn out right? Each function takes weights, or
what `Bins.sums` makes of them, and gives one row per resample and one column per target, with all
targets together in the last.
"""

import numpy as np
from jaxtyping import Float
from numpy.typing import NDArray

from prefill_router.evaluation.binning import Bins, BinSums, Noise, PerBin, PerColumn
from prefill_router.evaluation.trial import Trial
from prefill_router.evaluation.weighted import Weights, divide

_EDGE = 1e-6
"""Predictions nearer to 0 or 1 count as this near in the log loss: at most 13.8 nats per label."""
_CHANCE = np.sqrt(2 / np.pi)
"""The mean of |z|, z standard normal."""


def calibration_error(sums: BinSums) -> PerColumn:
    """ECE: how far mean prediction and share of right answers are apart in a bin, on average.

    Naeini, Cooper and Hauskrecht (2015). NaN without labels. It is never below what chance makes of
    few queries per bin, see `chance_error`. Of each distance is taken off by how much the noise
    that the sums tell would lengthen it on average, the mean of a folded normal distribution.
    """
    from scipy.special import ndtr

    apart = np.abs(sums.predicted - sums.observed)
    noise = np.sqrt(_finite(sums.gap_noise, apart**2))
    steps = np.where(noise > 0, apart / np.where(noise > 0, noise, 1), 0)
    longer = noise * (_CHANCE * np.exp(-(steps**2) / 2) - 2 * steps * ndtr(-steps))
    return _over_bins(sums, apart - longer)


def chance_error(sums: BinSums) -> PerColumn:
    """What the calibration error of a perfectly calibrated system would be, by chance.

    Args:
        sums: With the noise of `sampling`.
    """
    apart = (sums.predicted - sums.observed) ** 2
    noise = np.where(np.isinf(sums.gap_noise), apart / _CHANCE**2, sums.gap_noise)
    return _over_bins(sums, _CHANCE * np.sqrt(noise))


def ece_by_target(
    bins: Bins, weights: Weights, *, noise: Noise = "resampling"
) -> Float[NDArray[np.float64], "resample target"]:
    """The calibration error of each target; with `all` noise taken off, of endless queries."""
    return calibration_error(bins.sums(weights, noise=noise))[:, :-1]


def decomposition(sums: BinSums) -> dict[str, PerColumn]:
    """The Brier score taken apart: Murphy (1973), with the terms within bins of Stephenson (2008).

    brier = reliability - resolution + uncertainty + within

    Returns:
        `brier`; `reliability`, the mean squared gap of the bins: 0 is perfect calibration;
        `resolution`, how far the bins' shares of right answers are from the overall one: higher is
        better; `uncertainty`, the variance of the labels; `within`, what the predictions vary
        within bins, less what they tell there.
    """
    gap = (sums.predicted - sums.observed) ** 2
    apart = (sums.observed - sums.label_mean[:, :, None]) ** 2
    reliability = _over_bins(sums, gap - _finite(sums.gap_noise, gap))
    resolution = _over_bins(sums, apart - _finite(sums.observed_noise, apart))
    uncertainty = sums.label_variance
    return {
        "brier": sums.brier,
        "reliability": reliability,
        "resolution": resolution,
        "uncertainty": uncertainty,
        "within": sums.brier - reliability + resolution - uncertainty,
    }


def brier_parts_by_target(
    bins: Bins, weights: Weights, *, noise: Noise = "resampling"
) -> dict[str, Float[NDArray[np.float64], "resample target"]]:
    """The Brier score of each target taken apart."""
    parts = decomposition(bins.sums(weights, noise=noise))
    return {name: table[:, :-1] for name, table in parts.items()}


def bias(sums: BinSums) -> PerColumn:
    """Mean prediction minus share of right answers: above 0, the target is thought too good."""
    return _over_bins(sums, sums.predicted - sums.observed)


def log_loss(trial: Trial, weights: Weights) -> PerColumn:
    """Mean cross-entropy in nats, soft labels as they are; always saying 0.5 gives 0.693."""
    known = ~np.isnan(trial.correct)
    said = np.clip(trial.correctness, _EDGE, 1 - _EDGE)
    label = np.where(known, trial.correct, 0)
    loss = np.where(known, -label * np.log(said) - (1 - label) * np.log1p(-said), 0)
    total, cells = (weights @ _with_all(table) for table in (loss, known.astype(np.float64)))
    return divide(total, cells)


def _with_all(
    table: Float[NDArray[np.float64], "query target"],
) -> Float[NDArray[np.float64], "query column"]:
    return np.concatenate([table, table.sum(axis=1, keepdims=True)], axis=1)


def _over_bins(sums: BinSums, values: PerBin) -> PerColumn:
    """The mean over the bins, by how many cells they have; NaN where there is none."""
    total = np.where(sums.weight > 0, sums.weight * values, 0).sum(axis=2)
    return divide(total, sums.cells)


def _finite(noise: PerBin, square: PerBin) -> PerBin:
    """The noise; of a bin with a single draw, which can't be told from noise, all there is."""
    return np.where(np.isinf(noise), square, noise)
