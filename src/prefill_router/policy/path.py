"""The winner of every query for every setting at once.

Over lam in [0, 1] each target of Equation 2 is a line, the winner is the upper envelope of the
lines, and it changes at no more than K - 1 values of lam. Other policies have such a path too, over
their own parameter.
"""

from dataclasses import dataclass
from typing import final

import numpy as np
from jaxtyping import Float, Int
from numpy.typing import NDArray

from prefill_router.brief import brief
from prefill_router.policy.equation import PerCell, check_lam, check_tables


@brief
@final
@dataclass(frozen=True, eq=False)
class LambdaPath:
    """Every winner of every query over lam in [0, 1], exactly.

    Query q's winners are `target[start[q]:start[q + 1]]`, in the order of rising lam; each holds on
    (its `lam`, the next one's `lam`], the first from 0 on, the last up to 1.

    Attributes:
        start: Where each query's segments begin; one more than there are queries.
        lam: The lam above which each segment holds; 0 for each query's first.
        target: Each segment's winner.
    """

    start: Int[NDArray[np.int64], " bounds"]
    lam: Float[NDArray[np.float64], " segment"]
    target: Int[NDArray[np.int64], " segment"]

    def __len__(self) -> int:
        return len(self.start) - 1

    @property
    def query(self) -> Int[NDArray[np.int64], " segment"]:
        """The query of each segment."""
        return np.repeat(np.arange(len(self)), np.diff(self.start))

    def at(self, lam: float) -> Int[NDArray[np.int64], " query"]:
        """The winner of each query at one lam."""
        check_lam(lam)
        begun = (self.lam < lam) | (self.lam == 0) | (lam == 1)
        before = np.concatenate([[0], np.cumsum(begun)])
        count = before[self.start[1:]] - before[self.start[:-1]]
        winner: Int[NDArray[np.int64], " query"] = self.target[self.start[:-1] + count - 1]
        return winner


def lambda_path(correctness: PerCell, cost: PerCell) -> LambdaPath:
    """Compute the exact path: all winners and the lam values at which they change.

    Args:
        correctness: Predicted probabilities, finite.
        cost: Normalised costs, finite.

    Raises:
        ConfigError: The shapes differ, or a number isn't finite.
    """
    check_tables(correctness, cost)
    rows = np.arange(len(correctness))
    winner = np.lexsort((-correctness, cost), axis=1)[:, 0]
    begin = np.zeros(len(rows))
    steps = [(rows, begin, winner)]
    while len(rows):
        rows, begin, winner = _next_winner(correctness, cost, rows, begin, winner)
        steps.append((rows, begin, winner))
    query, lam, target = (np.concatenate(part) for part in zip(*steps, strict=True))
    order = np.argsort(query, kind="stable")
    start = np.searchsorted(query[order], np.arange(len(correctness) + 1))
    return LambdaPath(start.astype(np.int64), lam[order], target[order])


def _next_winner(
    correctness: PerCell,
    cost: PerCell,
    rows: NDArray[np.int64],
    begin: NDArray[np.float64],
    winner: NDArray[np.int64],
) -> tuple[NDArray[np.int64], NDArray[np.float64], NDArray[np.int64]]:
    """The queries that have a next winner after `winner`, the lam where it takes over, and who.

    Where three lines meet in one point, rounding can put the next change before the last one; it is
    put at `begin`, so that each query's lam never falls.
    """
    gain = correctness[rows] - correctness[rows, winner][:, None]
    extra = np.maximum(cost[rows] - cost[rows, winner][:, None], 0)
    # Written so that it is monotone in floating point too: no dominated target is ever ahead.
    with np.errstate(divide="ignore", over="ignore", invalid="ignore"):
        lam = np.where(gain > 0, 1 / (1 + gain / extra), np.inf)
    best = np.lexsort((cost[rows], -correctness[rows], lam), axis=1)[:, 0]
    found = np.isfinite(lam[np.arange(len(rows)), best])
    takes_over = np.maximum(lam[found, best[found]], begin[found])
    return rows[found], takes_over, best[found]
