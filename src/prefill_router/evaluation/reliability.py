"""Calibration of probabilities: calibration error, Brier decomposition, log loss.

Of the queries that are predicted 0.7, are seven in ten answered correctly? Each function takes
weights, or the statistics that `Bins.sums` computes from them, and gives one row per resample and
one column per target, with all targets together in the last.
"""

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
from jaxtyping import Float
from numpy.typing import NDArray

from prefill_router.evaluation.binning import Bins, BinSums, Noise, PerBin, PerColumn
from prefill_router.evaluation.bootstrap import Estimate, Weights, divide
from prefill_router.evaluation.judged_predictions import Trial

_EDGE = 1e-6
"""The log loss clips predictions to this distance from 0 and 1: at most 13.8 nats per label."""
_CHANCE = np.sqrt(2 / np.pi)
"""The mean of |z|, z standard normal."""


def calibration_error(sums: BinSums) -> PerColumn:
    """ECE: the distance between mean prediction and share of right answers, averaged over bins.

    Naeini, Cooper and Hauskrecht (2015). NaN without labels. With few queries per bin, chance alone
    gives it a positive value, see `chance_error`. Each distance is reduced by the amount that the
    noise in `sums` adds to it on average, from the mean of a folded normal distribution.
    """
    from scipy.special import ndtr

    apart = np.abs(sums.predicted - sums.observed)
    noise = np.sqrt(_finite(sums.gap_noise, apart**2))
    steps = np.where(noise > 0, apart / np.where(noise > 0, noise, 1), 0)
    longer = noise * (_CHANCE * np.exp(-(steps**2) / 2) - 2 * steps * ndtr(-steps))
    return _over_bins(sums, apart - longer)


def chance_error(sums: BinSums) -> PerColumn:
    """The expected calibration error of a perfectly calibrated system.

    For each target this is the mean deviation of a binomial variable (De Moivre); for all targets
    together that of a normal one, since the answers to one query are correlated. Soft labels have
    less variance than 0/1 labels, so theirs is smaller by the ratio of the standard deviations.

    Args:
        sums: Statistics with the noise of `sampling`, if the last column is used.
    """
    single = np.isinf(sums.gap_noise[:, -1:])
    apart = np.abs(sums.predicted - sums.observed)[:, -1:]
    together = np.where(single, apart, _CHANCE * np.sqrt(sums.gap_noise[:, -1:]))
    mean = sums.label_mean
    scatter = np.sqrt(divide(sums.label_variance, mean * (1 - mean)))[:, :-1, None]
    alone = _deviation(sums.weight, sums.predicted)[:, :-1] * np.nan_to_num(scatter, nan=1.0)
    return _over_bins(sums, np.concatenate([alone, together], axis=1))


def _deviation(draws: PerBin, chance: PerBin) -> PerBin:
    """The mean distance of a binomial share from its probability; NaN without draws."""
    from scipy.special import gammaln, xlog1py, xlogy

    count, said = np.where(draws > 0, draws, np.nan), np.clip(chance, 0, 1)
    over = np.floor(count * said) + 1  # the lowest number of successes above the mean
    inside = over <= count
    over = np.where(inside, over, 1)
    ways = gammaln(count + 1) - gammaln(over) - gammaln(count - over + 1)
    size = ways + xlogy(over, said) + xlog1py(count - over + 1, -said)
    return np.where(inside, 2 * np.exp(size), 0) / count


def with_chance(
    estimates: Mapping[str, Estimate],
    name: str = "ece_mean",
    by_chance: str = "ece_by_chance",
) -> dict[str, Estimate]:
    """The estimates with an interval of the calibration error on infinitely many queries.

    The error is never negative, so chance only makes it larger: by `chance_error` where the
    probabilities are calibrated, by almost nothing where they are far off. Which of these applies
    is unknown, so the interval has the width of the resamples' interval, is centred on the error,
    and is extended downwards by `chance_error`, to no less than 0.

    Args:
        estimates: Estimates by name; returned unchanged where either name is missing.
        name: Name of the calibration error.
        by_chance: Name of the expected error by chance.
    """
    found = dict(estimates)
    if name in found and by_chance in found and np.isfinite(found[name].lower):
        one = found[name]
        half = (one.upper - one.lower) / 2
        lower = max(one.value - half - found[by_chance].value, 0.0)
        found[name] = replace(one, lower=lower, upper=one.value + half)
    return found


def ece_by_target(
    bins: Bins, weights: Weights, *, noise: Noise = "resampling"
) -> Float[NDArray[np.float64], "resample target"]:
    """The calibration error of each target; with noise `all`, that on infinitely many queries."""
    return calibration_error(bins.sums(weights, noise=noise))[:, :-1]


def decomposition(sums: BinSums) -> dict[str, PerColumn]:
    """Decompose the Brier score: Murphy (1973), with the within-bin terms of Stephenson (2008).

    brier = reliability - resolution + uncertainty + within

    Returns:
        `brier`; `reliability`, the mean squared gap of the bins: 0 is perfect calibration;
        `resolution`, the mean squared distance of the bins' shares of right answers to the overall
        one: higher is better; `uncertainty`, the variance of the labels; `within`, the variance of
        the predictions within bins minus twice their covariance with the labels there.
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
    """The decomposed Brier score of each target."""
    parts = decomposition(bins.sums(weights, noise=noise))
    return {name: table[:, :-1] for name, table in parts.items()}


def bias(sums: BinSums) -> PerColumn:
    """Mean prediction minus share of right answers: above 0, the target is overestimated."""
    return _over_bins(sums, sums.predicted - sums.observed)


def log_loss(trial: Trial, weights: Weights) -> PerColumn:
    """Mean cross-entropy in nats, soft labels as they are; always predicting 0.5 gives 0.693."""
    known = ~np.isnan(trial.correct)
    said = np.clip(trial.correctness, _EDGE, 1 - _EDGE)
    label = np.where(known, trial.correct, 0)
    loss = np.where(known, -label * np.log(said) - (1 - label) * np.log1p(-said), 0)
    total, cells = (
        weights @ np.concatenate([table, table.sum(axis=1, keepdims=True)], axis=1)
        for table in (loss, known.astype(np.float64))
    )
    return divide(total, cells)


def _over_bins(sums: BinSums, values: PerBin) -> PerColumn:
    """The mean over the bins, weighted by their cells; NaN without cells."""
    total = np.where(sums.weight > 0, sums.weight * values, 0).sum(axis=2)
    return divide(total, sums.cells)


def _finite(noise: PerBin, square: PerBin) -> PerBin:
    """The noise; in a bin with a single draw, where it can't be estimated, the whole square."""
    return np.where(np.isinf(noise), square, noise)
