"""What the train rows looked like: how unlike them a request is, and how far traffic drifts away.

A request's distance is Mahalanobis's, by the covariance of the predictor's input (standardised
columns) over the train rows, shrunk towards the identity by as much as Ledoit and Wolf find best
(2004, "A well-conditioned estimator for large-dimensional covariance matrices"). Its novelty is the
share of train rows that lie closer, each of them measured by the statistics of the others. What
that finds and what it doesn't was measured, see docs/decisions/0010-novelty.md.
"""

from collections.abc import Mapping
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
WATCHED = 32
BINS = 10
_QUANTILES = 1001
_Accuracy = Annotated[list[float | None], Field(min_length=1)]


@short_repr
@final
@dataclass(frozen=True, eq=False)
class TrainReference(Part):
    """Statistics of the predictor's input over the train rows. Frozen: made by `fit`.

    Attributes:
        width: Columns of the predictor's input.
        rows: Train rows.
        accuracy: Each target's share of correct answers, of those that are known; NaN for none.
        columns: Those that distances are taken in: the `WIDEST` of most variance, in that order,
            without constant ones. The first of them are watched for drift.
        mean: Of these columns.
        whitening: Takes what is left beyond the mean to where the distance is Euclid's.
        quantiles: Of the train rows' distances, from the smallest to the largest.
        edges: Between the tenths of the train rows, for each watched column.
        counts: Of train rows in each tenth: even, but where many rows have one value.
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
        """Take the statistics of some rows: the train rows, and nothing else.

        Args:
            features: The predictor's input, finite, at least one row.
            correct: What the targets got right, in [0, 1]; NaN where it isn't known.
        """
        wide = features.astype(np.float64)
        columns = widest(wide, most=WIDEST)
        wide = wide[:, columns]
        mean, spread = wide.mean(axis=0), wide.std(axis=0)
        rotation, distances = whitened((wide - mean) / spread)
        edges = _edges(wide[:, :WATCHED])
        return cls(
            width=features.shape[1],
            rows=len(features),
            accuracy=known_mean(correct),
            columns=tuple(columns.tolist()),
            mean=mean.astype(np.float32),
            whitening=(rotation / spread[:, None]).astype(np.float32),
            quantiles=np.quantile(distances, np.linspace(0, 1, _QUANTILES)).astype(np.float32),
            edges=edges,
            counts=_counts(_bins(features[:, columns[:WATCHED]], edges)),
        )

    def __post_init__(self) -> None:
        known = {column for column in self.columns if 0 <= column < self.width}
        if len(known) < len(self.columns):
            raise ConfigError(
                f"some of a reference's {len(self.columns)} columns repeat, or aren't among the "
                f"{self.width} columns of the features"
            )
        _check_counts(self.counts, self.rows, len(self.columns))

    def verify(self) -> None:
        """Check that what is sorted rises."""
        if (np.diff(self.quantiles) < 0).any() or (np.diff(self.edges) < 0).any():
            raise ConfigError("its quantiles and edges must rise")

    @property
    def watched(self) -> int:
        """How many columns `bins` tells of."""
        return len(self.edges)

    @property
    def shares(self) -> Float64[NDArray[np.float64], "watched bin"]:
        """The share of train rows in each tenth of each watched column."""
        return self.counts / self.rows

    def check(self, *, width: int, targets: int) -> None:
        """Check that it was fitted on such features and for so many targets.

        Raises:
            ConfigError: It wasn't.
        """
        if (self.width, len(self.accuracy)) != (width, targets):
            raise ConfigError(
                f"the reference is of {self.width} features and {len(self.accuracy)} targets; the "
                f"router has {width} and {targets}"
            )

    def novelty(self, features: Columns) -> Float64[NDArray[np.float64], " query"]:
        """The share of train rows that lie closer to the others than each query does.

        Raises:
            ConfigError: The features are of another width.
        """
        near = self._kept(features) - self.mean
        with np.errstate(over="ignore", invalid="ignore"):  # out of float32's range is far away
            distances = np.sqrt(np.square(near @ self.whitening).sum(axis=1))
        below = np.searchsorted(self.quantiles, distances)  # NaN comes after all numbers
        shares: Float64[NDArray[np.float64], " query"] = below / len(self.quantiles)
        return shares

    def bins(self, features: Columns) -> UInt8[NDArray[np.uint8], "query watched"]:
        """In which tenth of the train rows each query lies, 0 to 9, for each watched column.

        Raises:
            ConfigError: The features are of another width.
        """
        return _bins(self._kept(features)[:, : self.watched], self.edges)

    def _kept(self, features: Columns) -> Float32[NDArray[np.float32], "query kept"]:
        if features.shape[1] != self.width:
            raise ConfigError(
                f"the features are {features.shape[1]} wide; the reference is of {self.width}"
            )
        kept: Float32[NDArray[np.float32], "query kept"] = features[:, self.columns]
        return kept


def outline(
    config: Mapping[str, Any], *, targets: int
) -> tuple[Float64[NDArray[np.float64], " target"], Float64[NDArray[np.float64], "watched bin"]]:
    """The accuracy and the shares of `TrainReference.to_dict`, without its arrays.

    Raises:
        CorruptError: They make no sense, or aren't of so many targets.
    """
    saved = read_plain(TrainReference, config)
    accuracy, counts = saved["accuracy"], saved["counts"]
    if len(accuracy) != targets:
        raise CorruptError(f"the router's reference is of {len(accuracy)} targets, not {targets}")
    try:
        _check_counts(counts, saved["rows"], len(saved["columns"]))
    except ConfigError as error:
        raise CorruptError(f"the router's reference: {error}") from None
    return accuracy, counts / saved["rows"]


def _check_counts(counts: Int64[NDArray[np.int64], "watched bin"], rows: int, columns: int) -> None:
    watched = min(columns, WATCHED)
    if len(counts) != watched or (counts.sum(axis=1) != rows).any():
        raise ConfigError(
            f"a reference must count its {rows} rows in {BINS} bins for each of {watched} columns"
        )


def _edges(
    rows: Float64[NDArray[np.float64], "row watched"],
) -> Float32[NDArray[np.float32], "watched edge"]:
    tenths = np.arange(1, BINS) / BINS
    edges: NDArray[np.float64] = np.quantile(rows, tenths, axis=0).T
    return np.ascontiguousarray(edges, dtype=np.float32)


def _bins(
    rows: Float32[NDArray[np.float32], "query watched"],
    edges: Float32[NDArray[np.float32], "watched edge"],
) -> UInt8[NDArray[np.uint8], "query watched"]:
    passed: UInt8[NDArray[np.uint8], "query watched"] = (rows[:, :, None] >= edges).sum(
        axis=2, dtype=np.uint8
    )
    return passed


def _counts(
    bins: UInt8[NDArray[np.uint8], "row watched"],
) -> Int64[NDArray[np.int64], "watched bin"]:
    return np.stack([(bins == number).sum(axis=0) for number in range(BINS)], axis=1)


_CONSTANT = 1e-6  # float32 rounds away a spread below this share of the mean
_TINY = 1e-30  # what divides by less can leave the range of float32
_LEAST_VARIANCE = 1e-6
_LEAST_FREEDOM = 1e-3


def widest(
    features: Float64[NDArray[np.float64], "row column"], *, most: int
) -> Int64[NDArray[np.int64], " kept"]:
    """The columns that vary, by falling variance, so many of them at most."""
    spread = features.std(axis=0)
    order = np.argsort(-spread, kind="stable")
    varies = spread > np.maximum(_CONSTANT * np.abs(features.mean(axis=0)), _TINY)
    kept: Int64[NDArray[np.int64], " kept"] = order[varies[order]][:most]
    return kept


def whitened(
    rows: Float64[NDArray[np.float64], "row column"],
) -> tuple[Float64[NDArray[np.float64], "column column"], Float64[NDArray[np.float64], " row"]]:
    """What whitens standardised rows, and each row's distance by the statistics of the others.

    Leaving a row out changes the covariance by one outer product, so the formula of Sherman and
    Morrison gives the distance without fitting again; shrinkage and spreads are left as they are.
    """
    import scipy.linalg

    count, width = rows.shape
    covariance = rows.T @ rows / count
    shrinkage = _shrinkage(rows, covariance)
    covariance *= 1 - shrinkage
    covariance += shrinkage * np.eye(width)
    variances, directions = scipy.linalg.eigh(covariance, overwrite_a=True) if width else _nothing()
    rotation = directions / np.sqrt(np.maximum(variances, _LEAST_VARIANCE))
    squared = np.square(rows @ rotation).sum(axis=1)
    others = max(count - 1, 1)
    leverage = (1 - shrinkage) * count / others**2 * squared
    freed = squared / np.maximum(1 - leverage, _LEAST_FREEDOM)
    return rotation, np.sqrt(freed) * count / others


def _shrinkage(
    rows: Float64[NDArray[np.float64], "row column"],
    covariance: Float64[NDArray[np.float64], "column column"],
) -> float:
    """The weight of the identity that Ledoit and Wolf (2004) find, in [0, 1]."""
    size = np.square(covariance).sum()
    away = size - len(covariance)  # from the identity, since every column has the variance 1
    noise = (np.square(np.square(rows).sum(axis=1)).mean() - size) / len(rows)
    return 1.0 if noise >= away else float(noise / away)


def _nothing() -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    return np.zeros(0), np.zeros((0, 0))
