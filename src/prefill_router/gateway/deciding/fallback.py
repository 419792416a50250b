"""Who decides where there is no forecast, or none that is trusted."""

from collections.abc import Sequence

import numpy as np
from jaxtyping import Float
from numpy.typing import NDArray

from prefill_router.errors import ConfigError
from prefill_router.gateway.deciding.ordering import ordered
from prefill_router.gateway.words import FALLBACKS
from prefill_router.policy import Policy

PerTarget = Float[NDArray[np.float64], " target"]


def check_fallback(fallback: str, names: tuple[str, ...]) -> None:
    """Check that a fallback is one.

    Raises:
        ConfigError: It is neither a word for one nor a target.
    """
    if fallback not in FALLBACKS and fallback not in names:
        raise ConfigError(
            f"routing.fallback is {fallback!r}; known are {', '.join(FALLBACKS)}, and the targets "
            f"{list(names)}"
        )


def fallback_order(
    fallback: str,
    policy: Policy,
    prior: PerTarget | None,
    cost: PerTarget,
    lam: float,
    *,
    names: tuple[str, ...],
    among: Sequence[int],
) -> list[int]:
    """The columns of the targets that may answer, best first, without a forecast.

    Args:
        fallback: `prior`, the policy on the shares of correct answers; `best` by these, or
            `cheapest`; or a target, which goes before the order of `prior`. A target's own name
            wins over a word.
        policy: Who answers, with a forecast.
        prior: Every target's share of correct answers on the train rows. None where the router
            doesn't keep it: the dearest target then counts as the best.
        cost: Every target's normalised cost.
        lam: The policy's parameter.
        names: All targets.
        among: The columns of those that may answer.
    """
    if fallback in names:
        rest = _by_prior(policy, prior, cost, lam, names, among)
        return sorted(rest, key=lambda k: names[k] != fallback)
    if fallback == "cheapest":
        return sorted(among, key=lambda k: (cost[k], 0.0 if prior is None else -prior[k]))
    if fallback == "best":
        return _best(prior, cost, among)
    return _by_prior(policy, prior, cost, lam, names, among)


def _by_prior(
    policy: Policy,
    prior: PerTarget | None,
    cost: PerTarget,
    lam: float,
    names: tuple[str, ...],
    among: Sequence[int],
) -> list[int]:
    if prior is None:
        return _best(prior, cost, among)
    return ordered(policy, prior, cost, lam, names=names, among=among)


def _best(prior: PerTarget | None, cost: PerTarget, among: Sequence[int]) -> list[int]:
    if prior is None:
        return sorted(among, key=lambda k: -cost[k])
    return sorted(among, key=lambda k: (-prior[k], cost[k]))
