"""The decision about one request.

In this order: the target that the client named; the one that keeps the response it goes on from; in
a tool loop the one that called the tools; outside the routed share the one that is set; the one
that holds the conversation, unless a switch pays; and else the policy's winner, or the fallback's.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Protocol, final, runtime_checkable

from prefill_router.cost import CostEstimator
from prefill_router.errors import ConfigError
from prefill_router.gateway.decide.affinity import Affinity, Sessions
from prefill_router.gateway.decide.budgets import Allowance, Budgets
from prefill_router.gateway.decide.eligibility import (
    Candidates,
    Exclusion,
    named_cannot,
    no_eligible_target,
    several_embeddings,
    unknown_target,
)
from prefill_router.gateway.decide.routing_request import (
    PerTarget,
    RequestCosts,
    RequestEstimate,
    RoutingRequest,
    request_estimate,
    request_tokens,
)
from prefill_router.gateway.decide.selection import (
    TargetChoice,
    TargetChooser,
    check_fallback,
    decision_id,
)
from prefill_router.gateway.decide.unrouted_targets import UnroutedTargets
from prefill_router.gateway.records import RequestOutcome, RoutingDecision
from prefill_router.gateway.settings import GatewaySettings
from prefill_router.gateway.types import FallbackReason, Reason
from prefill_router.policy import Policy
from prefill_router.router import Forecast
from prefill_router.router.decision import refuse_cascade
from prefill_router.targets import Pool


@runtime_checkable
class RouterParts(Protocol):
    """What deciding needs of a router, such as a `router.light.LightRouter`."""

    @property
    def pool(self) -> Pool:
        """The targets and their prices."""

    @property
    def costs(self) -> CostEstimator:
        """Equation 1."""

    @property
    def policy(self) -> Policy:
        """Who answers, given probabilities and costs."""

    @property
    def reference_accuracy(self) -> PerTarget | None:
        """Every target's share of correct answers on the train rows; None where unknown."""


