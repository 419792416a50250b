"""First and second moments of states, streamed and exact.

They are kept as count, mean and scatter about that mean, and are added by the pairwise update of
Chan, Golub and LeVeque (1979), which loses nothing where the mean is far larger than the spread, as
it is in a residual stream.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import reduce
from operator import add
from typing import final

import numpy as np
from jaxtyping import Float, Float64
from numpy.typing import NDArray

from prefill_router.brief import brief
from prefill_router.errors import ConfigError, FitError

_BLOCK_BYTES = 1 << 26


@brief
@final
@dataclass(frozen=True, eq=False)
class Moments:
    """The moments of some rows; those of disjoint rows add up.

    Attributes:
        count: How many rows.
        mean: Their mean.
        scatter: The sum of outer products of their deviations from the mean.
    """

    count: int
    mean: Float64[NDArray[np.float64], " hidden"]
    scatter: Float64[NDArray[np.float64], "hidden hidden"]

    @classmethod
    def empty(cls, hidden: int) -> "Moments":
        """Those of no rows."""
        return cls(0, np.zeros(hidden), np.zeros((hidden, hidden)))

    @classmethod
    def of(cls, states: Float[NDArray[np.floating], "row hidden"]) -> "Moments":
        """Those of these rows, computed in float64 block by block."""
        size = max(1, _BLOCK_BYTES // (8 * max(1, states.shape[1])))
        blocks = (states[i : i + size] for i in range(0, len(states), size))
        return cls.total((cls._of_block(block) for block in blocks), hidden=states.shape[1])

    @classmethod
    def total(cls, parts: Iterable["Moments"], *, hidden: int) -> "Moments":
        """The sum of the moments of disjoint rows."""
        return reduce(add, parts, cls.empty(hidden))

    @classmethod
    def _of_block(cls, states: Float[NDArray[np.floating], "row hidden"]) -> "Moments":
        wide = states.astype(np.float64)
        mean = wide.mean(axis=0)
        wide -= mean
        return cls(len(wide), mean, wide.T @ wide)

    def __add__(self, other: "Moments") -> "Moments":
        if self.mean.shape != other.mean.shape:
            raise ConfigError(
                f"moments of {len(self.mean)} and {len(other.mean)} dimensions can't be added; "
                "take both from the states of one encoder"
            )
        if not self.count or not other.count:
            return self if self.count else other
        count = self.count + other.count
        step = other.mean - self.mean
        scatter = np.outer(step * (self.count * other.count / count), step)
        scatter += self.scatter
        scatter += other.scatter
        return Moments(count, self.mean + step * (other.count / count), scatter)

    @property
    def covariance(self) -> Float64[NDArray[np.float64], "hidden hidden"]:
        """The sample covariance.

        Raises:
            FitError: There are fewer than two rows.
        """
        if self.count < 2:
            raise FitError(f"a covariance needs two rows or more; got {self.count}: add queries")
        return self.scatter / (self.count - 1)
