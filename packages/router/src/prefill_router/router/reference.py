"""Statistics of the train rows: how unlike them a request is, and how far traffic drifts.

A request's distance is the Mahalanobis distance. Its covariance is that of the predictor's input
(standardised columns) over the train rows. It is shrunk towards the identity by the method of
Ledoit and Wolf (2004, "A well-conditioned estimator for large-dimensional covariance matrices").
Its novelty is the share of train rows that are closer, each of them measured with the statistics of
the others. docs/decisions/0010-novelty.md has measurements of what that finds and what it doesn't.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, final

import numpy as np
from jaxtyping import Float, Float32, Float64, Int64, UInt8
from numpy.typing import NDArray
from pydantic import Field, NonNegativeInt, PositiveInt

from prefill_router.errors import ConfigError, CorruptError
from prefill_router.features import Columns
from prefill_router.serialization import Part, Saved, read_plain
from prefill_router.short_repr import short_repr
from prefill_router.statistics import known_mean

WIDEST = 500  # columns; their matrix is 1 MB
MOST_ROWS = 200_000
"""The train rows that the statistics are computed on: evenly spaced ones where there are more."""
WATCHED = 32
BINS = 10
_QUANTILES = 1001
_Accuracy = Annotated[list[float | None], Field(min_length=1)]


@short_repr
@final
@dataclass(frozen=True, eq=False)
class TrainReference(Part):
    """Statistics of the predictor's input over the train rows. Frozen; made by `fit`.

    Attributes:
        width: The number of columns of the predictor's input.
        rows: The number of train rows that the statistics were computed on.
        accuracy: Each target's share of correct answers among known ones; NaN without any.
        columns: The columns used for distances: at most `WIDEST`, by descending variance, without
            constant ones. The first of them are watched for drift.
        mean: The mean of these columns.
        whitening: The matrix that whitens the centred columns, so that distances are Euclidean.
        quantiles: Quantiles of the train rows' distances, ascending.
        edges: The edges between the deciles of the train rows, for each watched column.
        counts: The number of train rows in each decile; unequal where many rows have one value.
    """

    noun: ClassVar[str] = "reference"
    axes: ClassVar[Mapping[str, str]] = {"column": "columns"}
    width: int
    rows: PositiveInt
    accuracy: Annotated[
        Float64[NDArray[np.float64], " target"], Saved(form=_Accuracy), Field(ge=0, le=1)
    ]
    columns: tuple[int, ...]
    mean: Float32[NDArray[np.float32], " column"]
    whitening: Float32[NDArray[np.float32], "column column"]
    quantiles: Float32[NDArray[np.float32], "1001"]
    edges: Float32[NDArray[np.float32], "watched 9"]
    counts: Annotated[
        Int64[NDArray[np.int64], "watched 10"], Saved(form=list[list[NonNegativeInt]])
    ]

    @classmethod
    def fit(
        cls, features: Columns, correct: Float[NDArray[np.floating], "row target"]
    ) -> "TrainReference":
        """Compute the statistics of the train rows.

        Args:
            features: The predictor's input, finite, at least one row.
            correct: The labels, in [0, 1]; NaN where missing.
        """
        accuracy = known_mean(correct)
        if len(features) > MOST_ROWS:
            features = features[np.linspace(0, len(features) - 1, MOST_ROWS).astype(np.int64)]
        wide = features.astype(np.float64)
        columns = widest(wide, most=WIDEST)
        wide = wide[:, columns]
        mean, spread = wide.mean(axis=0), wide.std(axis=0)
        edges = _find_edges(wide[:, :WATCHED])
        wide -= mean
        wide /= spread
        rotation, distances = whiten(wide)
        return cls(
            width=features.shape[1],
            rows=len(features),
            accuracy=accuracy,
            columns=tuple(columns.tolist()),
            mean=mean.astype(np.float32),
            whitening=(rotation / spread[:, None]).astype(np.float32),
            quantiles=np.quantile(distances, np.linspace(0, 1, _QUANTILES)).astype(np.float32),
            edges=edges,
            counts=_count_bins(_assign_bins(features[:, columns[:WATCHED]], edges)),
        )

    def __post_init__(self) -> None:
        columns = {column for column in self.columns if 0 <= column < self.width}
        if len(columns) < len(self.columns):
            raise ConfigError(
                f"some of a reference's {len(self.columns)} columns repeat, or aren't among the "
                f"{self.width} columns of the features"
            )
        _check_counts(self.counts, self.rows, len(self.columns))

    def verify(self) -> None:
        """Check that quantiles and edges are sorted."""
        if (np.diff(self.quantiles) < 0).any() or (np.diff(self.edges) < 0).any():
            raise ConfigError("its quantiles and edges must be ascending")

    @property
    def watched_count(self) -> int:
        """The number of columns in `bins`."""
        return len(self.edges)

    @property
    def shares(self) -> Float64[NDArray[np.float64], "watched bin"]:
        """The share of train rows in each decile of each watched column."""
        return self.counts / self.rows

    def check(self, *, width: int, targets: int) -> None:
        """Check that it was fitted for this number of features and of targets.

        Raises:
            ConfigError: It wasn't.
        """
        if (self.width, len(self.accuracy)) != (width, targets):
            raise ConfigError(
                f"the reference has {self.width} features and {len(self.accuracy)} targets; the "
                f"router has {width} and {targets}"
            )

    def novelty(self, features: Columns) -> Float64[NDArray[np.float64], " query"]:
        """The share of train rows that are closer to the others than each query is.

        Raises:
            ConfigError: The features have another width.
        """
        near = self._select_columns(features) - self.mean
        with np.errstate(
            over="ignore", invalid="ignore"
        ):  # values out of float32's range are far away
            distances = np.sqrt(np.square(near @ self.whitening).sum(axis=1))
        below = np.searchsorted(self.quantiles, distances)  # NaN comes after all numbers
        shares: Float64[NDArray[np.float64], " query"] = below / len(self.quantiles)
        return shares

    def bins(self, features: Columns) -> UInt8[NDArray[np.uint8], "query watched"]:
        """The decile of the train rows in which each query lies, 0 to 9, for each watched column.

        Raises:
            ConfigError: The features have another width.
        """
        return _assign_bins(self._select_columns(features)[:, : self.watched_count], self.edges)

    def _select_columns(self, features: Columns) -> Float32[NDArray[np.float32], "query kept"]:
        if features.shape[1] != self.width:
            raise ConfigError(
                f"the features are {features.shape[1]} wide; the reference has {self.width}"
            )
        selection: Float32[NDArray[np.float32], "query kept"] = features[:, self.columns]
        return selection


def outline(
    config: Mapping[str, Any], *, targets: int
) -> tuple[Float64[NDArray[np.float64], " target"], Float64[NDArray[np.float64], "watched bin"]]:
    """The accuracy and the shares in `TrainReference.to_dict`, without reading its arrays.

    Raises:
        CorruptError: They are invalid, or the number of targets differs.
    """
    saved = read_plain(TrainReference, config)
    accuracy, counts = saved["accuracy"], saved["counts"]
    if len(accuracy) != targets:
        raise CorruptError(f"the router's reference has {len(accuracy)} targets, not {targets}")
    try:
        _check_counts(counts, saved["rows"], len(saved["columns"]))
    except ConfigError as error:
        raise CorruptError(f"the router's reference: {error}") from None
    return accuracy, counts / saved["rows"]


def _check_counts(counts: Int64[NDArray[np.int64], "watched bin"], rows: int, columns: int) -> None:
    watched = min(columns, WATCHED)
    if len(counts) != watched or (counts.sum(axis=1) != rows).any():
        raise ConfigError(
            f"a reference must have the counts of its {rows} rows in {BINS} bins for each of "
            f"{watched} columns"
        )


def _find_edges(
    rows: Float64[NDArray[np.float64], "row watched"],
) -> Float32[NDArray[np.float32], "watched edge"]:
    tenths = np.arange(1, BINS) / BINS
    edges: NDArray[np.float64] = np.quantile(rows, tenths, axis=0).T
    return np.ascontiguousarray(edges, dtype=np.float32)


def _assign_bins(
    rows: Float32[NDArray[np.float32], "query watched"],
    edges: Float32[NDArray[np.float32], "watched edge"],
) -> UInt8[NDArray[np.uint8], "query watched"]:
    passed: UInt8[NDArray[np.uint8], "query watched"] = (rows[:, :, None] >= edges).sum(
        axis=2, dtype=np.uint8
    )
    return passed


def _count_bins(
    bins: UInt8[NDArray[np.uint8], "row watched"],
) -> Int64[NDArray[np.int64], "watched bin"]:
    return np.stack([(bins == number).sum(axis=0) for number in range(BINS)], axis=1)


_CONSTANT = 1e-6  # a standard deviation below this share of the mean is rounding error in float32
_TINY = 1e-30  # division by less can leave the range of float32
_LEAST_VARIANCE = 1e-6
_LEAST_FREEDOM = 1e-3


def widest(
    features: Float64[NDArray[np.float64], "row column"], *, most: int
) -> Int64[NDArray[np.int64], " kept"]:
    """The columns that vary, by descending variance, at most `most` of them."""
    spread = features.std(axis=0)
    order = np.argsort(-spread, kind="stable")
    varies = spread > np.maximum(_CONSTANT * np.abs(features.mean(axis=0)), _TINY)
    columns: Int64[NDArray[np.int64], " kept"] = order[varies[order]][:most]
    return columns


def whiten(
    rows: Float64[NDArray[np.float64], "row column"],
) -> tuple[Float64[NDArray[np.float64], "column column"], Float64[NDArray[np.float64], " row"]]:
    """The whitening matrix of standardised rows, and each row's leave-one-out distance.

    Leaving a row out changes the covariance by one outer product, so the Sherman-Morrison formula
    gives the distance without fitting again. Shrinkage and scales stay the same.
    """
    import scipy.linalg

    count, width = rows.shape
    covariance = rows.T @ rows / count
    shrinkage = _estimate_shrinkage(rows, covariance)
    covariance *= 1 - shrinkage
    covariance += shrinkage * np.eye(width)
    variances, directions = (
        scipy.linalg.eigh(covariance, overwrite_a=True) if width else _empty_moments()
    )
    rotation = directions / np.sqrt(np.maximum(variances, _LEAST_VARIANCE))
    turned = rows @ rotation
    squared = np.square(turned, out=turned).sum(axis=1)
    others = max(count - 1, 1)
    leverage = (1 - shrinkage) * count / others**2 * squared
    freed = squared / np.maximum(1 - leverage, _LEAST_FREEDOM)
    return rotation, np.sqrt(freed) * count / others


def _estimate_shrinkage(
    rows: Float64[NDArray[np.float64], "row column"],
    covariance: Float64[NDArray[np.float64], "column column"],
) -> float:
    """The weight of the identity by Ledoit and Wolf (2004), in [0, 1]."""
    size = np.square(covariance).sum()
    away = size - len(covariance)  # from the identity, since every column has the variance 1
    noise = (np.square(np.square(rows).sum(axis=1)).mean() - size) / len(rows)
    return 1.0 if noise >= away else float(noise / away)


def _empty_moments() -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    return np.zeros(0), np.zeros((0, 0))


def compare_features(
    reference: TrainReference | None, features: Columns
) -> tuple[Sequence[float | None], Sequence[tuple[int, ...]]]:
    """The novelty and bins of each query, by the reference of the train rows."""
    if reference is None:
        return [None] * len(features), [()] * len(features)
    novelty: list[float | None] = reference.novelty(features).tolist()
    return novelty, list(map(tuple, reference.bins(features).tolist()))
