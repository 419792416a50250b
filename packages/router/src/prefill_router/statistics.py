"""Statistics that several packages need, and tests by betting.

The first part has the ROC-AUC of every target; the logistic function, its inverse, its loss and a
shrunken regression; which targets can be learned, and their base rates; means over known values;
which columns vary; and which rows are equal.

The second part has tests by betting, which are valid at any moment, however often they are looked
at. A gambler bets that observations fall short of what is expected of them. As long as they don't,
on average given the past, no strategy makes money. The capital ever exceeds c with a probability of
at most 1 / c (Ville's inequality; Waudby-Smith and Ramdas, "Estimating means of bounded random
variables by betting", JRSS B 86, 2024, arXiv:2010.09686). Each gambler divides the capital among
bold and careful strategies, since how large the shortfall will be isn't known.

To find out when that *changes*, a new gambler begins before each observation, with one unit. The
sum of all their capitals is the Shiryaev-Roberts e-detector (Shin, Ramdas and Rinaldo 2022,
arXiv:2203.03532). As long as nothing changes, it grows by at most one unit per observation on
average. So within n observations it exceeds c with a probability of at most n / c.

Where the number of observations is known and a p-value is wanted, the stakes follow the variance
seen so far: the inverse of the highest capital is a p-value of the hypothesis that a bounded mean
is at least a threshold, for any number of observations. Bates et al. 2021 (arXiv:2101.02703) have
the one-sided form used here.
"""

import hashlib
import math
from collections.abc import Callable, Sequence
from typing import Final, final

import numpy as np
from jaxtyping import Bool, Float, Float64, Int
from numpy.typing import NDArray

from prefill_router.data import Table, binary
from prefill_router.errors import ConfigError


def auc_by_target(
    scores: Float[NDArray[np.floating], "query target"], correct: Table
) -> Float64[NDArray[np.float64], " target"]:
    """The share of pairs in which the right answer scores above the wrong one, ties counting half.

    Args:
        scores: Finite; higher means more probably correct.
        correct: Labels, cut at 0.5; NaN (not measured) is left out.

    Returns:
        In [0, 1] for each target; NaN where only one class was measured.

    Raises:
        ConfigError: The shapes differ.
    """
    if scores.shape != correct.shape:
        raise ConfigError(f"scores are {scores.shape} and labels {correct.shape}; give one of each")
    labels = binary(correct)
    return np.array(
        [_compute_auc(s[y == 1], s[y == 0]) for s, y in zip(scores.T, labels.T, strict=True)],
        dtype=np.float64,
    )


def _compute_auc(right: NDArray[np.floating], wrong: NDArray[np.floating]) -> float:
    if not len(right) or not len(wrong):
        return float("nan")
    ordered = np.sort(wrong)
    below = np.searchsorted(ordered, right, side="left").sum(dtype=np.int64)
    upto = np.searchsorted(ordered, right, side="right").sum(dtype=np.int64)
    return float(below + upto) / (2 * len(right) * len(wrong))


Logits = Float64[NDArray[np.float64], "*shape"]


def sigmoid(logits: Logits) -> Logits:
    """1 / (1 + exp(-x)), accurate to a few units in the last place for any x.

    scipy's `expit` is the same to 5e-16, but a decision then loads scipy, which takes 0.5 s.
    """
    small = np.exp(-np.abs(logits))  # at most 1, so nothing overflows
    result: Logits = np.where(logits < 0, small, 1) / (1 + small)
    return result


def log_odds(probability: Logits) -> Logits:
    """ln(p / (1 - p)) of probabilities between 0 and 1."""
    return np.asarray(np.log(probability) - np.log1p(-probability))


def cross_entropy(
    logits: Float[NDArray[np.floating], "*shape"], labels: Float[NDArray[np.floating], "*shape"]
) -> Float[NDArray[np.floating], "*shape"]:
    """The cross-entropy of each label, in [0, 1], under the sigmoid of its logit, in nats."""
    result: Float[NDArray[np.floating], "*shape"] = np.logaddexp(0, logits) - labels * logits
    return result


def learnable(
    labels: Float[NDArray[np.floating], "query target"],
) -> Bool[NDArray[np.bool_], " target"]:
    """Whether each target has at least two different labels, without NaN (not measured)."""
    missing = np.isnan(labels)
    low = np.where(missing, np.inf, labels).min(axis=0, initial=np.inf)
    return np.asarray(low < np.where(missing, -np.inf, labels).max(axis=0, initial=-np.inf))


