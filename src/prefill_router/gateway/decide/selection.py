"""The free choice among the targets that may answer.

Who is asked first and who is next is what the policy says (the order of `router.decision.decide`);
where there is no forecast, or none that is trusted, the fallback decides. A share of the traffic is
routed: whole conversations, and always the same ones, by the names of decisions and conversations.
Names of decisions grow with time, so that receipts are kept in their order.

A conversation keeps its target unless a switch gains more than it throws away. A provider reads the
turns that it has just seen from its cache, at a lower price. So the present target is priced with
what its cache should hold, and every other one in full; by these costs the scores of Equation 2 are
compared.
"""

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import final

import numpy as np
from jaxtyping import Float, Int
from numpy.typing import NDArray

from prefill_router.errors import ConfigError
from prefill_router.gateway.decide.affinity import Sessions, SessionState
from prefill_router.gateway.decide.budgets import Allowance
from prefill_router.gateway.decide.candidates import CostScores, PerTarget, RequestEstimate
from prefill_router.gateway.records import RoutingRequest
from prefill_router.gateway.settings import GatewaySettings, SessionSettings, TrafficSettings
from prefill_router.gateway.types import FALLBACKS, Reason
from prefill_router.policy import Lambda, Policy, rank, score


@final
@dataclass(frozen=True, eq=False)
class TargetChoice:
    """Whom the free choice fell on.

    Attributes:
        order: The columns of those that may answer, the chosen one first.
        reason: Why it is the first.
        winner: The column of whom the policy alone would choose; None without a forecast.
        cost: Every target's estimated cost, with what the present one has cached, US dollars.
    """

    order: list[int]
    reason: Reason
    winner: int | None
    cost: PerTarget


@final
class TargetChooser:
    """Chooses by the policy, the fallback, the share of traffic, and who holds the conversation.

    Args:
        names: The pool's targets.
        policy: Who answers.
        costs: The router's costs.
        prior: Every target's share of correct answers on the train rows; None where unknown, as it
            is where one isn't finite.
        settings: The gateway's.
        sessions: What is remembered of conversations.
    """

    def __init__(
        self,
        names: tuple[str, ...],
        policy: Policy,
        costs: CostScores,
        prior: PerTarget | None,
        *,
        settings: GatewaySettings,
        sessions: Sessions,
    ) -> None:
        self._names = names
        self._policy = policy
        self._costs = costs
        self._prior = prior if prior is not None and np.isfinite(prior).all() else None
        self._settings = settings
        self._sessions = sessions
        self._column = {name: k for k, name in enumerate(names)}

    def choose(
        self,
        question: RoutingRequest,
        known: RequestEstimate,
        allowance: Allowance,
        among: Sequence[int],
        *,
        decision: str,
    ) -> TargetChoice:
        """Choose for one request.

        Args:
            question: The request.
            known: What is known of it.
            allowance: The trade-off.
            among: The columns of those that may answer, at least one.
            decision: The decision's name.
        """
        names, lam, cost = self._names, allowance.lam, self._costs.normalise(known.cost)
        p, winner = known.correctness, None
        if known.trusted is not None:
            # a spent budget leaves the cheapest, whatever the policy makes of its parameter
            policy = Lambda() if allowance.exhausted else self._policy
            order = policy_order(policy, known.trusted, cost, lam, names=names, among=among)
            winner = order[0]
        else:
            fallback = "cheapest" if allowance.exhausted else self._settings.routing.fallback
            order = fallback_order(
                fallback, self._policy, self._prior, cost, lam, names=names, among=among
            )
            if p is not None:
                winner = policy_order(self._policy, p, cost, lam, names=names, among=among)[0]
        traffic = self._settings.traffic
        if traffic.otherwise is not None and not allowance.exhausted:
            rest = self._column[traffic.otherwise]
            if rest in among and not is_routed(
                traffic, session=question.session, decision=decision
            ):
                return TargetChoice(_first(rest, order), "share", winner, known.cost)
        reason: Reason = "policy" if known.fallback is None else "fallback"
        kept = self._kept(question, known, allowance, among, order[0])
        if kept is None:
            return TargetChoice(order, reason, winner, known.cost)
        present, with_cache, keeps = kept
        if keeps and present != order[0]:
            return TargetChoice(_first(present, order), "session", winner, with_cache)
        return TargetChoice(order, reason, winner, with_cache)

    def _kept(
        self,
        question: RoutingRequest,
        known: RequestEstimate,
        allowance: Allowance,
        among: Sequence[int],
        winner: int,
    ) -> tuple[int, PerTarget, bool] | None:
        """Who holds the conversation, the costs with its cache, and whether it is kept."""
        if question.opening:
            return None
        seat = self._sessions.seat(question.session, question.at)
        present = -1 if seat is None else self._column.get(seat.target, -1)
        if seat is None or present not in among:
            return None
        sessions = self._settings.sessions
        cached = cached_tokens(seat, at=question.at, settings=sessions)
        cost = self._costs.with_cache(known.cost, present, tokens=known.tokens, cached=cached)
        p = known.trusted
        if p is None and not allowance.exhausted:
            return present, cost, True  # nothing speaks for a switch
        keeps = keeps_target(
            np.zeros_like(cost) if p is None else p,
            cost,
            allowance.lam,
            present=present,
            winner=winner,
            costs=self._costs,
            margin=0.0 if allowance.exhausted else sessions.margin,
        )
        return present, cost, keeps


