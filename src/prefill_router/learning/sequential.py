"""Tests that are valid at any moment, however often they are looked at, by betting.

A gambler bets that observations fall short of what is expected of them. As long as they don't, on
average given the past, no strategy makes money: the capital exceeds c with a probability of at most
1 / c, ever (Ville's inequality; Waudby-Smith and Ramdas, JRSS B 86, 2024, arXiv:2010.09686).

To find out when that *changes*, a new gambler begins before each observation, with one unit. The
sum of all their capitals, the Shiryaev-Roberts e-detector (Shin, Ramdas and Rinaldo 2022,
arXiv:2203.03532), grows by at most one unit per observation on average as long as nothing changes,
so within n observations it exceeds c with a probability of at most n / c.

Each gambler divides the capital among bold and careful strategies, since how large the shortfall
will be isn't known.
"""

import math
from typing import Final, final

import numpy as np
from jaxtyping import Float
from numpy.typing import NDArray

from prefill_router.errors import ConfigError

Shortfalls = Float[NDArray[np.float64], " observation"]
_STAKES: Final = np.array([0.02, 0.05, 0.1, 0.2, 0.35, 0.55, 0.8])
"""Shares of the capital that each strategy loses at the worst observation."""


def log_capital(shortfalls: Shortfalls, *, worst: Shortfalls | float) -> Shortfalls:
    """The logarithm of the capital after each observation.

    Args:
        shortfalls: How far each observation is below what is expected of it, in order; expected is
            what the hypothesis says of its mean, given the earlier ones.
        worst: The largest possible excess over the expected value, as a positive number; of each
            observation, or of all.

    Returns:
        Evidence that observations fall short; `log(20)` rejects that they don't at 5 %.

    Raises:
        ConfigError: An excess is larger than `worst`, or that isn't positive.
    """
    growth = np.cumsum(_growth(shortfalls, worst), axis=0)
    found: Shortfalls = np.logaddexp.reduce(growth, axis=1) - math.log(len(_STAKES))
    return found


@final
class ChangeDetector:
    """The e-detector, one observation after the other, to find when shortfalls begin."""

    def __init__(self) -> None:
        self._capitals = np.full(len(_STAKES), -np.inf)

    def add(self, shortfall: float, *, worst: float) -> float:
        """Take one observation; returns the logarithm of the detector's value.

        Args:
            shortfall: How far it is below what is expected of it.
            worst: The largest possible excess over the expected value, as a positive number.

        Raises:
            ConfigError: As `log_capital`.
        """
        factor = _growth(np.array([shortfall]), worst)[0]
        self._capitals = np.logaddexp(self._capitals, 0.0) + factor
        return float(np.logaddexp.reduce(self._capitals)) - math.log(len(_STAKES))


def _growth(
    shortfalls: Shortfalls, worst: Shortfalls | float
) -> Float[NDArray[np.float64], "observation bet"]:
    """The logarithm of what each strategy's capital is multiplied by."""
    if not (np.asarray(worst) > 0).all():
        raise ConfigError(f"worst holds {float(np.min(worst)):g}; it must be positive")
    relative = np.asarray(shortfalls, dtype=np.float64) / worst
    if (relative < -1 - 1e-9).any():
        raise ConfigError(
            f"an excess is {-float(relative.min()):g} times worst; give the largest possible"
        )
    found: Float[NDArray[np.float64], "observation bet"] = np.log1p(np.outer(relative, _STAKES))
    return found