def base_rates(correct: Table) -> Float64[NDArray[np.float64], " target"]:
    """The share of right answers of each target by the rule of succession, (sum + 1) / (n + 2).

    A target without labels gets the rate of all labels together.
    """
    count, total = (~np.isnan(correct)).sum(axis=0), np.nansum(correct, axis=0)
    nothing = count == 0
    count = np.where(nothing, count.sum(), count)
    return np.asarray((np.where(nothing, total.sum(), total) + 1) / (count + 2))


def known_mean(
    table: Float[NDArray[np.floating], "row *columns"],
) -> Float64[NDArray[np.float64], "*columns"]:
    """The mean of each column over the rows where it is known; NaN where it never is."""
    has_value = ~np.isnan(table)
    count = has_value.sum(axis=0)
    total = np.where(has_value, table, 0).sum(axis=0, dtype=np.float64)
    return np.asarray(np.where(count > 0, total / np.maximum(count, 1), np.nan))


Column = Float64[NDArray[np.float64], " column"]


def column_spread(
    rows: Float[NDArray[np.floating], "row column"], *, rounding: float
) -> tuple[Column, Column, Bool[NDArray[np.bool_], " column"]]:
    """The mean and the standard deviation of each column, and whether it varies.

    Args:
        rows: At least one.
        rounding: A standard deviation below this share of the mean counts as rounding error.
    """
    mean, spread = mean_and_spread(rows)
    least = np.maximum(rounding * np.abs(mean), float(np.finfo(np.float32).tiny))
    return mean, spread, spread > least


def mean_and_spread(rows: Float[NDArray[np.floating], "row column"]) -> tuple[Column, Column]:
    """The mean and the standard deviation of each column, in float64, some rows at a time."""
    blocks = row_blocks(len(rows))
    mean = sum(rows[block].sum(axis=0, dtype=np.float64) for block in blocks) / len(rows)
    squares = sum(np.square(rows[block] - mean).sum(axis=0) for block in blocks)
    return np.asarray(mean), np.asarray(np.sqrt(squares / len(rows)))


_BLOCK_ROWS = 1 << 16


def row_blocks(count: int, size: int = _BLOCK_ROWS) -> list[slice]:
    """Consecutive slices of at most so many rows, so that what is computed of one is small."""
    return [slice(i, min(i + size, count)) for i in range(0, count, size)]


def row_numbers(rows: Float[NDArray[np.floating], "row column"]) -> Int[NDArray[np.int64], " row"]:
    """A number for each row that equal rows share, from 0 in order of first appearance."""
    digests = (hashlib.blake2b(row, digest_size=16).digest() for row in np.ascontiguousarray(rows))
    content = np.frombuffer(b"".join(digests), dtype="S16")
    _, first, number = np.unique(content, return_index=True, return_inverse=True)
    rank = np.empty(len(first), dtype=np.int64)
    rank[np.argsort(first)] = np.arange(len(first))
    return np.asarray(rank[number])


Parameters = Float64[NDArray[np.float64], " parameter"]


def shrunken_logistic(
    first: Parameters,
    logits: Callable[[Parameters], Logits],
    slopes: Callable[[Logits], Parameters],
    labels: Logits,
    *,
    weights: Logits | float = 1.0,
    bounds: Sequence[tuple[float | None, float | None]] | None = None,
) -> Parameters:
    """A logistic regression that is shrunk towards its first parameters: few labels change little.

    It minimises the cross-entropy plus a penalty, of one label's weight, for leaving them.

    Args:
        first: The parameters at the start, which are kept where there are no labels.
        logits: From parameters to the logit of every label, a linear function.
        slopes: The transpose of `logits`: from a number per label to one per parameter.
        labels: In [0, 1].
        weights: The weight of each label; 0 where missing.
        bounds: The minimum and the maximum of each parameter.
    """
    from scipy.optimize import minimize  # only fitting needs it
    from scipy.special import expit

    def loss(now: Parameters) -> tuple[float, Parameters]:
        line = logits(now)
        gradient = slopes(weights * (expit(line) - labels)) + now - first
        each = weights * cross_entropy(line, labels)
        return float(each.sum() + np.square(now - first).sum() / 2), gradient

    parameters: Parameters = minimize(loss, first, jac=True, method="L-BFGS-B", bounds=bounds).x
    return parameters


PerObservation = Float[NDArray[np.float64], " observation"]
_STAKES: Final = np.array([0.02, 0.05, 0.1, 0.2, 0.35, 0.55, 0.8])
"""Shares of the capital that each strategy loses at the worst observation."""


