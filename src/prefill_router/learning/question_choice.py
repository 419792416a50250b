"""Chooses which answers to label: at random, more often where a label would teach about the choice.

What a label of a target could teach is its expected gain over the choice that was made: the mean of
max(0, s - best), where s is the target's score (lam * p - (1 - lam) * cost) under what isn't known
about p, and best the highest score of the others. Per dollar of asking and judging, and above a
floor for all, it sets the probability of each answer to be labelled. These probabilities are scaled
so that the expected spending is what may be spent.
"""

import hashlib
import math
from typing import Final

import numpy as np
from jaxtyping import Float
from numpy.typing import NDArray

Cells = Float[NDArray[np.float64], "request target"]
PerTarget = Float[NDArray[np.float64], " target"]
LABELS_BEHIND: Final = 20.0
"""A predicted probability is taken to be as uncertain as the mean of so many labels."""
FLOOR: Final = 0.2
"""The share of spending that goes to answers at random."""
_LEAST_WORTH = 1e-12
"""What teaches less per dollar, relative to the most, is labelled at random alone."""


def expected_gain(correctness: PerTarget, cost: PerTarget, lam: float) -> PerTarget:
    """What a label of each target could improve the choice of one request by, in its score.

    Args:
        correctness: Predicted probabilities of a correct answer.
        cost: Estimated costs, US dollars; they are taken relative to the dearest.
        lam: The weight of correctness.
    """
    dearest = float(cost.max())
    score = lam * correctness - (1 - lam) * (cost / dearest if dearest > 0 else cost)
    spread = lam * np.sqrt((correctness * (1 - correctness) + 0.05) / (LABELS_BEHIND + 1))
    gains = np.empty(len(score))
    for k in range(len(score)):
        best = max((float(s) for j, s in enumerate(score) if j != k), default=float(score[k]))
        away = abs(float(score[k]) - best)  # a leader may turn out worse, another one better
        gains[k] = _gain(-away, float(spread[k]))
    return gains


def _gain(distance: float, spread: float) -> float:
    """The mean of max(0, x) for a normal x of this mean and standard deviation."""
    if spread <= 0:
        return max(0.0, distance)
    z = distance / spread
    density = math.exp(-z * z / 2) / math.sqrt(2 * math.pi)
    found = spread * density + distance * math.erfc(-z / math.sqrt(2)) / 2
    return max(0.0, found)  # far below 0 the difference of two tiny numbers rounds to either side


def propensities(gain: Cells, price: Cells, dollars: float) -> Cells:
    """The probability with which each answer is to be labelled.

    Args:
        gain: What its label could teach; NaN where there was no forecast, which counts as the mean.
        price: Expected US dollars of asking and judging; NaN where it can't be asked.
        dollars: What may be spent on all of them.

    Returns:
        Probabilities, 0 where it can't be asked; their expected spending is at most `dollars`.
    """
    askable = ~np.isnan(price)
    cost = np.where(askable, np.maximum(price, 1e-9), 0.0)
    total = float(cost.sum())
    if float(np.nansum(price)) <= dollars:
        return askable.astype(np.float64)
    floor = FLOOR * dollars / total
    known = askable & ~np.isnan(gain)
    worth = np.where(known, np.nan_to_num(gain) / np.where(askable, cost, 1.0), 0.0)
    if not worth.any():  # nothing tells them apart
        known, worth = askable, askable.astype(np.float64)
    worth = np.where(askable & ~known, worth[known].mean(), worth) / worth.max()
    teaches = worth > _LEAST_WORTH
    scale = _scale(worth[teaches], cost[teaches], floor, dollars - floor * total)
    return np.where(askable, np.minimum(1.0, floor + scale * worth), 0.0)


def _scale(
    worth: NDArray[np.float64], cost: NDArray[np.float64], floor: float, dollars: float
) -> float:
    """The s with which the sum of cost * (min(1, floor + s * worth) - floor) is `dollars`.

    Those of most worth have a probability of 1 before others; behind the k first of these the sum
    is linear in s. If all of them at 1 cost less than `dollars`, it's the s where all have just 1.
    """
    order = np.argsort(-worth, kind="stable")
    worth, cost = worth[order], cost[order]
    certain = np.cumsum(cost * (1 - floor))
    before = np.concatenate(([0.0], certain[:-1]))
    slope = np.cumsum((cost * worth)[::-1])[::-1]
    scales = np.append((dollars - before) / slope, np.inf)
    k = int(np.argmax(np.append(scales[:-1] * worth <= 1 - floor, True)))
    return min(float(scales[k]), (1 - floor) / float(worth[-1]))


def chance(seed: int, decision: str, target: str) -> float:
    """A number in [0, 1) that is drawn anew for each decision and target, and always the same."""
    digest = hashlib.sha256(f"{seed}\n{decision}\n{target}".encode("utf-8", "surrogatepass"))
    return int.from_bytes(digest.digest()[:7]) / 2**56
