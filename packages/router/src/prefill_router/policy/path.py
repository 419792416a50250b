"""The score of Equation 2, and the winner of every query for every setting at once.

    s[k, q] = lam * p[k, q] - (1 - lam) * c[k, q]

with p the predicted correctness and c the normalised cost. Ties go to the cheaper target, then to
the more probable one, then to the first. So a target that costs more and is no better is never
chosen.

Over lam in [0, 1] each target of Equation 2 is a line. The winner is the upper envelope of the
lines. It changes at no more than K - 1 values of lam. Other policies have such a path too, over
their own parameter. With candidates in order of preference, each valid up to some setting, their
winners are the candidates that are valid longer than all before them.
"""

from dataclasses import dataclass
from typing import final

import numpy as np
from jaxtyping import Float, Int
from numpy.typing import NDArray

from prefill_router.errors import ConfigError
from prefill_router.short_repr import short_repr

PerCell = Float[NDArray[np.float64], "query target"]


def check_lam(lam: float) -> float:
    """Check a lam, and return it.

    Raises:
        ConfigError: It is outside [0, 1] or NaN.
    """
    if not 0 <= lam <= 1:
        raise ConfigError(f"lam is {lam}; it must be in [0, 1]: 0 is cheapest, 1 is most probable")
    return lam


def score(correctness: PerCell, cost: PerCell, lam: float) -> PerCell:
    """Equation 2.

    Args:
        correctness: Predicted probabilities of a correct answer.
        cost: Normalised costs, `CostScale.normalise`.
        lam: From 0, cheapest, to 1, most probable.
    """
    check_lam(lam)
    return lam * correctness - (1 - lam) * cost


def rank(correctness: PerCell, cost: PerCell, lam: float) -> Int[NDArray[np.int64], "query target"]:
    """Targets of each query from the best score to the worst; ties as described in this module."""
    check_tables(correctness, cost)
    keys = (-correctness, cost, -score(correctness, cost, lam))
    order: Int[NDArray[np.int64], "query target"] = np.lexsort(keys, axis=1)
    return order


def choose(correctness: PerCell, cost: PerCell, lam: float) -> Int[NDArray[np.int64], " query"]:
    """The winning target of each query at one lam."""
    return rank(correctness, cost, lam)[:, 0]


def check_tables(correctness: PerCell, cost: PerCell) -> None:
    """Check that both tables have the same shape and are finite.

    Raises:
        ConfigError: The shapes differ, there is no target, or a number isn't finite.
    """
    if correctness.shape != cost.shape or correctness.ndim != 2 or not correctness.shape[1]:
        raise ConfigError(
            f"correctness has the shape {correctness.shape} and cost {cost.shape}; both must be "
            "[query, target] with at least one target"
        )
    if not (np.isfinite(correctness).all() and np.isfinite(cost).all()):
        raise ConfigError("correctness and cost must be finite; check the predictor and the prices")


@short_repr
@final
@dataclass(frozen=True, eq=False)
class LambdaPath:
    """Every winner of every query over lam in [0, 1], exactly.

    Query q's winners are `target[start[q]:start[q + 1]]`, in order of ascending lam. Each is valid
    on (its `lam`, the next one's `lam`], the first from 0 on, the last up to 1.

    Attributes:
        start: The position of each query's first segment, and at the end the number of segments.
        lam: The lam above which each segment is valid; 0 for each query's first.
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
    if len(correctness) > _ROWS:
        blocks = (slice(i, i + _ROWS) for i in range(0, len(correctness), _ROWS))
        return _join_paths([lambda_path(correctness[rows], cost[rows]) for rows in blocks])
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


_ROWS = 1 << 16
"""The queries whose paths are computed at once."""


def _join_paths(parts: list[LambdaPath]) -> LambdaPath:
    """The paths of queries that follow each other."""
    ends = np.cumsum([0, *(len(part.lam) for part in parts)])
    start = [end + part.start[:-1] for end, part in zip(ends, parts, strict=False)]
    lam, target = (np.concatenate([getattr(p, name) for p in parts]) for name in ("lam", "target"))
    return LambdaPath(np.concatenate([*start, ends[-1:]]), lam, target)


def _next_winner(
    correctness: PerCell,
    cost: PerCell,
    rows: NDArray[np.int64],
    begin: NDArray[np.float64],
    winner: NDArray[np.int64],
) -> tuple[NDArray[np.int64], NDArray[np.float64], NDArray[np.int64]]:
    """The queries with a next winner after `winner`, the lam where it takes over, and the winner.

    Where three lines meet in one point, rounding can put the next change before the last one. It is
    clipped to `begin`, so that each query's lam never decreases.
    """
    gain = correctness[rows] - correctness[rows, winner][:, None]
    extra = np.maximum(cost[rows] - cost[rows, winner][:, None], 0)
    # Written so that it is monotone in floating point too: no dominated target is ever ahead.
    with np.errstate(divide="ignore", over="ignore", invalid="ignore"):
        lam = np.where(gain > 0, 1 / (1 + gain / extra), np.inf)
    best = np.lexsort((cost[rows], -correctness[rows], lam), axis=1)[:, 0]
    is_defined = np.isfinite(lam[np.arange(len(rows)), best])
    takes_over = np.maximum(lam[is_defined, best[is_defined]], begin[is_defined])
    return rows[is_defined], takes_over, best[is_defined]


_LEAST = float(np.nextafter(0, 1))


def record_path(
    candidates: Int[NDArray[np.int64], "query place"],
    holds_to: Float[NDArray[np.float64], "query place"],
) -> LambdaPath:
    """The path on which the first candidate that is still valid wins.

    Args:
        candidates: The columns of each query's candidates, in order of preference.
        holds_to: The highest setting at which each may win; at least 0. The one with the greatest
            wins from where the others end up to 1. A segment that begins at 1 would win there, so a
            candidate that is valid at 1 has a number above 1, see `to_the_end`.
    """
    longest = np.maximum.accumulate(holds_to, axis=1)
    record = np.ones(candidates.shape, dtype=np.bool_)
    record[:, 1:] = holds_to[:, 1:] > longest[:, :-1]
    begin = np.zeros(candidates.shape)
    # A candidate that is valid only at 0 ends there, so the next one begins above it.
    begin[:, 1:] = np.maximum(longest[:, :-1], _LEAST)
    start = np.concatenate([[0], np.cumsum(record.sum(axis=1))])
    return LambdaPath(start.astype(np.int64), begin[record], candidates[record].astype(np.int64))


def to_the_end(
    holds_to: Float[NDArray[np.float64], "query place"],
) -> Float[NDArray[np.float64], "query place"]:
    """The same settings, with those of 1 raised so that 1 itself is included."""
    return np.where(holds_to >= 1, np.inf, holds_to)


def columns(names: tuple[str, ...], targets: tuple[str, ...], policy: str) -> list[int]:
    """The columns of the targets that a policy names.

    Raises:
        ConfigError: A name isn't among the targets.
    """
    lacking = [name for name in names if name not in targets]
    if lacking:
        raise ConfigError(
            f"the policy {policy!r} names the targets {lacking}, which aren't among "
            f"{list(targets)}; name targets of the router, spelled as in the pool"
        )
    return [targets.index(name) for name in names]


def by_cost(
    correctness: Float[NDArray[np.float64], "query target"],
    cost: Float[NDArray[np.float64], "query target"],
) -> Int[NDArray[np.int64], "query target"]:
    """The columns of each query by ascending cost; ties to the more probable, then the first."""
    order: Int[NDArray[np.int64], "query target"] = np.lexsort((-correctness, cost), axis=1)
    return order
