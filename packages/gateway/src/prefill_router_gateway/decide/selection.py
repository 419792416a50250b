"""The choice among the targets that may answer.

The policy ranks the targets (the order of `router.decision.decide`); without a forecast that is
trusted, the fallback does. A conversation keeps its target unless a switch gains more than it
loses. A provider reads the turns that it has just seen from its cache, at a lower price. So the
current target is priced with what its cache should hold, and every other target in full. Equation 2
compares them at these costs. An agent sends several requests for what a person asks, and only the
first finds an empty cache at another target. So the mean of the expected requests is compared.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import final

import numpy as np
from jaxtyping import Float, Int
from numpy.typing import NDArray

from prefill_router.errors import ConfigError
from prefill_router.policy import Lambda, Policy, rank, score
from prefill_router_gateway.decide.affinity import Sessions, SessionState, is_routed
from prefill_router_gateway.decide.budgets import Allowance
from prefill_router_gateway.decide.candidates import CostScores, PerTarget, RequestEstimate
from prefill_router_gateway.decide.latency import order_ready, waiting_dollars
from prefill_router_gateway.records import FALLBACKS, PredictedWaits, Reason, RoutingRequest
from prefill_router_gateway.settings import (
    GatewaySettings,
)


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
        estimate: RequestEstimate,
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
            estimate: Its estimates.
            allowance: The trade-off after budgets.
            among: The columns of the targets that may answer, at least one.
            decision: The decision's id.
            waits: The predicted waiting; None where it doesn't count.
            limited: The columns of the targets that come last, since their rate limits allow no
                further request.
        """
        able, among = among, self._apply_floor(question, estimate, allowance, among)
        chosen = self._choose(question, estimate, allowance, among, able, decision, waits, limited)
        return _append_rest(chosen, estimate, able)

    def _choose(
        self,
        question: RoutingRequest,
        estimate: RequestEstimate,
        allowance: Allowance,
        among: Sequence[int],
        able: Sequence[int],
        decision: str,
        waits: PredictedWaits | None,
        limited: Collection[int],
    ) -> TargetChoice:
        """The choice among the columns above the floor; those that are `able` may be below it."""
        order, winner = self._rank(estimate, allowance, among)
        rest = self._outside_share(question, allowance, able, decision)
        if rest is not None:
            return TargetChoice(_put_first(rest, order), "share", winner, estimate.cost)
        unready = {*limited, *(k for k in order if waits and waits.is_late(self._names[k]))}
        reason: Reason = "policy" if estimate.fallback is None else "fallback"
        if waits is not None or limited:
            order = self._order_ready(estimate, allowance.lam, order, waits, limited)
            if estimate.trusted_correctness is not None and order[0] != winner:
                reason = "headroom" if winner in limited else "latency"
        current = self._find_current(question, estimate, allowance, among, order[0], waits)
        if current is None:
            return TargetChoice(order, reason, winner, estimate.cost)
        present, with_cache, why = current
        if why != "state" and present in unready and order[0] not in unready:
            why = None
        if why is not None and (present != order[0] or why != "session"):
            return TargetChoice(_put_first(present, order), why, winner, with_cache)
        return TargetChoice(order, reason, winner, with_cache)

    def find_stronger(
        self, estimate: RequestEstimate, lam: float, among: Sequence[int], present: str
    ) -> list[int]:
        """The columns that are likelier to be right than the present target, best first.

        Args:
            estimate: The estimates of the request; its forecast is trusted.
            lam: The trade-off after budgets.
            among: The columns of the targets that may answer.
            present: The target at present.
        """
        p, cost = estimate.trusted_correctness, self._costs.normalise(estimate.cost)
        if p is None:
            return []
        columns = [k for k in among if p[k] > p[self._column[present]]]
        if not columns:
            return []
        return policy_order(self._policy, p, cost, lam, names=self._names, among=columns)

    def _apply_floor(
        self,
        question: RoutingRequest,
        estimate: RequestEstimate,
        allowance: Allowance,
        among: Sequence[int],
    ) -> Sequence[int]:
        """The columns of the targets that are probable enough, or else of the most probable one.

        A floor moves no conversation that keeps its target, and spends no budget.
        """
        floor, p = question.floor, estimate.trusted_correctness
        has_target = self._sessions.last_state(question.session) is not None
        is_kept = has_target and (question.holds_state or question.agent.is_ongoing)
        if floor is None or p is None or allowance.exhausted or is_kept:
            return among
        return [k for k in among if p[k] >= floor] or [max(among, key=lambda k: p[k])]

    def _rank(
        self, estimate: RequestEstimate, allowance: Allowance, among: Sequence[int]
    ) -> tuple[list[int], int | None]:
        """The columns in the policy's or the fallback's order, and the policy's own choice."""
        names, lam, cost = self._names, allowance.lam, self._costs.normalise(estimate.cost)
        if estimate.trusted_correctness is not None:
            # a spent budget leaves only the cheapest, whatever the policy does with lam
            policy = Lambda() if allowance.exhausted else self._policy
            order = policy_order(
                policy, estimate.trusted_correctness, cost, lam, names=names, among=among
            )
            return order, order[0]
        fallback = "cheapest" if allowance.exhausted else self._settings.routing.fallback
        order = fallback_order(
            fallback, self._policy, self._prior, cost, lam, names=names, among=among
        )
        p = estimate.correctness
        if p is None:
            return order, None
        return order, policy_order(self._policy, p, cost, lam, names=names, among=among)[0]

    def _outside_share(
        self,
        question: RoutingRequest,
        allowance: Allowance,
        among: Sequence[int],
        decision: str,
    ) -> int | None:
        """The column of the target for what isn't routed; None where this request is."""
        traffic = self._settings.traffic
        if traffic.otherwise is None or allowance.exhausted:
            return None
        rest = self._column[traffic.otherwise]
        routed = is_routed(traffic, session=question.session, decision=decision)
        return None if routed or rest not in among else rest

    def _order_ready(
        self,
        estimate: RequestEstimate,
        lam: float,
        order: list[int],
        waits: PredictedWaits | None,
        limited: Collection[int],
    ) -> list[int]:
        """The order by waiting and rate limits too."""

        def rank(p: PerTarget, dollars: PerTarget, among: list[int]) -> list[int]:
            costs = self._costs.normalise(estimate.cost + dollars)
            return policy_order(self._policy, p, costs, lam, names=self._names, among=among)

        return order_ready(order, estimate.trusted_correctness, self._names, waits, limited, rank)

    def _find_current(
        self,
        question: RoutingRequest,
        estimate: RequestEstimate,
        allowance: Allowance,
        among: Sequence[int],
        winner: int,
        waits: PredictedWaits | None,
    ) -> tuple[int, PerTarget, Reason | None] | None:
        """The conversation's target, the costs with its cache, and why it is kept, if it is."""
        if question.opening:
            return None
        state = self._sessions.state(question.session, question.at)
        if state is None and question.holds_state:
            state = self._sessions.last_state(question.session)
        present = -1 if state is None else self._column.get(state.target, -1)
        if state is None or present not in among:
            return None
        seconds = float(self._costs.cache(question).seconds[present])
        cached = cached_tokens(state, at=question.at, seconds=seconds)
        tokens = estimate.tokens
        cost = self._costs.with_cache(
            question, estimate.cost, present, tokens=tokens, cached=cached
        )
        if question.holds_state and not allowance.exhausted:
            return present, cost, "state"
        if question.agent.is_ongoing and not allowance.exhausted:
            # a summary is read once: where another target is cheaper without a cache, it moves
            is_cheaper = cost[winner] < cost[present]
            moves = question.agent.kind == "compaction" and is_cheaper
            return present, cost, None if moves else "turn"
        keeps = self._keeps_present(estimate, cost, allowance, present, winner, waits)
        return present, cost, "session" if keeps else None

    def _keeps_present(
        self,
        estimate: RequestEstimate,
        cost: PerTarget,
        allowance: Allowance,
        present: int,
        winner: int,
        waits: PredictedWaits | None,
    ) -> bool:
        """Whether a conversation stays where it is, by its probabilities and costs."""
        p = estimate.trusted_correctness
        if p is None and not allowance.exhausted:
            return True  # no forecast favours a switch
        return keeps_target(
            np.zeros_like(cost) if p is None else p,
            cost if waits is None else cost + waiting_dollars(waits, self._names),
            allowance.lam,
            present=present,
            winner=winner,
            costs=self._costs,
            margin=0.0 if allowance.exhausted else self._settings.sessions.margin,
        )


