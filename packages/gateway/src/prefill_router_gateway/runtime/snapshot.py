"""The snapshot that a request uses from beginning to end; a reload replaces the whole of it."""

import asyncio
import json
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, final

from prefill_router.endpoints import identity_parameters, reasoning_fields
from prefill_router.targets import TRAITS, Dialect, Pool, Target
from prefill_router_gateway.decide import Decider, RequestCosts, ResponseOwners
from prefill_router_gateway.errors import RefusalError
from prefill_router_gateway.forecast import Forecaster, NoForecaster
from prefill_router_gateway.protocol import (
    TRANSLATED,
    EffortRule,
    HeaderFilter,
    ThinkingRule,
    asks_to_think,
)
from prefill_router_gateway.proxy import BodyRules, Forwarder
from prefill_router_gateway.receipts import (
    AffinityRule,
    affinity_rule_details,
    scale_details,
    version_details,
)
from prefill_router_gateway.records import Header, RoutingRequest
from prefill_router_gateway.runtime.configuration import LoadedGateway
from prefill_router_gateway.runtime.versions import in_share
from prefill_router_gateway.settings import SessionSettings
from prefill_router_gateway.telemetry import Trace, Traces


def receipt_details(loaded: LoadedGateway) -> dict[str, Any]:
    """The details of every receipt: the cost scale, the policy and the version."""
    light = loaded.light
    return {
        **scale_details(light.costs.scale, light.policy),
        **version_details(loaded.version, loaded.share, loaded.step),
    }


def affinity_rule(
    costs: RequestCosts,
    question: RoutingRequest,
    sessions: SessionSettings,
    names: tuple[str, ...],
) -> AffinityRule:
    """The settings by which the conversation of a request keeps its target.

    Args:
        costs: The costs of requests.
        question: The request.
        sessions: The settings of conversations.
        names: The router's targets.
    """
    cache = costs.cache(question)
    return AffinityRule(
        seconds=sessions.seconds,
        margin=sessions.margin,
        ratio=dict(zip(names, costs.ratio.tolist(), strict=True)),
        saved=dict(zip(names, cache.saved.tolist(), strict=True)),
        cache_seconds=dict(zip(names, cache.seconds.tolist(), strict=True)),
    )


def body_rules(loaded: LoadedGateway) -> BodyRules:
    """How bodies differ between the targets of a pool and their deployments."""
    deployed, pool = loaded.pool.deployment_pool, loaded.pool
    dialects = {name: deployed.provider_of(name).dialect for name in deployed.names}
    fields = {t.name: identity_parameters(t, dialects[t.name]) for t in deployed}
    efforts = {t.name: _effort_rule(t, dialects[t.name]) for t in deployed if t.effort is not None}
    further = {
        target: {
            name: json.dumps(value).encode()
            for name, value in own.items()
            if target not in efforts or name not in efforts[target].fields["chat"]
        }
        for target, own in fields.items()
    }
    thinking = {
        target.name
        for target in deployed
        if target.reasoning_price is not None or asks_to_think(fields[target.name])
    }
    chat_only = {
        endpoint: {
            name: TRAITS[some.provider_of(name).dialect].max_tokens
            for some in (deployed, pool)
            for name in some.names
            if endpoint not in pool.serves(pool.target_of.get(name, name))
        }
        for endpoint in TRANSLATED
    }
    return BodyRules(
        models={target.name: target.model or target.name for target in (*pool, *deployed)},
        further=further,
        efforts=efforts,
        chat_only=chat_only,
        ask_usage=loaded.settings.streams.usage == "ask",
        thinking=thinking,
        volatile=loaded.settings.agents.harnesses.volatile,
        hinted={
            t.name: ThinkingRule(target=t, dialect=dialects[t.name]) for t in _hinted(deployed)
        },
    )


def _hinted(pool: Pool) -> Iterator[Target]:
    """The targets that are told what a client says of thinking; an effort of their own is kept."""
    for target in pool:
        has_own = target.effort is not None or target.request.has_reasoning
        if "thinking" in target.accepts and not has_own:
            yield target


def _effort_rule(target: Target, dialect: Dialect) -> EffortRule:
    """How the effort of a target is said in each endpoint that can say it."""
    traits, chat = TRAITS[dialect], identity_parameters(target, dialect)
    fields = {name: reasoning_fields(target, dialect, name) for name in traits.efforts_in}
    fields["chat"] = {name: chat[name] for name in fields["chat"]}  # with those of extra_body
    refused = () if target.effort == "none" else traits.refused_by_thinking
    return EffortRule(fields=fields, refused=refused)


