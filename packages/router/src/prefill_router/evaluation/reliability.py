"""Calibration of probabilities: its errors, from predictions that are sorted into bins once.

Of the queries that are predicted 0.7, are seven in ten answered correctly? Each function takes
weights, or the statistics that `Bins.sums` computes from them, and gives one row per resample and
one column per target, with all targets together in the last. Since the predictions are sorted into
bins once, the sums under any weights need one matrix product.

In a resample, the statistics of a bin carry the noise of the sample and that of the resampling, and
both bias non-negative errors upwards. The weights separate the two: a query that counts w times
adds w squared to the variance of a sum, where a sample of that size would have w. Subtracting the
difference (`resampling`) centres the resamples on the measured value; without resampling it is
zero. Subtracting the whole noise (`all`) estimates the value for infinitely many queries: Ferro and
Fricker, "A bias-corrected decomposition of the Brier score" (2012). The cells of one query count as
one draw.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal, final

import numpy as np
from jaxtyping import Bool, Float, Int
from numpy.typing import NDArray

from prefill_router.errors import ConfigError
from prefill_router.evaluation.bootstrap import Estimate, Weights, divide
from prefill_router.evaluation.judged_predictions import Trial
from prefill_router.evaluation.quality_checks import PerCell
from prefill_router.short_repr import short_repr

if TYPE_CHECKING:
    from scipy.sparse import csr_array


BinKind = Literal["width", "mass"]
Noise = Literal["resampling", "sampling", "all"]
BINS = 15
"""As in Guo et al., "On calibration of modern neural networks" (2017)."""
POOLED = "all targets"
PerBin = Float[NDArray[np.float64], "resample column bin"]
PerColumn = Float[NDArray[np.float64], "resample column"]
_LINEAR, _SQUARED = 3, 5


@final
@dataclass(frozen=True, eq=False)
class BinSums:
    """Statistics of the bins under given weights of the queries.

    Attributes:
        weight: How many cells are in each bin.
        predicted: Mean prediction of each bin; NaN in an empty bin.
        observed: Mean label of each bin.
        gap_noise: Variance of `predicted - observed`, of the requested noise; infinite in a bin
            with a single draw, where it can't be estimated.
        observed_noise: Variance of `observed`, likewise.
        cells: How many cells each column has.
        label_mean: Mean label of each column.
        label_variance: Variance of the labels of each column; p(1 - p) for labels of 0 and 1.
        brier: Mean squared difference of prediction and label.
    """

    weight: PerBin
    predicted: PerBin
    observed: PerBin
    gap_noise: PerBin
    observed_noise: PerBin
    cells: PerColumn
    label_mean: PerColumn
    label_variance: PerColumn
    brier: PerColumn

    @property
    def share(self) -> PerBin:
        """The share of each column's cells in each bin."""
        return divide(self.weight, self.cells[:, :, None])


