"""The decision about one request.

The first of these that there is becomes the target: the one that the client named; the one that
keeps the response that the request continues; in a tool loop, the one that called the tools;
outside the routed share, the one in the settings; the conversation's current one, unless a switch
pays. Otherwise it is the policy's choice, or the fallback's. A task that doesn't get on may leave
its tool loop's or conversation's target once, for a stronger one.

Targets in the pool that the router doesn't know: they answer where the target is fixed.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol, final, runtime_checkable

import numpy as np

from prefill_router.cost import CostEstimator
from prefill_router.errors import ConfigError
from prefill_router.policy import Policy
from prefill_router.router import Forecast, refuse_cascade
from prefill_router.targets import Pool
from prefill_router_gateway.decide.affinity import Affinity, Sessions, decision_id, is_routed
from prefill_router_gateway.decide.budgets import Allowance, Budgets
from prefill_router_gateway.decide.candidates import (
    Candidates,
    Exclusion,
    PerTarget,
    RequestCosts,
    RequestEstimate,
    named_cannot,
    no_eligible_target,
    request_estimate,
    request_tokens,
    response_lost,
    several_embeddings,
    unknown_target,
    written_tokens,
)
from prefill_router_gateway.decide.escalation import EscalationRule
from prefill_router_gateway.decide.latency import TargetSpeeds
from prefill_router_gateway.decide.selection import TargetChoice, TargetChooser, check_fallback
from prefill_router_gateway.records import (
    Escalation,
    FallbackReason,
    PredictedWaits,
    Reason,
    RequestOutcome,
    RoutingDecision,
    RoutingRequest,
)
from prefill_router_gateway.settings import GatewaySettings

_MILLION = 1e6


@final
class UnroutedTargets:
    """Targets that answer only where they are named, or to continue their own earlier answer.

    Args:
        pool: These targets, at least one.
        sessions: What is remembered of conversations.
    """

    def __init__(self, pool: Pool, sessions: Sessions) -> None:
        self.names = pool.names
        self._targets = {target.name: target for target in pool}
        self._candidates = Candidates(pool)
        self._affinity = Affinity(pool.names, self._candidates, sessions)
        self._sessions = sessions

    def serving(self, question: RoutingRequest) -> list[str]:
        """The targets that could answer if they were named."""
        unable = self._candidates.find_unable(question, 0)
        unwanted = self._candidates.add_unwanted(question, None, unable)
        return [name for name in self.names if name not in unwanted]

    def find_fixed(self, question: RoutingRequest) -> tuple[str, Reason] | None:
        """The one of them that must answer, or its endpoint, and why; None where none must."""
        name: str | None
        reason: Reason
        if question.named is not None:
            name, reason = question.named, "named"
        elif question.previous_response_id is not None:
            response = question.previous_response_id
            name, reason = self._sessions.keeper(response, key=question.key), "stored"
        elif question.in_tool_loop:
            unable = self._candidates.find_unable(question, 0)
            name, reason = self._affinity.caller(question, unable), "tool_loop"
        elif question.allow and question.allow <= self._targets.keys():
            name, reason = next(n for n in self.names if n in question.allow), "named"
        else:
            return None
        if name is None or self._candidates.target_of(name) not in self._targets:
            return None
        return name, reason

    def choice(
        self,
        identity: str,
        question: RoutingRequest,
        allowance: Allowance,
        *,
        lam_asked: float,
        fixed: tuple[str, Reason],
    ) -> RoutingDecision:
        """The decision for the target that must answer.

        Args:
            identity: The decision's id.
            question: The request.
            allowance: The trade-off after budgets.
            lam_asked: The trade-off before budgets.
            fixed: The target that must answer, and why.

        Raises:
            RefusalError: It doesn't serve this endpoint, is too expensive, or isn't allowed for
                the key.
        """
        deployment, reason = fixed
        name = self._candidates.target_of(deployment)
        tokens = request_tokens(question, None)
        cost = self._cost(name, question, tokens)
        costs = None if cost is None else np.full(len(self.names), cost)
        why = self._candidates.why_unusable(question, costs, name)
        if why is not None:
            by_name = named_cannot(question, name, why)
            raise response_lost(name, why.words) if reason == "stored" else by_name
        is_named = reason == "named"
        return RoutingDecision(
            id=identity,
            order=(name,),
            reason=reason,
            lam=None if is_named else allowance.lam,
            lam_asked=None if is_named else lam_asked,
            estimated_cost={} if cost is None else {name: cost},
            input_tokens=tokens,
            session=question.session,
            tool_loop=question.in_tool_loop,
            deployment=None if name == deployment else deployment,
        )

    def _cost(self, name: str, question: RoutingRequest, tokens: int) -> float | None:
        """The estimated cost in US dollars; None where the target's prices are unknown.

        The length of its answers is unknown: the client's limit is assumed, or a default length.
        """
        target = self._targets[name]
        if target.input_price is None or target.output_price is None:
            return None
        written = written_tokens(question)
        return (tokens * target.input_price + written * target.output_price) / _MILLION


@runtime_checkable
class RouterParts(Protocol):
    """The parts of a router that decisions need; `router.light.LightRouter` has them."""

    @property
    def pool(self) -> Pool:
        """The targets and their prices."""

    @property
    def fingerprint(self) -> str:
        """A hash of the router; empty where there is none."""

    @property
    def costs(self) -> CostEstimator:
        """The cost estimates of Equation 1."""

    @property
    def policy(self) -> Policy:
        """Chooses a target, given probabilities and costs."""

    @property
    def reference_accuracy(self) -> PerTarget | None:
        """Every target's accuracy on the train rows; None where unknown."""