@final
class Snapshot:
    """A router, a pool and settings, and the parts made from them.

    Attributes:
        loaded: The router, pool, settings and keys as loaded.
        forecaster: Makes forecasts, with the encoder's process.
        forwarder: Forwards calls to the targets.
        decider: Chooses targets.
        keepers: Finds the targets that keep stored responses.
        baseline: The target that costs are compared with; None where none is known.
        candidate: Decides on a share of the conversations; None where this one decides on all.
        settings: The settings.
        targets: All targets and their deployments, by name.
        policy: The kind of the router's policy.
        passing: Selects the headers that are forwarded to targets.
        bodies: How bodies differ between targets.
        details: The details of every receipt: the cost scale, the policy and the version.
    """

    def __init__(
        self,
        loaded: LoadedGateway,
        *,
        forecaster: Forecaster | NoForecaster,
        forwarder: Forwarder,
        decider: Decider,
        keepers: ResponseOwners,
        baseline: str | None = None,
        candidate: "Snapshot | None" = None,
    ) -> None:
        self.baseline = baseline
        self.loaded, self.forecaster, self.forwarder = loaded, forecaster, forwarder
        self.decider, self.keepers = decider, keepers
        self.candidate = candidate
        self.settings = loaded.settings
        deployed = loaded.pool.deployment_pool
        self.targets = {target.name: target for target in (*loaded.pool, *deployed)}
        self.policy = loaded.light.policy.kind
        self.passing = HeaderFilter(loaded.settings.forward_headers)
        self.details = receipt_details(loaded)
        self.bodies = body_rules(loaded)
        self._users = 0
        self._unused = asyncio.Event()
        self._unused.set()

    def session_details(self, question: RoutingRequest) -> dict[str, Any]:
        """The details of the receipt of a request with a session: also the session settings."""
        sessions, names = self.settings.sessions, self.loaded.light.pool.names
        rule = affinity_rule(self.decider.costs, question, sessions, names)
        return {**self.details, **affinity_rule_details(rule)}

    @property
    def each(self) -> "tuple[Snapshot, ...]":
        """This one and the candidate's."""
        return (self,) if self.candidate is None else (self, self.candidate)

    def deciding(self, question: RoutingRequest) -> "Snapshot":
        """The one that decides about a request: the candidate's, for its share of conversations.

        A version's share has the same conversations in every process and after every restart, and
        keeps them as it grows.
        """
        other = self.candidate
        if other is None or question.named or other.loaded.share is None:
            return self
        version = other.loaded.version or ""
        return other if in_share(question, version, other.loaded.share) else self

    @contextmanager
    def scope(
        self, traces: Traces | None, headers: Sequence[Header], *, at: float
    ) -> Iterator[Trace | None]:
        """Keep this snapshot open for one request, whatever is reloaded; yields its span, if any.

        A refusal ends the span; otherwise the caller must end it.

        Args:
            traces: Makes and sends spans; None for none.
            headers: The request's headers.
            at: When it arrived, in seconds since 1970.
        """
        trace = None if traces is None else traces.begin(headers, at=at)
        self._users += 1
        self._unused.clear()
        try:
            yield trace
        except RefusalError as refusal:
            if trace is not None:
                trace.end_refused(refusal.status, at=time.time())
            raise
        finally:
            self._users -= 1
            if not self._users:
                self._unused.set()

    def headers_on(self, headers: Sequence[Header], trace: Trace | None) -> list[Header]:
        """The client's headers that are forwarded, with the trace context of the request's span."""
        passed = self.passing.to_target(headers)
        if trace is None:
            return passed
        carried = trace.headers()
        names = {name for name, _ in carried}
        return [header for header in passed if header[0] not in names] + carried

    async def close(self, *, keep: "Snapshot | None" = None, seconds: float | None = None) -> None:
        """Wait until no request uses it, and close its parts.

        Args:
            keep: The next snapshot, whose forecasters aren't closed.
            seconds: The longest wait; None for no limit.
        """
        try:
            async with asyncio.timeout(seconds):
                await self._unused.wait()
        except TimeoutError:
            pass
        await self.forwarder.close()
        forecasters = () if keep is None else [snapshot.forecaster for snapshot in keep.each]
        for snapshot in self.each:
            if snapshot.forecaster not in forecasters:
                await snapshot.forecaster.close()