@short_repr
@final
@dataclass(frozen=True, eq=False)
class Bins:
    """The labelled cells of a trial in bins of predicted probability; unlabelled ones are left out.

    There is a column for each target and a last one for all targets together.

    Attributes:
        names: Names of the columns.
        kind: `width` for bins of equal width; `mass` for bins with equally many cells, as far as
            ties, which stay together, allow.
        count: Number of bins.
        lower: Lowest prediction in each bin; NaN in an empty one.
        upper: Highest prediction in each bin; NaN in an empty one.
        linear: Per query: cells, predictions and labels of each bin of each column.
        squared: Per query: the products for the variances.
        totals: Per query and column: cells, labels, their squares, squared differences.
    """

    names: tuple[str, ...]
    kind: BinKind
    count: int
    lower: Float[NDArray[np.float64], "column bin"]
    upper: Float[NDArray[np.float64], "column bin"]
    linear: "csr_array[Any, Any]"
    squared: "csr_array[Any, Any]"
    totals: Float[NDArray[np.float64], "query 4 column"]

    @classmethod
    def of(cls, trial: Trial, *, kind: BinKind = "width", count: int = BINS) -> "Bins":
        """Put a trial's cells into bins.

        Args:
            trial: The judged system.
            kind: Bins of equal width, or with equally many cells.
            count: Number of bins.

        Raises:
            ConfigError: The count isn't positive.
        """
        if count < 1:
            raise ConfigError(f"{count} bins were requested; give at least 1 (15 is usual)")
        is_known = ~np.isnan(trial.correct)
        columns = [*(is_known & chosen for chosen in _mask_targets(is_known)), is_known]
        places = [_place_cells(trial.correctness, cells, kind, count) for cells in columns]
        tables = [_sum_cells(trial, *pair, count) for pair in zip(columns, places, strict=True)]
        pairs = zip(columns, places, strict=True)
        bounds = [_find_bounds(trial.correctness, *pair, count) for pair in pairs]
        return cls(
            (*trial.targets, POOLED),
            kind,
            count,
            np.stack([low for low, _ in bounds]),
            np.stack([high for _, high in bounds]),
            _stack_tables([table[:_LINEAR] for table in tables]),
            _stack_tables([table[_LINEAR:] for table in tables]),
            np.stack([_sum_queries(trial, cells) for cells in columns], axis=2),
        )

    def sums(self, weights: Weights, *, noise: Noise = "resampling") -> BinSums:
        """The statistics of the bins under these weights.

        Args:
            weights: How often each query counts, in each resample.
            noise: Which variance is given: of the resampling (zero where each query counts once),
                of a sample of this size, or of both.
        """
        cells, label, square, brier = np.einsum("rq,qsc->src", weights, self.totals)
        weight, predicted, observed = self._sum_bins(self.linear, weights, _LINEAR)
        counted = {"resampling": weights**2 - weights, "sampling": weights, "all": weights**2}
        products = self._sum_bins(self.squared, counted[noise], _SQUARED)
        mean, ratio = divide(observed, weight), divide(predicted, weight)
        gaps, labels = products[[0, 1, 4]], products[[2, 3, 4]]
        return BinSums(
            weight,
            ratio,
            mean,
            _estimate_noise(ratio - mean, gaps, weight, whole=noise != "resampling"),
            _estimate_noise(mean, labels, weight, whole=noise != "resampling"),
            cells,
            divide(label, cells),
            np.maximum(divide(square, cells) - divide(label, cells) ** 2, 0),
            divide(brier, cells),
        )

    @property
    def width(self) -> int:
        """Numbers per resample in the largest table that summing makes."""
        return len(self.totals) + _SQUARED * len(self.names) * self.count

    def _sum_bins(
        self, design: "csr_array[Any, Any]", weights: Weights, tables: int
    ) -> Float[NDArray[np.float64], "table resample column bin"]:
        flat = np.asarray(design @ weights.T).T
        shaped = flat.reshape(len(weights), tables, len(self.names), self.count)
        return np.ascontiguousarray(np.moveaxis(shaped, 1, 0))


def _mask_targets(is_known: Bool[NDArray[np.bool_], "query target"]) -> Iterator[NDArray[np.bool_]]:
    for k in range(is_known.shape[1]):
        yield np.arange(is_known.shape[1]) == k


def _place_cells(
    correctness: PerCell, cells: Bool[NDArray[np.bool_], "query target"], kind: BinKind, count: int
) -> Int[NDArray[np.int64], " cell"]:
    """The bin of each of these cells."""
    scores = correctness[cells]
    if kind == "width":
        return np.minimum((scores * count).astype(np.int64), count - 1)
    _, place, count_of_score = np.unique(scores, return_inverse=True, return_counts=True)
    rank = (np.cumsum(count_of_score) - count_of_score / 2) / max(len(scores), 1)
    return np.asarray(rank * count).astype(np.int64)[place.reshape(-1)]


