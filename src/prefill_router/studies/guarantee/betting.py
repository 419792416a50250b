"""Tests by betting: is a bounded mean below a threshold? Valid for any number of observations.

A gambler who doubts that the mean is at least `threshold` bets on each observation before seeing
it. If the mean is at least that high, the bets are fair or unfavourable, so the probability that
the capital ever exceeds 1 / p is at most p (Ville's inequality). The inverse of the highest capital
is therefore a p-value.
The proof, and the stakes, which follow the variance seen so far, are those of Waudby-Smith and
Ramdas, "Estimating means of bounded random variables by betting" (JRSS B 86, 2024;
arXiv:2010.09686); Bates et al. 2021 (arXiv:2101.02703) have the one-sided form used here.
"""

import math

import numpy as np
from jaxtyping import Float
from numpy.typing import NDArray

from prefill_router.errors import ConfigError

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
