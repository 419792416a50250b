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
_HALVINGS = 60


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
    return spread * density + distance * (1 + math.erf(z / math.sqrt(2))) / 2


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
    if total <= dollars:
        return askable.astype(np.float64)
    floor = FLOOR * dollars / total
    known = askable & ~np.isnan(gain)
    worth = np.where(known, np.nan_to_num(gain) / np.where(askable, cost, 1.0), 0.0)
    mean = float(worth[known].mean()) if known.any() else 1.0
    worth = np.where(askable & ~known, mean or 1.0, worth)

    def at(scale: float) -> Cells:
        return np.where(askable, np.minimum(1.0, floor + scale * worth), 0.0)

    low, high = 0.0, 1.0 / max(float(worth[worth > 0].min(initial=math.inf)), 1e-300)
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        low, high = (middle, high) if float((at(middle) * cost).sum()) <= dollars else (low, middle)
    return at(low)


def chance(seed: int, decision: str, target: str) -> float:
    """A number in [0, 1) that is drawn anew for each decision and target, and always the same."""
    digest = hashlib.sha256(f"{seed}\n{decision}\n{target}".encode("utf-8", "surrogatepass"))
    return int.from_bytes(digest.digest()[:7]) / 2**56
