"""Columns of statistics brought to one scale: standardised by the train rows, and bounded."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, final

import numpy as np
from jaxtyping import Float32, Float64
from numpy.typing import NDArray

from prefill_router.errors import ConfigError, CorruptError
from prefill_router.features.base import Columns

Statistics = Float64[NDArray[np.float64], "query column"]

FARTHEST = 10.0
"""Standard deviations; one odd query must not outweigh all others in a linear predictor."""
_CONSTANT = 1e-9  # a spread below this share of the mean is rounding


@final
@dataclass(frozen=True, eq=False)
class Standard:
    """A frozen scaler.

    Attributes:
        mean: The train rows' mean.
        scale: Their standard deviation; 1 for columns that are constant, which so become zero
            there.
    """

    mean: Float32[NDArray[np.float32], " column"]
    scale: Float32[NDArray[np.float32], " column"]

    @classmethod
    def fit(cls, train: Statistics) -> "Standard":
        """Fit to the train rows, at least one."""
        mean, spread = train.mean(axis=0), train.std(axis=0)
        least = np.maximum(_CONSTANT * np.abs(mean), float(np.finfo(np.float32).tiny))
        scale = np.where(spread > least, spread, 1.0)
        return cls(mean.astype(np.float32), scale.astype(np.float32))

    def apply(self, statistics: Statistics) -> Columns:
        """The columns in standard deviations from the train mean, at most 10 either way.

        Raises:
            ConfigError: There are more or fewer columns.
        """
        if statistics.shape[1] != len(self.mean):
            raise ConfigError(
                f"{statistics.shape[1]} statistics for a scaler that was fitted on {len(self.mean)}"
            )
        scores = (statistics - self.mean) / self.scale
        return np.clip(scores, -FARTHEST, FARTHEST).astype(np.float32)

    def tensors(self) -> dict[str, NDArray[Any]]:
        """Its arrays, for safetensors."""
        return {"mean": self.mean, "scale": self.scale}

    @classmethod
    def from_tensors(cls, tensors: Mapping[str, NDArray[Any]], *, width: int) -> "Standard":
        """The scaler of `tensors`.

        Raises:
            CorruptError: An array is missing, unknown, or of another shape, type or range.
        """
        if set(tensors) != {"mean", "scale"}:
            raise CorruptError(f"a scaler has the arrays mean and scale; got {sorted(tensors)}")
        for name, array in tensors.items():
            if array.shape != (width,) or array.dtype != np.float32 or not np.isfinite(array).all():
                raise CorruptError(
                    f"a scaler's {name} must be finite float32 ({width},); got {array.dtype} "
                    f"{array.shape}; copy or make the router again"
                )
        if (tensors["scale"] <= 0).any():
            raise CorruptError("a scaler's scale must be positive; copy or make the router again")
        return cls(**tensors)