@final
@dataclass(frozen=True, kw_only=True)
class OpenDecision:
    """A request whose decision has begun.

    Attributes:
        question: The request.
        barred: The targets that can't answer it however short it is.
        needs_forecast: Whether a forecast would matter; it doesn't where a name, a tool loop or a
            rule fixes the target.
    """

    question: RoutingRequest
    barred: Mapping[str, Exclusion]
    needs_forecast: bool


@final
class Decider:
    """Decides about requests with one router and one set of settings.

    A reload makes a new one, which gets the same sessions and budgets.

    Args:
        router: The fitted router.
        settings: The gateway's settings.
        sessions: What is remembered of conversations.
        budgets: The budgets and what was spent.
        breaker_open: Returns whether a target failed too often recently.
        limited: Returns whether a target's rate limits allow no request of so many tokens.
        speeds: How long the targets take; None where waiting doesn't count.
        pool: All targets; those that the router doesn't know answer only where they are named.
            None for the router's targets.
        warn: Called with messages about budgets, for the log.

    Attributes:
        costs: The costs of requests.

    Raises:
        ConfigError: The policy decides by answers, or the settings name a target that isn't in the
            pool.
    """

    def __init__(
        self,
        router: RouterParts,
        settings: GatewaySettings,
        *,
        sessions: Sessions,
        budgets: Budgets,
        breaker_open: Callable[[str], bool],
        limited: Callable[[str, int], bool] | None = None,
        speeds: TargetSpeeds | None = None,
        pool: Pool | None = None,
        warn: Callable[[str], None] | None = None,
    ) -> None:
        self._names, self._has_router = router.pool.names, bool(router.fingerprint)
        _check(router, settings)
        self._routing = settings.routing
        self.costs = RequestCosts(router.costs, cache_seconds=settings.sessions.cache_seconds)
        self._candidates = Candidates(router.pool)
        others = [] if pool is None else [n for n in pool.names if n not in self._names]
        self._others = UnroutedTargets(pool.select(others), sessions) if pool and others else None
        self._holders = Affinity(self._names, self._candidates, sessions)
        self._chooser = TargetChooser(
            self._names,
            router.policy,
            self.costs,
            router.reference_accuracy,
            settings=settings,
            sessions=sessions,
        )
        self._sessions = sessions
        self._escalation = EscalationRule(settings.agents, sessions)
        self._traffic = settings.traffic
        self._budgets = budgets
        self._breaker_open = breaker_open
        self._limited, self._speeds = limited, speeds
        self._warn = warn

    def begin(self, question: RoutingRequest) -> OpenDecision:
        """Check what doesn't depend on a forecast; `finish` must follow."""
        barred = {} if question.named else self._candidates.find_barred(question)
        needs_forecast = (
            self._has_router
            and not question.named
            and not question.previous_response_id
            and question.endpoint != "embeddings"
            and (self._others is None or self._others.find_fixed(question) is None)
            and self._has_choice(question, barred)
        )
        return OpenDecision(question=question, barred=barred, needs_forecast=needs_forecast)

    def _has_choice(self, question: RoutingRequest, barred: Mapping[str, Exclusion]) -> bool:
        tokens = request_tokens(question, None)
        unable = self._candidates.find_unable(question, tokens, barred=barred)
        holder = self._holders.holder(question, unable)
        if holder is not None:
            is_open = holder[1] == "tool_loop"
            return is_open and self._escalation.find_cause(question) is not None
        excluded = self._candidates.add_unwanted(question, None, unable)  # costs need a forecast
        return len(self._candidates.columns_left(excluded)) > 1

    def finish(
        self, open_decision: OpenDecision, forecast: Forecast | FallbackReason | None
    ) -> RoutingDecision:
        """Choose the target of a request.

        Args:
            open_decision: The request, as `begin` returned it.
            forecast: Its forecast, or why there is none; None where none is needed.

        Raises:
            RefusalError: No target may answer, or a budget is spent; it says what would help.
        """
        decision = self._choose_target(open_decision, forecast)
        question = open_decision.question
        if self._escalation.was_escalated(question):
            decision = replace(decision, is_escalated=True)
        if question.fallbacks and decision.reason not in ("stored", "tool_loop"):
            return self._restrict_to_fallbacks(decision, question)
        return decision

    def _restrict_to_fallbacks(
        self, decision: RoutingDecision, question: RoutingRequest
    ) -> RoutingDecision:
        """The decision with no target but the client's fallbacks after the chosen one."""
        unable = self._candidates.find_unable(question, decision.input_tokens)
        left = self._candidates.columns_left(self._candidates.add_unwanted(question, None, unable))
        able = {self._names[k] for k in left} - decision.excluded.keys()
        able |= set() if self._others is None else set(self._others.serving(question))
        most, costs = question.max_cost, decision.estimated_cost
        able -= {n for n in able if most is not None and costs.get(n, 0.0) > most}
        order = dict.fromkeys((decision.target, *(n for n in question.fallbacks if n in able)))
        others = {n: "not one of the fallbacks" for n in decision.order if n not in order}
        return replace(decision, order=tuple(order), excluded={**decision.excluded, **others})

    def _choose_target(
        self, open_decision: OpenDecision, forecast: Forecast | FallbackReason | None
    ) -> RoutingDecision:
        question = open_decision.question
        self._holders.check_owner(question)
        identity = decision_id(question.at)
        lam_asked = self._routing.lam if question.lam_asked is None else question.lam_asked
        allowance = self._budgets.adjust_lam(lam_asked, question.key, question.at)
        if allowance.note is not None and self._warn is not None:
            self._warn(allowance.note)
        fixed = None if self._others is None else self._others.find_fixed(question)
        if self._others is not None and fixed is not None:
            return self._others.choice(
                identity, question, allowance, lam_asked=lam_asked, fixed=fixed
            )
        estimate = request_estimate(
            question,
            forecast,
            costs=self.costs,
            targets=len(self._names),
            novelty=self._routing.novelty,
        )
        if question.named is not None:
            choice = self._choose_named(question, estimate)
            return self._make_decision(identity, question, estimate, choice, {})
        lams = (allowance.lam, lam_asked)
        unable = self._candidates.find_unable(
            question, estimate.tokens, barred=open_decision.barred
        )
        holder = self._holders.holder(question, unable)
        if holder is not None:
            target = self._candidates.target_of(holder[0])
            choice = self._choose_only(target, holder[1], estimate)
            decision = self._make_decision(identity, question, estimate, choice, unable, lams)
            if target != holder[0]:
                decision = replace(decision, deployment=holder[0])
        else:
            decision = self._choose_freely(identity, question, estimate, allowance, unable, lams)
        return self._escalate(decision, question, estimate, unable, allowance)

    def _choose_freely(
        self,
        identity: str,
        question: RoutingRequest,
        estimate: RequestEstimate,
        allowance: Allowance,
        unable: Mapping[str, Exclusion],
        lams: tuple[float, float],
    ) -> RoutingDecision:
        """The decision among all targets that may answer."""
        excluded = self._exclude_targets(question, estimate, unable)
        among = self._candidates.columns_left(excluded)
        if not self._has_router:
            estimate = replace(estimate, fallback="no_router")
        elif estimate.correctness is None and estimate.fallback is None and len(among) > 1:
            estimate = replace(estimate, fallback="no_text")  # the encoder read none
        waits, limited = None, list[int]()
        if not allowance.exhausted:
            waits = self._predict_waits(question, estimate)
            limited = self._find_without_headroom(estimate, among)
        choice = self._chooser.choose(
            question, estimate, allowance, among, decision=identity, waits=waits, limited=limited
        )
        if waits is not None and self._speeds is not None:
            self._speeds.note_choice(self._names[choice.order[0]])
        decision = self._make_decision(identity, question, estimate, choice, excluded, lams)
        if waits is None and not limited:
            return decision
        return replace(decision, waits=waits, limited=tuple(self._names[k] for k in limited))

    def _escalate(
        self,
        decision: RoutingDecision,
        question: RoutingRequest,
        estimate: RequestEstimate,
        unable: Mapping[str, Exclusion],
        allowance: Allowance,
    ) -> RoutingDecision:
        """The decision with a stronger target first, where the task doesn't get on."""
        cause, p = self._escalation.find_cause(question), estimate.trusted_correctness
        is_kept = decision.reason in ("turn", "tool_loop") and not allowance.exhausted
        if cause is None or p is None or not is_kept:
            return decision
        if not is_routed(self._traffic, session=question.session, decision=decision.id):
            return decision
        excluded = self._candidates.add_unwanted(
            question, self._cost_or_none(estimate.high_cost), unable
        )
        among = self._candidates.columns_left(
            self._candidates.add_broken(excluded, self._breaker_open)
        )
        order = self._chooser.find_stronger(estimate, allowance.lam, among, decision.target)
        if not order:
            return decision
        target = self._names[order[0]]
        escalation = Escalation(
            target=target, cause=cause[0], count=cause[1], is_made=self._escalation.changes_target
        )
        decision = replace(decision, escalation=escalation, is_escalated=True)
        if not escalation.is_made:
            return decision
        others = (name for name in decision.order if name != target)
        return replace(
            decision,
            order=(target, *others),
            reason="escalation",
            tool_loop=False,
            deployment=None,
            high_cost=float(estimate.high_cost[order[0]]) if self.costs.has_prices else None,
        )

    def _predict_waits(
        self, question: RoutingRequest, estimate: RequestEstimate
    ) -> PredictedWaits | None:
        settings = self._routing.latency
        if self._speeds is None or settings is None or estimate.trusted_correctness is None:
            return None
        written = self.costs.output_tokens(question, estimate.written)
        return self._speeds.predict(settings, self._names, written)

    def _find_without_headroom(self, estimate: RequestEstimate, among: Sequence[int]) -> list[int]:
        """The columns of the targets whose rate limits are used up; none if all are."""
        if self._limited is None:
            return []
        columns = [k for k in among if self._limited(self._names[k], estimate.tokens)]
        return [] if len(columns) == len(among) else columns

    def decide(
        self, question: RoutingRequest, forecast: Forecast | FallbackReason | None
    ) -> RoutingDecision:
        """`begin` and `finish` in one call."""
        return self.finish(self.begin(question), forecast)

    def reserve(self, choice: RoutingDecision, *, key: str | None) -> None:
        """Reserve the chosen target's high cost estimate until `record_outcome`.

        Args:
            choice: The decision.
            key: The name of the client's key; None where the gateway has no keys.
        """
        expected = choice.estimated_cost.get(choice.order[0], 0.0)
        dollars = expected if choice.high_cost is None else choice.high_cost
        self._budgets.reserve(choice.id, key, dollars)

    def record_outcome(
        self,
        choice: RoutingDecision,
        outcome: RequestOutcome,
        *,
        cost: float | None,
        at: float,
        stored: bool = True,
        moves: bool = True,
    ) -> None:
        """Remember the outcome of a request, and count its cost.

        Args:
            choice: The decision.
            outcome: The outcome.
            cost: Its cost in US dollars; None where unknown.
            at: When it ended, in seconds since 1970.
            stored: Whether the target stores the answer, so that later requests can continue it.
            moves: Whether the conversation goes on at the target that answered.
        """
        key = self._budgets.release(choice.id)
        if cost:
            self._budgets.spend(key, cost, at)
        # after a dry run the client is expected to call the chosen target
        target = choice.target if outcome.kind == "routed" else outcome.target
        if target is None or outcome.kind not in ("answered", "disconnected", "routed"):
            return
        usage = outcome.usage
        counts = () if usage is None else (usage.input_tokens, usage.output_tokens)
        last = self._sessions.last_state(choice.session)
        is_aside = not moves and last is not None and last.target != target
        self._sessions.record_answer(
            None if is_aside else choice.session,
            target=target,
            tokens=sum(n for n in counts if n is not None) or choice.input_tokens,
            at=at,
            tool_calls=outcome.tool_calls,
            response_id=outcome.response_id if stored else None,
            key=key,
            deployment=outcome.deployment,
            is_escalated=choice.is_escalated,
        )

    def _cost_or_none(self, cost: PerTarget) -> PerTarget | None:
        return cost if self.costs.has_prices else None

    def _choose_named(self, question: RoutingRequest, estimate: RequestEstimate) -> TargetChoice:
        name = question.named or ""
        if name not in self._names:
            others = () if self._others is None else self._others.names
            raise unknown_target(name, (*self._names, *others))
        why = self._candidates.why_unusable(question, self._cost_or_none(estimate.cost), name)
        if why is not None:
            raise named_cannot(question, name, why)
        return self._choose_only(name, "named", estimate)

    def _choose_only(self, name: str, reason: Reason, estimate: RequestEstimate) -> TargetChoice:
        return TargetChoice([self._names.index(name)], reason, None, estimate.cost)

    def _exclude_targets(
        self, question: RoutingRequest, estimate: RequestEstimate, unable: Mapping[str, Exclusion]
    ) -> dict[str, Exclusion]:
        excluded = self._candidates.add_unwanted(
            question, self._cost_or_none(estimate.high_cost), unable
        )
        left = self._candidates.columns_left(excluded)
        if question.endpoint == "embeddings":
            others = [] if self._others is None else self._others.serving(question)
            serving = [*(self._names[k] for k in left), *others]
            if others or len(left) > 1:
                raise several_embeddings(serving)
        if not left:
            raise no_eligible_target(question, excluded)
        return self._candidates.add_broken(excluded, self._breaker_open)

    def _make_decision(
        self,
        identity: str,
        question: RoutingRequest,
        estimate: RequestEstimate,
        choice: TargetChoice,
        excluded: Mapping[str, Exclusion],
        lams: tuple[float | None, float | None] = (None, None),
    ) -> RoutingDecision:
        p, first = estimate.correctness, choice.order[0]
        high = choice.cost[first] + estimate.high_cost[first] - estimate.cost[first]
        savings = {} if choice.cost is estimate.cost else self._by_name(estimate.cost - choice.cost)
        order = tuple(self._names[k] for k in choice.order)
        return RoutingDecision(
            id=identity,
            order=order,
            reason=choice.reason,
            fallback=estimate.fallback,
            lam=lams[0],
            lam_asked=lams[1],
            correctness={} if p is None else self._by_name(p),
            estimated_cost=self._by_name(choice.cost) if self.costs.has_prices else {},
            excluded={n: why.words for n, why in excluded.items() if n not in order},
            policy_target=None if choice.winner is None else self._names[choice.winner],
            novelty=estimate.novelty,
            input_tokens=estimate.tokens,
            session=question.session,
            tool_loop=question.in_tool_loop and len(choice.order) == 1,
            opening=question.opening,
            cached={name: dollars for name, dollars in savings.items() if dollars},
            high_cost=float(high) if self.costs.has_prices else None,
        )

    def _by_name(self, values: PerTarget) -> dict[str, float]:
        return dict(zip(self._names, values.tolist(), strict=True))


def _check(router: RouterParts, settings: GatewaySettings) -> None:
    refuse_cascade(router.policy)
    names = router.pool.names
    if router.costs.pool.names != names:
        raise ConfigError(f"the router prices {router.costs.pool.names}; the pool has {names}")
    check_fallback(settings.routing.fallback, names)
    otherwise = settings.traffic.otherwise
    if otherwise is not None and otherwise not in names:
        raise ConfigError(f"traffic.otherwise is {otherwise!r}; the pool has {list(names)}")
