"""Predictions sorted into bins once, so that the sums under any weights need one matrix product.

In a resample, the statistics of a bin carry the noise of the sample and that of the resampling, and
both bias non-negative errors upwards. The weights separate the two: a query that counts w times
adds w squared to the variance of a sum, where a sample of that size would have w. Subtracting the
difference (`resampling`) centres the resamples on the measured value; without resampling it is
zero. Subtracting the whole noise (`all`) estimates the value for infinitely many queries: Ferro and
Fricker, "A bias-corrected decomposition of the Brier score" (2012). The cells of one query count as
one draw.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, final

import numpy as np
from jaxtyping import Bool, Float, Int
from numpy.typing import NDArray

from prefill_router.errors import ConfigError
from prefill_router.evaluation.bootstrap import Weights, divide
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
        known = ~np.isnan(trial.correct)
        columns = [*(known & chosen for chosen in _each_target(known)), known]
        placed = [_placed(trial.correctness, cells, kind, count) for cells in columns]
        tables = [_tables(trial, *pair, count) for pair in zip(columns, placed, strict=True)]
        bounds = [_bounds(trial.correctness, *p, count) for p in zip(columns, placed, strict=True)]
        return cls(
            (*trial.targets, POOLED),
            kind,
            count,
            np.stack([low for low, _ in bounds]),
            np.stack([high for _, high in bounds]),
            _design([table[:_LINEAR] for table in tables]),
            _design([table[_LINEAR:] for table in tables]),
            np.stack([_totals(trial, cells) for cells in columns], axis=2),
        )

    def sums(self, weights: Weights, *, noise: Noise = "resampling") -> BinSums:
        """The statistics of the bins under these weights.

        Args:
            weights: How often each query counts, in each resample.
            noise: Which variance is given: of the resampling (zero where each query counts once),
                of a sample of this size, or of both.
        """
        cells, label, square, brier = np.einsum("rq,qsc->src", weights, self.totals)
        weight, predicted, observed = self._summed(self.linear, weights, _LINEAR)
        counted = {"resampling": weights**2 - weights, "sampling": weights, "all": weights**2}
        products = self._summed(self.squared, counted[noise], _SQUARED)
        mean, ratio = divide(observed, weight), divide(predicted, weight)
        gaps, labels = products[[0, 1, 4]], products[[2, 3, 4]]
        return BinSums(
            weight,
            ratio,
            mean,
            _noise(ratio - mean, gaps, weight, whole=noise != "resampling"),
            _noise(mean, labels, weight, whole=noise != "resampling"),
            cells,
            divide(label, cells),
            np.maximum(divide(square, cells) - divide(label, cells) ** 2, 0),
            divide(brier, cells),
        )

    @property
    def width(self) -> int:
        """Numbers per resample in the largest table that summing makes."""
        return len(self.totals) + _SQUARED * len(self.names) * self.count

    def _summed(
        self, design: "csr_array[Any, Any]", weights: Weights, tables: int
    ) -> Float[NDArray[np.float64], "table resample column bin"]:
        flat = np.asarray(design @ weights.T).T
        shaped = flat.reshape(len(weights), tables, len(self.names), self.count)
        return np.ascontiguousarray(np.moveaxis(shaped, 1, 0))


def _each_target(known: Bool[NDArray[np.bool_], "query target"]) -> Iterator[NDArray[np.bool_]]:
    for k in range(known.shape[1]):
        yield np.arange(known.shape[1]) == k


def _placed(
    correctness: PerCell, cells: Bool[NDArray[np.bool_], "query target"], kind: BinKind, count: int
) -> Int[NDArray[np.int64], " cell"]:
    """The bin of each of these cells."""
    scores = correctness[cells]
    if kind == "width":
        return np.minimum((scores * count).astype(np.int64), count - 1)
    _, place, often = np.unique(scores, return_inverse=True, return_counts=True)
    rank = (np.cumsum(often) - often / 2) / max(len(scores), 1)
    return np.asarray(rank * count).astype(np.int64)[place.reshape(-1)]


def _bounds(
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


def _tables(
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


def _design(columns: list[list["csr_array[Any, Any]"]]) -> "csr_array[Any, Any]":
    """The tables of all columns as one sparse matrix, [table x column x bin, query]."""
    from scipy.sparse import csr_array, vstack

    tables = zip(*columns, strict=True)
    return csr_array(vstack([table for column in tables for table in column], format="csr"))


def _totals(
    trial: Trial, cells: Bool[NDArray[np.bool_], "query target"]
) -> Float[NDArray[np.float64], "query 4"]:
    label = np.where(cells, trial.correct, 0)
    away = np.where(cells, trial.squared_error(trial.correctness), 0)
    square = label**2 if trial.chance is None else label
    tables = (cells.astype(np.float64), label, square, away)
    return np.stack([table.sum(axis=1) for table in tables], axis=1)


def _noise(
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
