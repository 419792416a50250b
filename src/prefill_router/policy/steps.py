"""Paths made of records: of candidates in a fixed order, each that holds longer than all before."""

import numpy as np
from jaxtyping import Float, Int
from numpy.typing import NDArray

from prefill_router.errors import ConfigError
from prefill_router.policy.path import LambdaPath

_LEAST = float(np.nextafter(0, 1))


def record_path(
    candidates: Int[NDArray[np.int64], "query place"],
    holds_to: Float[NDArray[np.float64], "query place"],
) -> LambdaPath:
    """The path on which the first candidate that still holds wins.

    Args:
        candidates: The columns of each query's candidates, the preferred ones first.
        holds_to: The highest setting at which each may win; at least 0. The one that holds longest
            wins from where the others end up to 1. Whatever begins at 1 wins there, so what still
            holds at 1 has a higher number, see `to_the_end`.
    """
    longest = np.maximum.accumulate(holds_to, axis=1)
    record = np.ones(candidates.shape, dtype=np.bool_)
    record[:, 1:] = holds_to[:, 1:] > longest[:, :-1]
    begin = np.zeros(candidates.shape)
    # A candidate that holds at 0 alone ends there, so the next one begins above it.
    begin[:, 1:] = np.maximum(longest[:, :-1], _LEAST)
    start = np.concatenate([[0], np.cumsum(record.sum(axis=1))])
    return LambdaPath(start.astype(np.int64), begin[record], candidates[record].astype(np.int64))


def to_the_end(
    holds_to: Float[NDArray[np.float64], "query place"],
) -> Float[NDArray[np.float64], "query place"]:
    """The same, where holding up to 1 includes 1."""
    return np.where(holds_to >= 1, np.inf, holds_to)


def columns(names: tuple[str, ...], targets: tuple[str, ...], policy: str) -> list[int]:
    """The columns of the targets that a policy names.

    Raises:
        ConfigError: Some aren't among the targets.
    """
    lacking = [name for name in names if name not in targets]
    if lacking:
        raise ConfigError(
            f"the policy {policy!r} names the targets {lacking}, which aren't among "
            f"{list(targets)}; name targets of the router, as the pool spells them"
        )
    return [targets.index(name) for name in names]


def by_cost(
    correctness: Float[NDArray[np.float64], "query target"],
    cost: Float[NDArray[np.float64], "query target"],
) -> Int[NDArray[np.int64], "query target"]:
    """The columns of each query from cheap to dear; ties to the more probable, then the first."""
    order: Int[NDArray[np.int64], "query target"] = np.lexsort((-correctness, cost), axis=1)
    return order
