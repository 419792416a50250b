"""Dimensionality reduction of states: standardised, then projected to their leading PCA components.

Components keep their own variances: whitening them was measured to make the trunk worse (see
docs/decisions/0002-no-whitening.md).
"""

from dataclasses import dataclass
from typing import Annotated, ClassVar, final

import numpy as np
from jaxtyping import Bool, Float32, Float64
from numpy.typing import NDArray
from pydantic import Field

from prefill_router.errors import ConfigError, FitError
from prefill_router.geometry import Moments
from prefill_router.serialization import Part, Tensors

_CONSTANT = 1e-12
"""A standard deviation below this share of the mean is rounding error in float32 states."""


@final
@dataclass(frozen=True, eq=False)
class Reducer(Part):
    """A frozen scaler and PCA.

    Attributes:
        mean: The train rows' mean.
        scale: Their standard deviation; 1 for constant dimensions, which become zero.
        components: Orthonormal rows, by descending variance; the entry of the largest magnitude in
            each is positive.
    """

    noun: ClassVar[str] = "reducer"
    mean: Float32[NDArray[np.float32], " hidden"]
    scale: Annotated[Float32[NDArray[np.float32], " hidden"], Field(gt=0)]
    components: Float32[NDArray[np.float32], "dim hidden"]

    @classmethod
    def fit(cls, moments: Moments, dim: int, *, standardise: bool = True) -> "Reducer":
        """Fit to the moments of the train rows.

        Args:
            moments: Moments of the raw states.
            dim: Components to keep. No more are kept than the rank of the standardised states,
                which is below the number of rows.
            standardise: Whether dimensions are scaled to unit variance first.

        Raises:
            ConfigError: `dim` is below 1.
            FitError: There are fewer than two rows, or all rows are the same.
        """
        if dim < 1:
            raise ConfigError(f"dim is {dim}; PCA keeps at least 1 component")
        scale, varies = standard_scale(moments)
        if not standardise:
            scale = np.ones_like(scale)
        components = _find_components(moments, scale, varies, dim)
        return cls(
            moments.mean.astype(np.float32),
            scale.astype(np.float32),
            components.astype(np.float32),
        )

    def __post_init__(self) -> None:
        if not self.mean.shape == self.scale.shape == self.components.shape[1:]:
            raise ConfigError(
                f"a reducer's mean {self.mean.shape}, scale {self.scale.shape} and components "
                f"{self.components.shape} must have the same hidden size"
            )

    @property
    def dim(self) -> int:
        """The number of components."""
        return len(self.components)

    @property
    def hidden(self) -> int:
        """The width of the states it takes."""
        return len(self.mean)

    def first(self, dim: int) -> "Reducer":
        """The same reducer with only the leading components."""
        return Reducer(self.mean, self.scale, self.components[:dim])

    def transform(
        self, states: Float32[NDArray[np.float32], "query hidden"]
    ) -> Float32[NDArray[np.float32], "query dim"]:
        """The leading components of states.

        Raises:
            ConfigError: The states have another width.
        """
        if states.shape[1] != self.hidden:
            raise ConfigError(
                f"the states are {states.shape[1]} wide; the reducer was fitted on {self.hidden}"
            )
        scaled = (states - self.mean) / self.scale
        reduced: Float32[NDArray[np.float32], "query dim"] = np.matmul(scaled, self.components.T)
        return reduced

    @classmethod
    def from_tensors(cls, tensors: Tensors, *, hidden: int, dim: int) -> "Reducer":
        """The reducer that `tensors` saved.

        Raises:
            CorruptError: An array is missing, unknown, or of another shape, type or range.
        """
        return cls.of_arrays(tensors, {"hidden": hidden, "dim": dim})


def standard_scale(
    moments: Moments,
) -> tuple[Float64[NDArray[np.float64], " hidden"], Bool[NDArray[np.bool_], " hidden"]]:
    """The standard deviation of each dimension (1 for constant ones), and which dimensions vary.

    Raises:
        FitError: There are fewer than two rows, or all rows are the same.
    """
    spread = np.sqrt(np.diag(moments.covariance))
    least = float(np.finfo(np.float32).tiny)
    varies = spread > np.maximum(_CONSTANT * np.abs(moments.mean), least)
    if not varies.any():
        raise FitError(
            f"the states of all {moments.count} rows are the same, so nothing can be learned "
            "from them; choose another layer or pooling"
        )
    return np.where(varies, spread, 1.0), varies


def _find_components(
    moments: Moments,
    scale: Float64[NDArray[np.float64], " hidden"],
    varies: NDArray[np.bool_],
    dim: int,
) -> Float64[NDArray[np.float64], "dim hidden"]:
    """The leading eigenvectors of the correlation matrix of the dimensions that vary."""
    import scipy.linalg

    correlation = moments.covariance / np.outer(scale, scale)
    correlation[~varies, :] = 0
    correlation[:, ~varies] = 0
    size = len(scale)
    most = min(dim, int(varies.sum()), moments.count - 1)
    values, vectors = scipy.linalg.eigh(
        correlation, subset_by_index=[size - most, size - 1], overwrite_a=True, check_finite=False
    )
    full = values > size * np.finfo(np.float64).eps * values[-1]
    rows = vectors.T[full][::-1]
    largest = rows[np.arange(len(rows)), np.abs(rows).argmax(axis=1)]
    signed: Float64[NDArray[np.float64], "dim hidden"] = rows * np.sign(largest)[:, None]
    return signed
