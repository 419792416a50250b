"""The free choice among the targets that may answer.

The policy ranks the targets (the order of `router.decision.decide`); without a forecast that is
trusted, the fallback does. A share of the traffic is routed: whole conversations, and always the
same ones, by the conversation's name or else the decision's id. Decision ids grow with time, so
that they sort receipts by time.

A conversation keeps its target unless a switch gains more than it loses. A provider reads the turns
that it has just seen from its cache, at a lower price. So the current target is priced with what
its cache should hold, and every other target in full; Equation 2 compares them at these costs.
"""

import os
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import final

import numpy as np
from jaxtyping import Float, Int
from numpy.typing import NDArray

from prefill_router.errors import ConfigError
from prefill_router.gateway.decide.affinity import Sessions, SessionState
from prefill_router.gateway.decide.budgets import Allowance
from prefill_router.gateway.decide.candidates import CostScores, PerTarget, RequestEstimate
from prefill_router.gateway.decide.latency import order_ready, waiting_dollars
from prefill_router.gateway.records import PredictedWaits, RoutingRequest
from prefill_router.gateway.settings import GatewaySettings, SessionSettings, TrafficSettings
from prefill_router.gateway.types import FALLBACKS, Reason
from prefill_router.policy import Lambda, Policy, rank, score


@final
@dataclass(frozen=True, eq=False)
class TargetChoice:
    """The result of the free choice.

    Attributes:
        order: The columns of the targets that may answer, the chosen one first.
        reason: Why it was chosen.
        winner: The column that the policy alone would choose; None without a forecast.
        cost: Every target's estimated cost in US dollars, with the current target's cache.
    """

    order: list[int]
    reason: Reason
    winner: int | None
    cost: PerTarget


