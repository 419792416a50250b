"""Tests by betting, which are valid at any moment, however often they are looked at.

A gambler bets that observations fall short of what is expected of them. As long as they don't, on
average given the past, no strategy makes money: the capital exceeds c with a probability of at most
1 / c, ever (Ville's inequality; Waudby-Smith and Ramdas, "Estimating means of bounded random
variables by betting", JRSS B 86, 2024, arXiv:2010.09686). Each gambler divides the capital among
bold and careful strategies, since how large the shortfall will be isn't known.

To find out when that *changes*, a new gambler begins before each observation, with one unit. The
sum of all their capitals, the Shiryaev-Roberts e-detector (Shin, Ramdas and Rinaldo 2022,
arXiv:2203.03532), grows by at most one unit per observation on average as long as nothing changes,
so within n observations it exceeds c with a probability of at most n / c.

Where the number of observations is known and a p-value is wanted, the stakes follow the variance
seen so far: the inverse of the highest capital is a p-value of the hypothesis that a bounded mean
is at least a threshold, for any number of observations. Bates et al. 2021 (arXiv:2101.02703) have
the one-sided form used here.
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


Observed = Float[NDArray[np.float64], " observation"]
_BOLDEST = 0.75
"""The share of the capital that may be lost on one observation."""
_PRIOR = 0.25
"""The variance assumed before the first observation: the largest possible one."""


def p_value(observed: Observed, threshold: float, *, level: float) -> float:
    """The p-value of the hypothesis that the mean is at least the threshold.

    Args:
        observed: Independent draws in [0, 1], in an order that doesn't depend on their values.
        threshold: Strictly between 0 and 1.
        level: The intended significance level, for which the stakes are optimised; the p-value is
            valid for any level.

    Raises:
        ConfigError: An observation is outside [0, 1], or the threshold or the level is invalid.
    """
    _check(observed, threshold, level)
    if not len(observed):
        return 1.0
    stakes = _stakes(observed, threshold, level)
    capital = np.cumsum(np.log1p(stakes * (threshold - observed)))
    return math.exp(-max(0.0, float(capital.max())))


def enough(observed: Observed, threshold: float, *, level: float) -> int | None:
    """About how many observations like these lead to a rejection with a probability of 50 %.

    The best constant stake in hindsight multiplies the capital by a factor per observation; the
    result is the number of observations until it reaches 1 / level.

    Returns:
        None where the observations aren't evidence against the hypothesis, so that more won't help.
    """
    _check(observed, threshold, level)
    if not len(observed) or observed.mean() >= threshold:
        return None
    stakes = np.linspace(0, _BOLDEST / (1 - threshold), 400)[1:]
    growth = max(float(np.log1p(s * (threshold - observed)).mean()) for s in stakes)
    return math.ceil(-math.log(level) / growth) if growth > 0 else None


def _stakes(observed: Observed, threshold: float, level: float) -> Observed:
    """The stake on each observation, computed from the earlier ones alone."""
    count = np.arange(1, len(observed) + 1)
    mean = (threshold + np.cumsum(observed)) / (count + 1)
    variance = (_PRIOR + np.cumsum((observed - mean) ** 2)) / (count + 1)
    before = np.concatenate([[_PRIOR], variance[:-1]])
    wanted = np.sqrt(-2 * math.log(level) / (len(observed) * before))
    stakes: Observed = np.minimum(wanted, _BOLDEST / (1 - threshold))
    return stakes


def _check(observed: Observed, threshold: float, level: float) -> None:
    if not ((observed >= 0) & (observed <= 1)).all():
        raise ConfigError("observations must be in [0, 1]; scale them first")
    for name, value in (("threshold", threshold), ("level", level)):
        if not 0 < value < 1:
            raise ConfigError(f"the {name} is {value}; it must be between 0 and 1")