def _first(column: int, order: list[int]) -> list[int]:
    return [column, *(k for k in order if k != column)]


PolicyColumn = Float[NDArray[np.float64], " target"]
_CLEAR = 1e-9


def policy_order(
    policy: Policy,
    correctness: PolicyColumn,
    cost: PolicyColumn,
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


PriorColumn = Float[NDArray[np.float64], " target"]


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
    prior: PriorColumn | None,
    cost: PriorColumn,
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
    prior: PriorColumn | None,
    cost: PriorColumn,
    lam: float,
    names: tuple[str, ...],
    among: Sequence[int],
) -> list[int]:
    if prior is None:
        return _best(prior, cost, among)
    return policy_order(policy, prior, cost, lam, names=names, among=among)


def _best(prior: PriorColumn | None, cost: PriorColumn, among: Sequence[int]) -> list[int]:
    if prior is None:
        return sorted(among, key=lambda k: -cost[k])
    return sorted(among, key=lambda k: (-prior[k], cost[k]))


def cached_tokens(seat: SessionState, *, at: float, settings: SessionSettings) -> int:
    """Tokens that the present target's provider should still hold, in the target's own."""
    return seat.tokens if at - seat.at <= settings.cache_seconds else 0


def keeps_target(
    correctness: PerTarget,
    cost: PerTarget,
    lam: float,
    *,
    present: int,
    winner: int,
    costs: CostScores,
    margin: float,
) -> bool:
    """Whether the present target is kept: where the policy's winner gains no more than the margin.

    By the policy `lambda` the winner has the best score of the others; by other policies it is
    whom they would choose, and must be better by the same rule.

    Args:
        correctness: Every target's probability.
        cost: Every target's estimated cost, the present one's with its cache, US dollars.
        lam: The trade-off.
        present: The column of the present target.
        winner: The column of whom the policy would choose, with nothing cached.
        costs: The router's costs.
        margin: What a switch must gain in score.
    """
    if winner == present:
        return True
    score = costs.scores(correctness, cost, lam)
    return bool(score[winner] - score[present] <= margin)


def is_routed(traffic: TrafficSettings, *, session: str | None, decision: str) -> bool:
    """Whether the router decides on a request.

    As the share grows, what was routed stays routed.

    Args:
        traffic: The share.
        session: What names the conversation; without one the request stands for itself.
        decision: The name of the decision.
    """
    return traffic.share >= 1 or share_of(session or decision) < traffic.share


_RANDOM_BITS = 62
_SHARE_DIGITS = 13


def decision_id(at: float, *, random: Callable[[int], bytes] = os.urandom) -> str:
    """A new name: `pr_` and the 32 hexadecimal digits of a UUID of version 7 (RFC 9562, 5.7).

    The 12 bits behind the milliseconds are their fraction (RFC 9562, 6.2, method 3).

    Args:
        at: Seconds since 1970.
        random: Gives so many random bytes.
    """
    ticks = int(at * 4_096_000)
    milliseconds, fraction = (ticks >> 12) & ((1 << 48) - 1), ticks & 0xFFF
    chance = int.from_bytes(random(8), "big") & ((1 << _RANDOM_BITS) - 1)
    high = milliseconds << 16 | 0x7 << 12 | fraction
    return f"pr_{high << 64 | 0b10 << _RANDOM_BITS | chance:032x}"


def share_of(name: str) -> float:
    """A number in [0, 1) made of a name's last hexadecimal digits, always the same for the name.

    Args:
        name: A decision's, or that of a conversation.
    """
    return int(name[-_SHARE_DIGITS:], 16) / float(1 << 4 * _SHARE_DIGITS)