def _append_rest(
    choice: TargetChoice, estimate: RequestEstimate, able: Sequence[int]
) -> TargetChoice:
    """The choice with the targets below a floor at its end, to be called if the others fail."""
    rest, p = [k for k in able if k not in choice.order], estimate.trusted_correctness
    if not rest or p is None:
        return choice
    return replace(choice, order=[*choice.order, *sorted(rest, key=lambda k: -p[k])])


def _put_first(column: int, order: list[int]) -> list[int]:
    return [column, *(k for k in order if k != column)]


_CLEAR = 1e-9


def policy_order(
    policy: Policy,
    correctness: PerTarget,
    cost: PerTarget,
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
        clear = _order_by_score(p, c, lam)
        if clear is not None:
            order = columns[clear].tolist()
            return order
    try:
        positions = policy.order(p, c, lam, targets=tuple(names[k] for k in among))[0]
        order = columns[positions].tolist()
        return order
    except ConfigError:
        if len(among) == len(names):
            raise
    allowed = set(among)
    everyone = policy.order(correctness[None, :], cost[None, :], lam, targets=names)[0]
    return [k for k in everyone.tolist() if k in allowed]


def _order_by_score(
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
    prior: PerTarget | None,
    cost: PerTarget,
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
    prior: PerTarget | None,
    cost: PerTarget,
    lam: float,
    names: tuple[str, ...],
    among: Sequence[int],
) -> list[int]:
    if prior is None:
        return _best(prior, cost, among)
    return policy_order(policy, prior, cost, lam, names=names, among=among)


def _best(prior: PerTarget | None, cost: PerTarget, among: Sequence[int]) -> list[int]:
    if prior is None:
        return sorted(among, key=lambda k: -cost[k])
    return sorted(among, key=lambda k: (-prior[k], cost[k]))


def cached_tokens(state: SessionState, *, at: float, seconds: float) -> int:
    """Tokens that the current target's provider should still have cached, by its own count.

    Args:
        state: The conversation's last answer.
        at: The time, in seconds since 1970.
        seconds: For how long the provider's cache holds them.
    """
    return state.tokens if at - state.at <= seconds else 0


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

    With the policy `lambda` the winner has the best score of the others. With other policies it is
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
    scores = costs.scores(correctness, cost, lam)
    return bool(scores[winner] - scores[present] <= margin)
