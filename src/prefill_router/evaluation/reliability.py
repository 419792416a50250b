"""Whether probabilities hold: calibration error, Brier decomposition, log loss.

Of the queries that are given 0.7, do seven in ten turn out right? Each function takes weights, or
what `Bins.sums` makes of them, and gives one row per resample and one column per target, with all
targets together in the last.
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

    For each target the mean deviation of a binomial variable (De Moivre), of all targets together
    that of a normal one, since the answers to one query go together. Soft labels scatter less than
    right and wrong; it is shorter by the ratio.

    Args:
        sums: With the noise of `sampling`, if the last column is looked at.
    """
    single = np.isinf(sums.gap_noise[:, -1:])
    apart = np.abs(sums.predicted - sums.observed)[:, -1:]
    together = np.where(single, apart, _CHANCE * np.sqrt(sums.gap_noise[:, -1:]))
    mean = sums.label_mean
    scatter = np.sqrt(divide(sums.label_variance, mean * (1 - mean)))[:, :-1, None]
    alone = _deviation(sums.weight, sums.predicted)[:, :-1] * np.nan_to_num(scatter, nan=1.0)
    return _over_bins(sums, np.concatenate([alone, together], axis=1))


def _deviation(draws: PerBin, chance: PerBin) -> PerBin:
    """The mean distance of a share from its chance, in so many draws; NaN where there is none."""
    from scipy.special import gammaln, xlog1py, xlogy

    count, said = np.where(draws > 0, draws, np.nan), np.clip(chance, 0, 1)
    over = np.floor(count * said) + 1  # the first number of successes above the mean
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
    """The same with an interval that covers the calibration error of endless queries.

    The error is never negative, so chance only makes it larger: by what `chance_error` says where
    every probability holds, by nearly nothing where they are far off. Nobody knows which, so the
    interval is as wide as the resamples spread, around the error, and goes down by all that chance
    may have added, to 0 at the lowest.

    Args:
        estimates: By name; returned as they are where either is lacking.
        name: Of the calibration error.
        by_chance: Of what chance makes of it.
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
    total, cells = (
        weights @ np.concatenate([table, table.sum(axis=1, keepdims=True)], axis=1)
        for table in (loss, known.astype(np.float64))
    )
    return divide(total, cells)


def _over_bins(sums: BinSums, values: PerBin) -> PerColumn:
    """The mean over the bins, by how many cells they have; NaN where there is none."""
    total = np.where(sums.weight > 0, sums.weight * values, 0).sum(axis=2)
    return divide(total, sums.cells)


def _finite(noise: PerBin, square: PerBin) -> PerBin:
    """The noise; of a bin with a single draw, which can't be told from noise, all there is."""
    return np.where(np.isinf(noise), square, noise)
