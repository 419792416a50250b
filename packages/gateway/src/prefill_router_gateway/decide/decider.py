"""The decision about one request.

The target is, in this order: the one that the client named; the one that keeps the response that
the request continues; in a tool loop, the one that called the tools; outside the routed share, the
one in the settings; the conversation's current one, unless a switch pays; otherwise the policy's
choice, or the fallback's. A task that doesn't get on may leave its tool loop's or conversation's
target once, for a stronger one.

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
from prefill_router_gateway.decide.selection import (
    Allowance,
    Budgets,
    TargetChoice,
    TargetChooser,
    check_fallback,
)
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
        cannot = self._candidates.cannot(question, 0)
        unwanted = self._candidates.unwanted(question, None, cannot)
        return [name for name in self.names if name not in unwanted]

    def settled(self, question: RoutingRequest) -> tuple[str, Reason] | None:
        """The one of them that must answer, or its endpoint, and why; None where none must."""
        name: str | None
        reason: Reason
        if question.named is not None:
            name, reason = question.named, "named"
        elif question.previous_response_id is not None:
            response = question.previous_response_id
            name, reason = self._sessions.keeper(response, key=question.key), "stored"
        elif question.in_tool_loop:
            cannot = self._candidates.cannot(question, 0)
            name, reason = self._affinity.caller(question, cannot), "tool_loop"
        elif question.allow and question.allow <= self._targets.keys():
            name, reason = next(n for n in self.names if n in question.allow), "named"
        else:
            return None
        known = name is not None and self._candidates.target_of(name) in self._targets
        return (name, reason) if known and name is not None else None

    def choice(
        self,
        decision: str,
        question: RoutingRequest,
        allowance: Allowance,
        *,
        asked: float,
        settled: tuple[str, Reason],
    ) -> RoutingDecision:
        """The decision for the target that must answer.

        Args:
            decision: The decision's id.
            question: The request.
            allowance: The trade-off after budgets.
            asked: The trade-off before budgets.
            settled: The target that must answer, and why.

        Raises:
            RefusalError: It doesn't serve this endpoint, is too expensive, or isn't allowed for
                the key.
        """
        deployment, reason = settled
        name = self._candidates.target_of(deployment)
        tokens = request_tokens(question, None)
        cost = self._cost(name, question, tokens)
        costs = None if cost is None else np.full(len(self.names), cost)
        why = self._candidates.unusable(question, costs, name)
        if why is not None:
            by_name = named_cannot(question, name, why)
            raise response_lost(name, why.words) if reason == "stored" else by_name
        is_named = reason == "named"
        return RoutingDecision(
            id=decision,
            order=(name,),
            reason=reason,
            lam=None if is_named else allowance.lam,
            lam_asked=None if is_named else asked,
            estimated_cost={} if cost is None else {name: cost},
            input_tokens=tokens,
            session=question.session,
            tool_loop=question.in_tool_loop,
            deployment=None if name == deployment else deployment,
        )

    def _cost(self, name: str, question: RoutingRequest, tokens: int) -> float | None:
        """The expected cost in US dollars; None where the target's prices are unknown.

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
        barred = {} if question.named else self._candidates.barred(question)
        needs_forecast = (
            self._has_router
            and not question.named
            and not question.previous_response_id
            and question.endpoint != "embeddings"
            and (self._others is None or self._others.settled(question) is None)
            and self._has_choice(question, barred)
        )
        return OpenDecision(question=question, barred=barred, needs_forecast=needs_forecast)

    def _has_choice(self, question: RoutingRequest, barred: Mapping[str, Exclusion]) -> bool:
        tokens = request_tokens(question, None)
        cannot = self._candidates.cannot(question, tokens, barred=barred)
        holder = self._holders.holder(question, cannot)
        if holder is not None:
            is_open = holder[1] == "tool_loop"
            return is_open and self._escalation.find_cause(question) is not None
        wanted = self._candidates.unwanted(question, None, cannot)  # costs need a forecast
        return len(self._candidates.left(wanted)) > 1

    def finish(
        self, begun: OpenDecision, forecast: Forecast | FallbackReason | None
    ) -> RoutingDecision:
        """Choose the target of a request.

        Args:
            begun: The request, as `begin` returned it.
            forecast: Its forecast, or why there is none; None where none is needed.

        Raises:
            RefusalError: No target may answer, or a budget is spent; it says what would help.
        """
        made = self._decided(begun, forecast)
        if self._escalation.was_escalated(begun.question):
            made = replace(made, is_escalated=True)
        is_open = begun.question.fallbacks and made.reason not in ("stored", "tool_loop")
        return self._with_fallbacks(made, begun.question) if is_open else made

    def _with_fallbacks(self, made: RoutingDecision, question: RoutingRequest) -> RoutingDecision:
        """The decision with no target but the client's fallbacks after the chosen one."""
        cannot = self._candidates.cannot(question, made.input_tokens)
        left = self._candidates.left(self._candidates.unwanted(question, None, cannot))
        able = {self._names[k] for k in left} - made.excluded.keys()
        able |= set() if self._others is None else set(self._others.serving(question))
        most, costs = question.max_cost, made.estimated_cost
        able -= {n for n in able if most is not None and costs.get(n, 0.0) > most}
        order = dict.fromkeys((made.target, *(n for n in question.fallbacks if n in able)))
        others = {n: "not one of the fallbacks" for n in made.order if n not in order}
        return replace(made, order=tuple(order), excluded={**made.excluded, **others})

    def _decided(
        self, begun: OpenDecision, forecast: Forecast | FallbackReason | None
    ) -> RoutingDecision:
        question = begun.question
        self._holders.check_owner(question)
        decision = decision_id(question.at)
        asked = self._routing.lam if question.lam_asked is None else question.lam_asked
        allowance = self._budgets.lam(asked, question.key, question.at)
        if allowance.note is not None and self._warn is not None:
            self._warn(allowance.note)
        settled = None if self._others is None else self._others.settled(question)
        if self._others is not None and settled is not None:
            return self._others.choice(decision, question, allowance, asked=asked, settled=settled)
        known = request_estimate(
            question,
            forecast,
            costs=self.costs,
            targets=len(self._names),
            novelty=self._routing.novelty,
        )
        if question.named is not None:
            chosen = self._named(question, known)
            return self._choice(decision, question, known, chosen, {})
        lams = (allowance.lam, asked)
        cannot = self._candidates.cannot(question, known.tokens, barred=begun.barred)
        holder = self._holders.holder(question, cannot)
        if holder is not None:
            target = self._candidates.target_of(holder[0])
            chosen = self._alone(target, holder[1], known)
            made = self._choice(decision, question, known, chosen, cannot, lams)
            made = made if target == holder[0] else replace(made, deployment=holder[0])
            return self._escalated(made, question, known, cannot, allowance)
        excluded = self._excluded(question, known, cannot)
        among = self._candidates.left(excluded)
        if not self._has_router:
            known = replace(known, fallback="no_router")
        elif forecast is None and len(among) > 1:
            known = replace(known, fallback="no_text")  # the encoder read none
        if allowance.exhausted or (self._speeds is None and self._limited is None):
            chosen = self._chooser.choose(question, known, allowance, among, decision=decision)
            made = self._choice(decision, question, known, chosen, excluded, lams)
            return self._escalated(made, question, known, cannot, allowance)
        waits, limited = self._waits(question, known), self._without_headroom(known, among)
        chosen = self._chooser.choose(
            question, known, allowance, among, decision=decision, waits=waits, limited=limited
        )
        if waits is not None and self._speeds is not None:
            self._speeds.chosen(self._names[chosen.order[0]])
        made = self._choice(decision, question, known, chosen, excluded, lams)
        made = replace(made, waits=waits, limited=tuple(self._names[k] for k in limited))
        return self._escalated(made, question, known, cannot, allowance)

    def _escalated(
        self,
        made: RoutingDecision,
        question: RoutingRequest,
        known: RequestEstimate,
        cannot: Mapping[str, Exclusion],
        allowance: Allowance,
    ) -> RoutingDecision:
        """The decision with a stronger target first, where the task doesn't get on."""
        cause, p = self._escalation.find_cause(question), known.trusted
        is_kept = made.reason in ("turn", "tool_loop") and not allowance.exhausted
        if cause is None or p is None or not is_kept:
            return made
        if not is_routed(self._traffic, session=question.session, decision=made.id):
            return made
        wanted = self._candidates.unwanted(question, self._priced(known.high_cost), cannot)
        among = self._candidates.left(self._candidates.broken(wanted, self._breaker_open))
        order = self._chooser.stronger(known, allowance.lam, among, made.target)
        if not order:
            return made
        target = self._names[order[0]]
        found = Escalation(
            target=target, cause=cause[0], count=cause[1], is_made=self._escalation.changes_target
        )
        made = replace(made, escalation=found, is_escalated=True)
        if not found.is_made:
            return made
        others = (name for name in made.order if name != target)
        return replace(
            made,
            order=(target, *others),
            reason="escalation",
            tool_loop=False,
            deployment=None,
            high_cost=float(known.high_cost[order[0]]) if self.costs.known else None,
        )

    def _waits(self, question: RoutingRequest, known: RequestEstimate) -> PredictedWaits | None:
        settings = self._routing.latency
        if self._speeds is None or settings is None or known.trusted is None:
            return None
        written = self.costs.written(question, known.written)
        return self._speeds.predict(settings, self._names, written)

    def _without_headroom(self, known: RequestEstimate, among: Sequence[int]) -> list[int]:
        """The columns of the targets without headroom; none if all are."""
        if self._limited is None:
            return []
        found = [k for k in among if self._limited(self._names[k], known.tokens)]
        return [] if len(found) == len(among) else found

    def decide(
        self, question: RoutingRequest, forecast: Forecast | FallbackReason | None
    ) -> RoutingDecision:
        """`begin` and `finish` in one call."""
        return self.finish(self.begin(question), forecast)

    def started(self, choice: RoutingDecision, *, key: str | None) -> None:
        """Reserve the chosen target's high cost estimate until `answered`.

        Args:
            choice: The decision.
            key: The name of the client's key; None where the gateway has no keys.
        """
        expected = choice.estimated_cost.get(choice.order[0], 0.0)
        dollars = expected if choice.high_cost is None else choice.high_cost
        self._budgets.reserve(choice.id, key, dollars)

    def answered(
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
        self._sessions.answered(
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

    def _priced(self, cost: PerTarget) -> PerTarget | None:
        return cost if self.costs.known else None

    def _named(self, question: RoutingRequest, known: RequestEstimate) -> TargetChoice:
        name = question.named or ""
        if name not in self._names:
            others = () if self._others is None else self._others.names
            raise unknown_target(name, (*self._names, *others))
        why = self._candidates.unusable(question, self._priced(known.cost), name)
        if why is not None:
            raise named_cannot(question, name, why)
        return self._alone(name, "named", known)

    def _alone(self, name: str, reason: Reason, known: RequestEstimate) -> TargetChoice:
        return TargetChoice([self._names.index(name)], reason, None, known.cost)

    def _excluded(
        self, question: RoutingRequest, known: RequestEstimate, cannot: Mapping[str, Exclusion]
    ) -> dict[str, Exclusion]:
        wanted = self._candidates.unwanted(question, self._priced(known.high_cost), cannot)
        left = self._candidates.left(wanted)
        if question.endpoint == "embeddings":
            others = [] if self._others is None else self._others.serving(question)
            serving = [*(self._names[k] for k in left), *others]
            if others or len(left) > 1:
                raise several_embeddings(serving)
        if not left:
            raise no_eligible_target(question, wanted)
        return self._candidates.broken(wanted, self._breaker_open)

    def _choice(
        self,
        decision: str,
        question: RoutingRequest,
        known: RequestEstimate,
        chosen: TargetChoice,
        excluded: Mapping[str, Exclusion],
        lams: tuple[float | None, float | None] = (None, None),
    ) -> RoutingDecision:
        p, first = known.correctness, chosen.order[0]
        high = chosen.cost[first] + known.high_cost[first] - known.cost[first]
        less = {} if chosen.cost is known.cost else self._by_name(known.cost - chosen.cost)
        order = tuple(self._names[k] for k in chosen.order)
        return RoutingDecision(
            id=decision,
            order=order,
            reason=chosen.reason,
            fallback=known.fallback,
            lam=lams[0],
            lam_asked=lams[1],
            correctness={} if p is None else self._by_name(p),
            estimated_cost=self._by_name(chosen.cost) if self.costs.known else {},
            excluded={n: why.words for n, why in excluded.items() if n not in order},
            policy_target=None if chosen.winner is None else self._names[chosen.winner],
            novelty=known.novelty,
            input_tokens=known.tokens,
            session=question.session,
            tool_loop=question.in_tool_loop and len(chosen.order) == 1,
            opening=question.opening,
            cached={name: dollars for name, dollars in less.items() if dollars},
            high_cost=float(high) if self.costs.known else None,
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
