"""A power law through a learning curve: err(n) = a + b n^-c.

The form in which the error of most learners falls with their data (Hestness et al. 2017, "Deep
learning scaling is predictable, empirically"). For each exponent the best a and b, neither
negative, have a closed form; the exponent is searched on a grid. Points far off count less (Huber's
weights), so that one unlucky fit doesn't bend the curve.
"""

import math
from dataclasses import dataclass
from typing import Any, final

import numpy as np
from jaxtyping import Float
from numpy.typing import NDArray

from prefill_router.errors import FitError

Sizes = Float[NDArray[np.float64], " size"]
_EXPONENTS = np.linspace(0.05, 2.0, 79)
_ROUNDS = 8
_HUBER = 1.345
"""95 % as efficient as least squares where errors are normal (Huber 1964)."""
_MAD = 1.4826
_LEAST = 4
"""Three parameters go through any three points."""


@final
@dataclass(frozen=True)
class PowerLaw:
    """An error that falls with the number of labels.

    Attributes:
        floor: a, what no number of labels gets below.
        scale: b n^-c at the largest size.
        exponent: c.
        largest: The largest size that was seen; beyond it the law is a guess.
    """

    floor: float
    scale: float
    exponent: float
    largest: float

    @classmethod
    def fit(cls, sizes: Sizes, errors: Sizes) -> "PowerLaw":
        """The robust fit.

        Args:
            sizes: Numbers of labels, positive.
            errors: The mean error at each; NaN where unknown.

        Raises:
            FitError: Fewer than four sizes are known.
        """
        known = np.isfinite(errors)
        if known.sum() < _LEAST:
            raise FitError(f"a power law needs {_LEAST} sizes; {known.sum()} are known")
        x, y = sizes[known], errors[known]
        largest = float(x.max())
        table = (x / largest)[:, None] ** -_EXPONENTS
        weight = np.ones(len(x))
        for _ in range(_ROUNDS):
            a, b, at = _best(table, y, weight)
            rest = np.abs(y - a - b * table[:, at])
            scale = _HUBER * _MAD * float(np.median(rest))
            weight = np.minimum(1, scale / np.maximum(rest, 1e-12)) if scale > 0 else weight
        return cls(a, b, float(_EXPONENTS[at]), largest)

    def at(self, labels: Float[NDArray[np.float64], "..."]) -> Float[NDArray[np.float64], "..."]:
        """The error at these numbers of labels."""
        value: NDArray[np.float64] = (
            self.floor + self.scale * (labels / self.largest) ** -self.exponent
        )
        return value

    def labels_for(self, gain: float) -> float:
        """How many labels in all lower the error at the largest size by so much; inf if none do."""
        left = self.scale - gain
        if left <= 0 or self.scale <= 0:
            return math.inf
        with np.errstate(over="ignore"):
            return float(self.largest * np.float64(self.scale / left) ** (1 / self.exponent))

    def gain(self, times: float) -> float:
        """How much lower the error is with so many times the labels of the largest size."""
        return self.scale * (1 - float(times**-self.exponent))

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON; b is that of labels relative to `largest`."""
        return {"a": self.floor, "b": self.scale, "c": self.exponent, "largest": self.largest}


def explained(law: PowerLaw, sizes: Sizes, errors: Sizes) -> float:
    """R squared: the share of the errors' variance that the law explains; NaN where there is none.

    Args:
        law: The law.
        sizes: Numbers of labels.
        errors: The mean error at each; NaN where unknown.
    """
    known = np.isfinite(errors)
    x, y = sizes[known], errors[known]
    spread = float(((y - y.mean()) ** 2).sum())
    if spread <= 1e-16:
        return math.nan
    return 1 - float(((y - law.at(x)) ** 2).sum()) / spread


def _best(
    table: Float[NDArray[np.float64], "size exponent"], y: Sizes, weight: Sizes
) -> tuple[float, float, int]:
    """The a, b and place of the exponent with the least weighted squares."""
    total = weight.sum()
    mean_u, mean_y = weight @ table / total, float(weight @ y / total)
    centred = table - mean_u
    variance = weight @ centred**2
    b = (weight * (y - mean_y)) @ centred / np.maximum(variance, 1e-300)
    b = np.maximum(b, 0)
    a = mean_y - b * mean_u
    through = (weight * y) @ table / (weight @ table**2)
    b = np.where(a < 0, np.maximum(through, 0), b)
    a = np.maximum(a, 0)
    left = weight @ (y[:, None] - a - b * table) ** 2
    at = int(np.argmin(left))
    return float(a[at]), float(b[at]), at