def log_capital(shortfalls: PerObservation, *, worst: PerObservation | float) -> PerObservation:
    """The logarithm of the capital after each observation.

    Args:
        shortfalls: How far each observation is below what is expected of it, in order. Expected is
            what the hypothesis says of its mean, given the earlier ones.
        worst: The largest possible excess over the expected value, as a positive number; of each
            observation, or of all.

    Returns:
        Evidence that observations fall short; `log(20)` rejects that they don't at 5 %.

    Raises:
        ConfigError: An excess is larger than `worst`, or that isn't positive.
    """
    growth = np.cumsum(_compute_growth(shortfalls, worst), axis=0)
    capital: PerObservation = np.logaddexp.reduce(growth, axis=1) - math.log(len(_STAKES))
    return capital


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
        factor = _compute_growth(np.array([shortfall]), worst)[0]
        self._capitals = np.logaddexp(self._capitals, 0.0) + factor
        return float(np.logaddexp.reduce(self._capitals)) - math.log(len(_STAKES))


def _compute_growth(
    shortfalls: PerObservation, worst: PerObservation | float
) -> Float[NDArray[np.float64], "observation bet"]:
    """The logarithm of what each strategy's capital is multiplied by."""
    if not (np.asarray(worst) > 0).all():
        raise ConfigError(f"worst holds {float(np.min(worst)):g}; it must be positive")
    relative = np.asarray(shortfalls, dtype=np.float64) / worst
    if (relative < -1 - 1e-9).any():
        raise ConfigError(
            f"an excess is {-float(relative.min()):g} times worst; give the largest possible"
        )
    growth: Float[NDArray[np.float64], "observation bet"] = np.log1p(np.outer(relative, _STAKES))
    return growth


_BOLDEST = 0.75
"""The share of the capital that may be lost on one observation."""
_PRIOR = 0.25
"""The variance assumed before the first observation: the largest possible one."""


def p_value(observed: PerObservation, threshold: float, *, level: float) -> float:
    """The p-value of the hypothesis that the mean is at least the threshold.

    Args:
        observed: Independent draws in [0, 1], in an order that doesn't depend on their values.
        threshold: Strictly between 0 and 1.
        level: The intended significance level, for which the stakes are optimised; the p-value is
            valid for any level.

    Raises:
        ConfigError: An observation is outside [0, 1], or the threshold or the level is invalid.
    """
    _check_observations(observed, threshold, level)
    if not len(observed):
        return 1.0
    stakes = _compute_stakes(observed, threshold, level)
    capital = np.cumsum(np.log1p(stakes * (threshold - observed)))
    return math.exp(-max(0.0, float(capital.max())))


def enough(observed: PerObservation, threshold: float, *, level: float) -> int | None:
    """About how many observations like these lead to a rejection with a probability of 50 %.

    The best constant stake in hindsight multiplies the capital by a factor per observation. The
    result is the number of observations until it reaches 1 / level.

    Returns:
        None where the observations aren't evidence against the hypothesis, so that more won't help.
    """
    _check_observations(observed, threshold, level)
    if not len(observed) or observed.mean() >= threshold:
        return None
    stakes = np.linspace(0, _BOLDEST / (1 - threshold), 400)[1:]
    growth = max(float(np.log1p(s * (threshold - observed)).mean()) for s in stakes)
    return math.ceil(-math.log(level) / growth) if growth > 0 else None


def _compute_stakes(observed: PerObservation, threshold: float, level: float) -> PerObservation:
    """The stake on each observation, computed from the earlier ones alone."""
    count = np.arange(1, len(observed) + 1)
    mean = (threshold + np.cumsum(observed)) / (count + 1)
    variance = (_PRIOR + np.cumsum((observed - mean) ** 2)) / (count + 1)
    before = np.concatenate([[_PRIOR], variance[:-1]])
    wanted = np.sqrt(-2 * math.log(level) / (len(observed) * before))
    stakes: PerObservation = np.minimum(wanted, _BOLDEST / (1 - threshold))
    return stakes


def _check_observations(observed: PerObservation, threshold: float, level: float) -> None:
    if not ((observed >= 0) & (observed <= 1)).all():
        raise ConfigError("observations must be in [0, 1]; scale them first")
    for name, value in (("threshold", threshold), ("level", level)):
        if not 0 < value < 1:
            raise ConfigError(f"the {name} is {value}; it must be between 0 and 1")
