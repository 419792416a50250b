"""Query-level bootstrap: how far a number would move on other queries of the same kind.

A resample draws as many queries as there are, with replacement, all targets of a query together. It
is held as counts, so that nothing is sorted again; 95 % intervals are percentiles.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, final

import numpy as np
from jaxtyping import Float, Int
from numpy.typing import NDArray

from prefill_router.errors import ConfigError
from prefill_router.evaluation.weighted import Weights

LEVEL = 0.95
_CELLS = 200_000
"""Numbers in the largest table of a chunk of resamples: small enough for the processor's cache."""
_LEAST = 8
"""Resamples in a chunk at least: what is done once per chunk must not dominate."""


@final
@dataclass(frozen=True)
class Estimate:
    """A number with its interval.

    Attributes:
        value: On the evaluated queries; NaN where it isn't defined.
        lower: The 2.5th percentile over the resamples; NaN without any.
        upper: The 97.5th percentile.
        undefined: In how many resamples it wasn't defined; they are left out of the percentiles.
        reason: Why the value isn't defined; empty where it is.
    """

    value: float
    lower: float
    upper: float
    undefined: int = 0
    reason: str = ""

    @classmethod
    def of(
        cls, value: float, resampled: Float[NDArray[np.float64], " resample"], *, reason: str = ""
    ) -> "Estimate":
        """The interval of these resamples."""
        defined = resampled[~np.isnan(resampled)]
        lower = upper = math.nan
        if len(defined) and not math.isnan(value):
            tail = 50 * (1 - LEVEL)
            lower, upper = np.percentile(defined, [tail, 100 - tail]).tolist()
        why = reason if math.isnan(value) else ""
        return cls(float(value), lower, upper, len(resampled) - len(defined), why)

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON: `value`, `lower`, `upper`, and what there is to say about them."""
        notes: dict[str, Any] = {"reason": self.reason} if self.reason else {}
        if self.undefined and not self.reason:
            notes["undefined_resamples"] = self.undefined
        return {
            "value": plain(self.value),
            "lower": plain(self.lower),
            "upper": plain(self.upper),
            **notes,
        }


def plain(value: float) -> float | None:
    """The number, or None where it isn't finite: JSON has no NaN."""
    return float(value) if math.isfinite(value) else None


def draw(queries: int, *, count: int, seed: int) -> Iterator[Int[NDArray[np.int64], " query"]]:
    """The queries of each resample, as indices."""
    generator = np.random.default_rng(seed)
    for _ in range(count):
        yield generator.integers(0, queries, queries)


def chunks(queries: int, *, count: int, seed: int, width: int) -> Iterator[Weights]:
    """The same draws as weights, some resamples at a time.

    Args:
        queries: How many queries there are.
        count: How many resamples to draw.
        seed: Another seed, other draws.
        width: Numbers per resample in the largest table made of it; bounds the memory.

    Raises:
        ConfigError: The count or the seed is negative.
    """
    if count < 0:
        raise ConfigError(f"{count} resamples; 1000 is usual, 0 leaves the intervals out")
    if seed < 0:
        raise ConfigError(f"the seed is {seed}; it must be 0 or more")
    size = max(_LEAST, _CELLS // max(width, 1))
    generator = draw(queries, count=count, seed=seed)
    for begin in range(0, count, size):
        rows = [next(generator) for _ in range(min(size, count - begin))]
        yield np.stack([np.bincount(row, minlength=queries) for row in rows]).astype(np.float64)