def _find_bounds(
    correctness: PerCell,
    cells: Bool[NDArray[np.bool_], "query target"],
    bins: Int[NDArray[np.int64], " cell"],
    count: int,
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """The lowest and the highest prediction in each bin."""
    low, high = np.full(count, np.inf), np.full(count, -np.inf)
    np.minimum.at(low, bins, correctness[cells])
    np.maximum.at(high, bins, correctness[cells])
    return np.where(low > high, np.nan, low), np.where(low > high, np.nan, high)


def _sum_cells(
    trial: Trial,
    cells: Bool[NDArray[np.bool_], "query target"],
    bins: Int[NDArray[np.int64], " cell"],
    count: int,
) -> list["csr_array[Any, Any]"]:
    """Sums over each query's cells in each bin, [bin, query], and the products of these sums."""
    from scipy.sparse import csr_array

    place = np.nonzero(cells)[0], bins
    number, predicted, label = np.zeros((3, len(trial), count))
    np.add.at(number, place, 1.0)
    np.add.at(predicted, place, trial.correctness[cells])
    np.add.at(label, place, trial.correct[cells])
    gap = predicted - label
    products = [gap * gap, gap * number, label * label, label * number, number * number]
    return [csr_array(table.T) for table in (number, predicted, label, *products)]


def _stack_tables(columns: list[list["csr_array[Any, Any]"]]) -> "csr_array[Any, Any]":
    """The tables of all columns as one sparse matrix, [table x column x bin, query]."""
    from scipy.sparse import csr_array, vstack

    tables = zip(*columns, strict=True)
    return csr_array(vstack([table for column in tables for table in column], format="csr"))


def _sum_queries(
    trial: Trial, cells: Bool[NDArray[np.bool_], "query target"]
) -> Float[NDArray[np.float64], "query 4"]:
    label = np.where(cells, trial.correct, 0)
    away = np.where(cells, trial.squared_error(trial.correctness), 0)
    square = label**2 if trial.chance is None else label
    tables = (cells.astype(np.float64), label, square, away)
    return np.stack([table.sum(axis=1) for table in tables], axis=1)


def _estimate_noise(
    mean: PerBin,
    products: Float[NDArray[np.float64], "3 resample column bin"],
    weight: PerBin,
    *,
    whole: bool,
) -> PerBin:
    """The variance of a bin's mean, from sums of squares, of products with the count, of counts."""
    square, product, number = products
    spread = np.maximum(square - 2 * mean * product + mean**2 * number, 0)
    variance = divide(spread, weight**2)
    if whole:  # Bessel's correction, with the effective number of draws
        draws = divide(weight**2, number)
        variance = np.where(draws > 1 + 1e-9, divide(variance * draws, draws - 1), np.inf)
    return variance


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

    distance = np.abs(sums.predicted - sums.observed)
    noise = np.sqrt(_limit_noise(sums.gap_noise, distance**2))
    steps = np.where(noise > 0, distance / np.where(noise > 0, noise, 1), 0)
    excess = noise * (_CHANCE * np.exp(-(steps**2) / 2) - 2 * steps * ndtr(-steps))
    return _average_over_bins(sums, distance - excess)


def chance_error(sums: BinSums) -> PerColumn:
    """The expected calibration error of a perfectly calibrated system.

    For each target this is the mean deviation of a binomial variable (De Moivre). For all targets
    together that of a normal one, since the answers to one query are correlated. Soft labels have
    less variance than 0/1 labels, so theirs is smaller by the ratio of the standard deviations.

    Args:
        sums: Statistics with the noise of `sampling`, if the last column is used.
    """
    single = np.isinf(sums.gap_noise[:, -1:])
    distance = np.abs(sums.predicted - sums.observed)[:, -1:]
    together = np.where(single, distance, _CHANCE * np.sqrt(sums.gap_noise[:, -1:]))
    mean = sums.label_mean
    scatter = np.sqrt(divide(sums.label_variance, mean * (1 - mean)))[:, :-1, None]
    alone = _expect_deviation(sums.weight, sums.predicted)[:, :-1] * np.nan_to_num(scatter, nan=1.0)
    return _average_over_bins(sums, np.concatenate([alone, together], axis=1))


def _expect_deviation(draws: PerBin, chance: PerBin) -> PerBin:
    """The mean distance of a binomial share from its probability; NaN without draws."""
    from scipy.special import gammaln, xlog1py, xlogy

    count, probability = np.where(draws > 0, draws, np.nan), np.clip(chance, 0, 1)
    over = np.floor(count * probability) + 1  # the lowest number of successes above the mean
    inside = over <= count
    over = np.where(inside, over, 1)
    ways = gammaln(count + 1) - gammaln(over) - gammaln(count - over + 1)
    size = ways + xlogy(over, probability) + xlog1py(count - over + 1, -probability)
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
    result = dict(estimates)
    if name in result and by_chance in result and np.isfinite(result[name].lower):
        error = result[name]
        half = (error.upper - error.lower) / 2
        lower = max(error.value - half - result[by_chance].value, 0.0)
        result[name] = replace(error, lower=lower, upper=error.value + half)
    return result


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
    distance = (sums.observed - sums.label_mean[:, :, None]) ** 2
    reliability = _average_over_bins(sums, gap - _limit_noise(sums.gap_noise, gap))
    resolution = _average_over_bins(sums, distance - _limit_noise(sums.observed_noise, distance))
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
    return _average_over_bins(sums, sums.predicted - sums.observed)


def log_loss(trial: Trial, weights: Weights) -> PerColumn:
    """Mean cross-entropy in nats, soft labels as they are; always predicting 0.5 gives 0.693."""
    is_known = ~np.isnan(trial.correct)
    probability = np.clip(trial.correctness, _EDGE, 1 - _EDGE)
    label = np.where(is_known, trial.correct, 0)
    entropy = -label * np.log(probability) - (1 - label) * np.log1p(-probability)
    loss = np.where(is_known, entropy, 0)
    total, cells = (
        weights @ np.concatenate([table, table.sum(axis=1, keepdims=True)], axis=1)
        for table in (loss, is_known.astype(np.float64))
    )
    return divide(total, cells)


def _average_over_bins(sums: BinSums, values: PerBin) -> PerColumn:
    """The mean over the bins, weighted by their cells; NaN without cells."""
    total = np.where(sums.weight > 0, sums.weight * values, 0).sum(axis=2)
    return divide(total, sums.cells)


def _limit_noise(noise: PerBin, square: PerBin) -> PerBin:
    """The noise; in a bin with a single draw, where it can't be estimated, the whole square."""
    return np.where(np.isinf(noise), square, noise)
