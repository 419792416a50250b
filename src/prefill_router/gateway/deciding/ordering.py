"""Who is asked first and who is next, as the policy says: the order of `router.decision.decide`."""

from collections.abc import Sequence

import numpy as np
from jaxtyping import Float, Int
from numpy.typing import NDArray

from prefill_router.errors import ConfigError
from prefill_router.policy import Lambda, Policy, rank, score

PerTarget = Float[NDArray[np.float64], " target"]
_CLEAR = 1e-9


def ordered(
    policy: Policy,
    correctness: PerTarget,
    cost: PerTarget,
    lam: float,
    *,
    names: tuple[str, ...],
    among: Sequence[int],
) -> list[int]:
    """The columns of the targets that may answer, best first.

    A policy that names targets of which some may not answer is asked about all, and these are
    passed over, as if they had failed.

    Args:
        policy: Who answers.
        correctness: Every target's probability.
        cost: Every target's normalised cost.
        lam: The policy's parameter.
        names: All targets.
        among: The columns of those that may answer.
    """
    columns = np.asarray(among, dtype=np.int64)
    order: list[int]
    p, c = correctness[columns][None, :], cost[columns][None, :]
    if isinstance(policy, Lambda):
        clear = _by_score(p, c, lam)
        if clear is not None:
            order = columns[clear].tolist()
            return order
    try:
        them = policy.order(p, c, lam, targets=tuple(names[k] for k in among))[0]
        order = columns[them].tolist()
        return order
    except ConfigError:
        if len(among) == len(names):
            raise
    allowed = set(among)
    everyone = policy.order(correctness[None, :], cost[None, :], lam, targets=names)[0]
    return [k for k in everyone.tolist() if k in allowed]


def _by_score(
    correctness: Float[NDArray[np.float64], "1 target"],
    cost: Float[NDArray[np.float64], "1 target"],
    lam: float,
) -> Int[NDArray[np.int64], " target"] | None:
    """The order by Equation 2; None where the first two are so near that rounding may decide.

    The exact path then tells the winner. It takes 20 times as long.
    """
    order: Int[NDArray[np.int64], " target"] = rank(correctness, cost, lam)[0]
    if len(order) > 1:
        first, second = score(correctness, cost, lam)[0, order[:2]].tolist()
        if first - second <= _CLEAR * (1 + float(np.abs(cost).max())):
            return None
    return order