@final
class Decider:
    """Decides about requests, by one router and one set of settings.

    After a reload there is a new one; what was remembered and spent is handed on to it.

    Args:
        router: What was fitted.
        settings: The gateway's.
        sessions: What is remembered of conversations.
        budgets: What was spent.
        breaker_open: Whether a target failed too often just now.
        pool: All that can be asked, of which the router may not know all: the others answer where
            they are named. None for the router's targets.
        told: Gets what the log is to say of budgets.

    Raises:
        ConfigError: The policy decides by answers, or the settings name no target of the pool.
    """

    def __init__(
        self,
        router: RouterParts,
        settings: GatewaySettings,
        *,
        sessions: Sessions,
        budgets: Budgets,
        breaker_open: Callable[[str], bool],
        pool: Pool | None = None,
        told: Callable[[str], None] | None = None,
    ) -> None:
        self._names = router.pool.names
        _check(router, settings)
        self._routing = settings.routing
        self._costs = RequestCosts(router.costs)
        self._candidates = Candidates(router.pool)
        self._others = UnroutedTargets(router.pool if pool is None else pool, self._names, sessions)
        self._holders = Affinity(self._names, self._candidates, sessions)
        self._chooser = TargetChooser(
            self._names,
            router.policy,
            self._costs,
            router.reference_accuracy,
            settings=settings,
            sessions=sessions,
        )
        self._sessions = sessions
        self._budgets = budgets
        self._breaker_open = breaker_open
        self._told = told

    def needs_forecast(self, question: RoutingRequest) -> bool:
        """Whether a forecast would matter: not where a name, a tool loop or a rule settles it."""
        if question.named or question.previous_response_id or question.endpoint == "embeddings":
            return False
        if self._others.settles(question):
            return False
        cannot = self._candidates.cannot(question, request_tokens(question, None))
        if self._holders.holder(question, cannot) is not None:
            return False
        wanted = self._candidates.unwanted(question, None, cannot)  # a forecast tells costs too
        return len(self._candidates.left(wanted)) > 1

    def decide(
        self, question: RoutingRequest, forecast: Forecast | FallbackReason | None
    ) -> RoutingDecision:
        """Choose the target for one request.

        Args:
            question: The request.
            forecast: What the router expects of it; why there is no forecast; or None where
                `needs_forecast` says that none is needed.

        Raises:
            RefusalError: No target may answer, or a budget is spent; it says what would do.
        """
        self._holders.check_owner(question)
        decision = decision_id(question.at)
        allowance = self._allowance(question)
        other = self._others.choice(decision, question, allowance, asked=self._asked(question))
        if other is not None:
            return other
        known = self._known(question, forecast)
        if question.named is not None:
            return self._choice(decision, question, known, self._named(question, known), None, {})
        cannot = self._candidates.cannot(question, known.tokens)
        holder = self._holders.holder(question, cannot)
        if holder is not None:
            chosen = self._alone(*holder, known)
            return self._choice(decision, question, known, chosen, allowance, cannot)
        excluded = self._excluded(question, known, cannot)
        among = self._candidates.left(excluded)
        if forecast is None and len(among) > 1:
            known = replace(known, fallback="no_text")  # nobody read any
        chosen = self._chooser.choose(question, known, allowance, among, decision=decision)
        return self._choice(decision, question, known, chosen, allowance, excluded)

    def started(self, choice: RoutingDecision, *, key: str | None) -> None:
        """Set aside what the chosen target hardly costs more than, until `answered`.

        Args:
            choice: What was decided.
            key: The name of the client's key; None where none is asked for.
        """
        expected = choice.estimated_cost.get(choice.target, 0.0)
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
    ) -> None:
        """Remember how a request ended, and count its cost.

        Args:
            choice: What was decided.
            outcome: How it ended.
            cost: What it cost, US dollars; None where unknown.
            at: When it ended, seconds since 1970.
            stored: Whether its target keeps answers of this call, for others to go on from.
        """
        key = self._budgets.release(choice.id)
        if cost:
            self._budgets.spend(key, cost, at)
        # who asks for the decision alone then asks the target that it tells
        target = choice.target if outcome.kind == "routed" else outcome.target
        if target is None or outcome.kind not in ("answered", "disconnected", "routed"):
            return
        usage = outcome.usage
        counts = () if usage is None else (usage.input_tokens, usage.output_tokens)
        self._sessions.answered(
            choice.session,
            target=target,
            tokens=sum(n for n in counts if n is not None) or choice.input_tokens,
            at=at,
            tool_calls=outcome.tool_calls,
            response_id=outcome.response_id if stored else None,
            key=key,
        )

    def _known(
        self, question: RoutingRequest, forecast: Forecast | FallbackReason | None
    ) -> RequestEstimate:
        return request_estimate(
            question,
            forecast,
            costs=self._costs,
            targets=len(self._names),
            novelty=self._routing.novelty,
        )

    def _priced(self, cost: PerTarget) -> PerTarget | None:
        return cost if self._costs.known else None

    def _asked(self, question: RoutingRequest) -> float:
        return self._routing.lam if question.lam_asked is None else question.lam_asked

    def _allowance(self, question: RoutingRequest) -> Allowance:
        allowance = self._budgets.lam(self._asked(question), question.key, question.at)
        if allowance.note is not None and self._told is not None:
            self._told(allowance.note)
        return allowance

    def _named(self, question: RoutingRequest, known: RequestEstimate) -> TargetChoice:
        name = question.named or ""
        if name not in self._names:
            raise unknown_target(name, (*self._names, *self._others.names))
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
            serving = [*(self._names[k] for k in left), *self._others.serving(question)]
            if len(serving) > len(left) or len(left) > 1:
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
        allowance: Allowance | None,
        excluded: Mapping[str, Exclusion],
    ) -> RoutingDecision:
        p = known.correctness
        order = tuple(self._names[k] for k in chosen.order)
        return RoutingDecision(
            id=decision,
            order=order,
            reason=chosen.reason,
            fallback=known.fallback,
            lam=None if allowance is None else allowance.lam,
            lam_asked=None if allowance is None else self._asked(question),
            correctness={} if p is None else self._by_name(p),
            estimated_cost=self._by_name(chosen.cost) if self._costs.known else {},
            excluded={n: why.words for n, why in excluded.items() if n not in order},
            policy_target=None if chosen.winner is None else self._names[chosen.winner],
            novelty=known.novelty,
            input_tokens=known.tokens,
            session=question.session,
            tool_loop=question.in_tool_loop and len(chosen.order) == 1,
            opening=question.opening,
            cached={} if chosen.cost is known.cost else self._cached(known, chosen),
            high_cost=self._high_cost(known, chosen) if self._costs.known else None,
        )

    def _high_cost(self, known: RequestEstimate, chosen: TargetChoice) -> float:
        first = chosen.order[0]
        return float(chosen.cost[first] + known.high_cost[first] - known.cost[first])

    def _cached(self, known: RequestEstimate, chosen: TargetChoice) -> dict[str, float]:
        less = self._by_name(known.cost - chosen.cost)
        return {name: dollars for name, dollars in less.items() if dollars}

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
