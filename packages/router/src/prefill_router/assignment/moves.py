"""Moves of single prompts from their target to another, in order of merit.

An assignment is improved or repaired in rounds. In each round every prompt proposes the move that
rates highest for it, and the moves are made from the best down as far as they are allowed.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import final

import numpy as np
from jaxtyping import Bool, Float, Int
from numpy.typing import NDArray

from prefill_router.statistics import row_blocks

PerCell = Float[NDArray[np.float64], "prompt target"]
Rows = Int[NDArray[np.int64], " row"]
Counts = Int[NDArray[np.int64], " target"]
Choice = Int[NDArray[np.int64], " prompt"]
Rate = Callable[[PerCell, PerCell], PerCell]
"""From gains and extra costs of moves to how they rate; -inf for a move that isn't allowed."""


@final
@dataclass(frozen=True, eq=False)
class Moves:
    """Proposed moves, the best first; at most one of a prompt.

    Attributes:
        row: The prompts.
        target: Where each would go.
        extra: What that costs more, US dollars.
    """

    row: Rows
    target: Rows
    extra: Float[NDArray[np.float64], " row"]

    def __len__(self) -> int:
        return len(self.row)

    def only(self, these: Bool[NDArray[np.bool_], " row"]) -> "Moves":
        """Some of the moves."""
        return Moves(self.row[these], self.target[these], self.extra[these])

    def upto(self, count: int) -> "Moves":
        """The first moves."""
        return Moves(self.row[:count], self.target[:count], self.extra[:count])


def best_moves(
    rows: Rows, choice: Choice, value: PerCell, cost: PerCell, rate: Rate, *, room: Counts
) -> Moves:
    """The move of each of these prompts that rates highest, where one is allowed.

    Args:
        rows: The prompts.
        choice: The present target of every prompt.
        value: What a prompt is worth at each target.
        cost: US dollars.
        rate: Rates moves.
        room: How many more prompts each target takes; one without room is no destination.
    """
    blocks = (rows[block] for block in row_blocks(len(rows)))
    parts = [_of_block(block, choice, value, cost, rate, room) for block in blocks]
    row, target, extra, merit = (
        np.concatenate(part) for part in zip(*parts or [_NOTHING], strict=True)
    )
    order = np.argsort(-merit, kind="stable")
    return Moves(row[order], target[order], extra[order])


_NOTHING = (np.zeros(0, np.int64), np.zeros(0, np.int64), np.zeros(0), np.zeros(0))


def _of_block(
    rows: Rows, choice: Choice, value: PerCell, cost: PerCell, rate: Rate, room: Counts
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.float64], NDArray[np.float64]]:
    place, now = np.arange(len(rows)), choice[rows]
    gain, extra = value[rows], cost[rows]
    gain = gain - gain[place, now][:, None]
    extra = extra - extra[place, now][:, None]
    merit = np.where(room > 0, rate(gain, extra), -np.inf)
    merit[place, now] = -np.inf
    best = merit.argmax(axis=1)
    top = merit[place, best]
    possible = top > -np.inf
    return rows[possible], best[possible], extra[place, best][possible], top[possible]


def first_within(group: Rows, room: Counts) -> Bool[NDArray[np.bool_], " row"]:
    """Which of a list are among the first `room[k]` of their group k."""
    within = np.zeros(len(group), dtype=np.bool_)
    for k, count in enumerate(room.tolist()):
        within[np.flatnonzero(group == k)[: max(count, 0)]] = True
    return within
