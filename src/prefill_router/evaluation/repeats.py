"""The oracle without the luck of single runs, where answers were sampled several times.

An oracle that is told the labels it is judged by takes a lucky guess for knowledge: of ten targets
that are each right half of the time, one is right on nearly every query. Told all runs of each
target but one, and judged by that one, it gains nothing by luck. It knows less than an oracle with
endless runs, so the truth lies between it and the plain one, and nearer the more runs there are.
"""

import numpy as np
from jaxtyping import Bool, Float
from numpy.typing import NDArray

PerCell = Float[NDArray[np.float64], "query target"]
PerQuery = Float[NDArray[np.float64], " query"]
_WHOLE = 1e-6
"""A mean of right and wrong runs, times their number, is this near a whole number."""


def held_out_oracle(correct: PerCell, runs: PerCell | None) -> PerQuery:
    """The mean label of an oracle that sees all runs of every target but the one it is judged by.

    Over all ways to leave one run of each target out; of targets that did equally well in the
    others each is chosen as often. NaN for queries that have a label which isn't known to be the
    mean of two or more runs, each right or wrong.

    Args:
        correct: The labels; NaN where missing.
        runs: Of how many runs each is the mean; NaN or None where that isn't known.
    """
    found = np.full(len(correct), np.nan)
    if runs is None:
        return found
    known = ~np.isnan(correct)
    right: PerCell = np.rint(np.where(known, correct * runs, 0.0))
    counted = (runs >= 2) & (np.abs(correct * runs - right) < _WHOLE)
    rows = known.any(axis=1) & (counted | ~known).all(axis=1)
    if rows.any():
        often: PerCell = np.where(known, runs, 2.0)
        found[rows] = _expected(right[rows], often[rows], known[rows])
    return found


def _expected(
    right: PerCell, runs: PerCell, known: Bool[NDArray[np.bool_], "query target"]
) -> PerQuery:
    """How probably the run that was left out is right, of the target that is chosen."""
    seen = np.where(known, (right - 1) / (runs - 1), -1)  # of the others, if it was right
    otherwise = np.where(known, right / (runs - 1), -1)
    chance = np.where(known, right / runs, 0)
    # Ties are broken by a uniform draw for each target: the integral over that of the chosen one.
    nodes, weights = np.polynomial.legendre.leggauss(right.shape[1] // 2 + 1)
    total = np.zeros(len(right))
    for k in range(right.shape[1]):
        mine = seen[:, [k]]
        others = np.arange(right.shape[1]) != k
        below = chance * (seen < mine) + (1 - chance) * (otherwise < mine)
        level = chance * (seen == mine) + (1 - chance) * (otherwise == mine)
        beaten = np.zeros(len(right))
        for node, weight in zip((nodes + 1) / 2, weights / 2, strict=True):
            beaten += weight * (below + node * level)[:, others].prod(axis=1)
        total += chance[:, k] * beaten
    return total