@final
class TargetChooser:
    """Chooses by the policy, the fallback, the routed share, and the conversation's target.

    Args:
        names: The pool's targets.
        policy: The policy.
        costs: The router's costs.
        prior: Every target's accuracy on the train rows; None where unknown. It counts as unknown
            where a value isn't finite.
        settings: The gateway's settings.
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
        waits: PredictedWaits | None = None,
        limited: Collection[int] = (),
    ) -> TargetChoice:
        """Choose a target for one request.

        Args:
            question: The request.
            known: Its estimates.
            allowance: The trade-off after budgets.
            among: The columns of the targets that may answer, at least one.
            decision: The decision's id.
            waits: The predicted waiting; None where it doesn't count.
            limited: The columns of the targets that come last, since their rate limits allow no
                further request.
        """
        names, lam, cost = self._names, allowance.lam, self._costs.normalise(known.cost)
        p, winner = known.correctness, None
        if known.trusted is not None:
            # a spent budget leaves only the cheapest, whatever the policy does with lam
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

        def rank(p: PerTarget, dollars: PerTarget, among: list[int]) -> list[int]:
            dearer = self._costs.normalise(known.cost + dollars)
            return policy_order(self._policy, p, dearer, lam, names=names, among=among)

        late = () if waits is None else (k for k in order if waits.is_late(names[k]))
        unready = {*limited, *late}
        reason: Reason = "policy" if known.fallback is None else "fallback"
        if waits is not None or limited:
            order = order_ready(order, known.trusted, names, waits, limited, rank)
            if known.trusted is not None and order[0] != winner:
                reason = "headroom" if winner in limited else "latency"
        kept = self._kept(question, known, allowance, among, order[0], waits)
        if kept is None:
            return TargetChoice(order, reason, winner, known.cost)
        present, with_cache, keeps = kept
        keeps = keeps and not (present in unready and order[0] not in unready)
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
        waits: PredictedWaits | None,
    ) -> tuple[int, PerTarget, bool] | None:
        """The conversation's target, the costs with its cache, and whether it is kept."""
        if question.opening:
            return None
        state = self._sessions.state(question.session, question.at)
        present = -1 if state is None else self._column.get(state.target, -1)
        if state is None or present not in among:
            return None
        sessions = self._settings.sessions
        cached = cached_tokens(state, at=question.at, settings=sessions)
        cost = self._costs.with_cache(known.cost, present, tokens=known.tokens, cached=cached)
        p = known.trusted
        if p is None and not allowance.exhausted:
            return present, cost, True  # no forecast favours a switch
        keeps = keeps_target(
            np.zeros_like(cost) if p is None else p,
            cost if waits is None else cost + waiting_dollars(waits, self._names),
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

    A policy that names a target that may not answer ranks all targets, and those that may not
    answer are then dropped.

    Args:
        policy: The policy.
        correctness: Every target's probability of a correct answer.
        cost: Every target's normalised cost.
        lam: The policy's parameter.
        names: All targets.
        among: The columns of the targets that may answer.
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
    """The order by Equation 2; None where the first two are within rounding error.

    The exact path then decides; it takes 20 times as long.
    """
    order: Int[NDArray[np.int64], " target"] = rank(correctness, cost, lam)[0]
    if len(order) > 1:
        first, second = score(correctness, cost, lam)[0, order[:2]].tolist()
        if first - second <= _CLEAR * (1 + float(np.abs(cost).max())):
            return None
    return order


PriorColumn = Float[NDArray[np.float64], " target"]


def check_fallback(fallback: str, names: tuple[str, ...]) -> None:
    """Check that a fallback is known.

    Raises:
        ConfigError: It is neither the name of a fallback nor a target.
    """
    if fallback not in FALLBACKS and fallback not in names:
        raise ConfigError(
            f"routing.fallback is {fallback!r}; it can be {', '.join(FALLBACKS)}, or one of "
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
        fallback: `prior`, the policy applied to train accuracies; `best`, by train accuracy;
            `cheapest`; or a target, which comes before the order of `prior`. A target's name
            takes precedence.
        policy: The policy.
        prior: Every target's accuracy on the train rows. None where the router doesn't have it;
            the most expensive target then counts as the best.
        cost: Every target's normalised cost.
        lam: The policy's parameter.
        names: All targets.
        among: The columns of the targets that may answer.
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


def cached_tokens(state: SessionState, *, at: float, settings: SessionSettings) -> int:
    """Tokens that the current target's provider should still have cached, by its own count."""
    return state.tokens if at - state.at <= settings.cache_seconds else 0


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
    """Whether the current target is kept: the winner's gain in score is within the margin.

    With the policy `lambda` the winner has the best score of the others; with other policies it is
    the target that they would choose, and must be better by the same score.

    Args:
        correctness: Every target's probability of a correct answer.
        cost: Every target's estimated cost in US dollars, the current one's with its cache.
        lam: The trade-off.
        present: The column of the current target.
        winner: The column that the policy would choose with nothing cached.
        costs: The router's costs.
        margin: The gain in score that a switch must exceed.
    """
    if winner == present:
        return True
    score = costs.scores(correctness, cost, lam)
    return bool(score[winner] - score[present] <= margin)


def is_routed(traffic: TrafficSettings, *, session: str | None, decision: str) -> bool:
    """Whether a request is in the routed share.

    As the share grows, conversations that were routed stay routed.

    Args:
        traffic: The settings of the share.
        session: The name of the conversation; None where it has none.
        decision: The decision's id, which counts where there is no conversation.
    """
    return traffic.share >= 1 or share_of(session or decision) < traffic.share


_RANDOM_BITS = 62
_SHARE_DIGITS = 13


def decision_id(at: float, *, random: Callable[[int], bytes] = os.urandom) -> str:
    """A new decision id: `pr_` and 32 hexadecimal digits, a UUID version 7 (RFC 9562, 5.7).

    The 12 bits after the milliseconds are their fraction (RFC 9562, 6.2, method 3).

    Args:
        at: Seconds since 1970.
        random: Returns the given number of random bytes.
    """
    ticks = int(at * 4_096_000)
    milliseconds, fraction = (ticks >> 12) & ((1 << 48) - 1), ticks & 0xFFF
    chance = int.from_bytes(random(8), "big") & ((1 << _RANDOM_BITS) - 1)
    high = milliseconds << 16 | 0x7 << 12 | fraction
    return f"pr_{high << 64 | 0b10 << _RANDOM_BITS | chance:032x}"


def share_of(name: str) -> float:
    """A fixed number in [0, 1) for a name, from its last hexadecimal digits.

    Args:
        name: A decision's id or a conversation's name.
    """
    return int(name[-_SHARE_DIGITS:], 16) / float(1 << 4 * _SHARE_DIGITS)
