"""One request's scope: the snapshot that it uses from beginning to end, and its record.

A reload replaces the whole `Snapshot`; requests that began with one end with it. `RequestRecord`
makes the receipt when a request ends, and hands it to a `RequestRecorder`: metrics, log and traces
are recorded from the receipt.
"""

import asyncio
import json
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol, final, runtime_checkable
from urllib.parse import quote

from prefill_router.data import Prompt
from prefill_router.endpoints import cost_of, identity_parameters, reported_cost
from prefill_router.targets import TRAITS, Endpoint
from prefill_router_gateway.decide import (
    Decider,
    RequestCosts,
    ResponseOwners,
    Sessions,
    TargetSpeeds,
)
from prefill_router_gateway.errors import RefusalError
from prefill_router_gateway.forecast import Forecaster, NoForecaster
from prefill_router_gateway.guard import Leave
from prefill_router_gateway.protocol import Envelope, HeaderFilter, Splicer
from prefill_router_gateway.proxy import Forwarder
from prefill_router_gateway.receipts import (
    AffinityRule,
    ReceiptWriter,
    RecentRequests,
    SampleDraft,
    affinity_rule_details,
    scale_details,
    version_details,
)
from prefill_router_gateway.records import (
    HEADER,
    AnswerText,
    Header,
    Receipt,
    RequestOutcome,
    RoutingDecision,
    RoutingRequest,
    Scored,
    TargetAttempt,
)
from prefill_router_gateway.runtime.configuration import LoadedGateway
from prefill_router_gateway.runtime.versions import in_share
from prefill_router_gateway.shared import SharedState
from prefill_router_gateway.telemetry import Metrics, Trace, Traces, log_request


@runtime_checkable
class RequestRecorder(Protocol):
    """The parts of a gateway that record the end of a request and survive reloads.

    Attributes:
        metrics: The metrics for Prometheus.
        recent: The requests that ended most recently.
        sessions: What is remembered of conversations.
        speeds: How long the targets take.
        writer: Writes receipts.
        shared: What is shared with other replicas; None for a gateway by itself.
    """

    metrics: Metrics
    recent: RecentRequests
    sessions: Sessions
    speeds: TargetSpeeds
    writer: ReceiptWriter
    shared: SharedState | None


def receipt_details(loaded: LoadedGateway) -> tuple[dict[str, Any], dict[str, Any]]:
    """The details of every receipt, and of receipts with a session.

    They are the cost scale, the policy and the version; and also the session settings.
    """
    light = loaded.light
    details = {
        **scale_details(light.costs.scale, light.policy),
        **version_details(loaded.version, loaded.share, loaded.step),
    }
    return details, {**details, **affinity_rule_details(_keeping(loaded))}


def _keeping(loaded: LoadedGateway) -> AffinityRule:
    costs, sessions = RequestCosts(loaded.light.costs), loaded.settings.sessions
    names = loaded.light.pool.names
    return AffinityRule(
        seconds=sessions.seconds,
        cache_seconds=sessions.cache_seconds,
        margin=sessions.margin,
        ratio=dict(zip(names, costs.ratio.tolist(), strict=True)),
        saved=dict(zip(names, costs.saved.tolist(), strict=True)),
    )


@final
class Snapshot:
    """A router, a pool and settings, and the parts made from them.

    Attributes:
        loaded: The router, pool, settings and keys as loaded.
        forecaster: Makes forecasts, with the encoder's process.
        forwarder: Forwards calls to the targets.
        decider: Chooses targets.
        keepers: Finds the targets that keep stored responses.
        recorder: Records every request that ends.
        baseline: The target that costs are compared with; None where none is known.
        candidate: Decides on a share of the conversations; None where this one decides on all.
        settings: The settings.
        targets: All targets and their deployments, by name.
        policy: The kind of the router's policy.
        passing: Selects the headers that are forwarded to targets.
        models: The provider's name of the model of each target and deployment, by its name.
        details: The details of every receipt: the cost scale, the policy and the version.
        session_details: The details of receipts with a session: also the session settings.
        chat_only: The targets and deployments that don't serve messages, with the name of a chat's
            field for the most output tokens.
    """

    def __init__(
        self,
        loaded: LoadedGateway,
        *,
        forecaster: Forecaster | NoForecaster,
        forwarder: Forwarder,
        decider: Decider,
        keepers: ResponseOwners,
        recorder: RequestRecorder,
        baseline: str | None = None,
        candidate: "Snapshot | None" = None,
    ) -> None:
        self.baseline = baseline
        self.loaded, self.forecaster, self.forwarder = loaded, forecaster, forwarder
        self.decider, self.keepers, self.recorder = decider, keepers, recorder
        self.candidate = candidate
        self.settings = loaded.settings
        deployed = loaded.pool.deployed
        self.targets = {target.name: target for target in (*loaded.pool, *deployed)}
        self.policy = loaded.light.policy.kind
        self.passing = HeaderFilter(loaded.settings.forward_headers)
        self.details, self.session_details = receipt_details(loaded)
        self.models = {name: target.model or name for name, target in self.targets.items()}
        self._further = {
            target.name: {
                name: json.dumps(value).encode()
                for name, value in identity_parameters(
                    target, deployed.provider_of(target.name).dialect
                ).items()
            }
            for target in deployed
        }
        self.chat_only = {
            name: TRAITS[pool.provider_of(name).dialect].max_tokens
            for pool in (deployed, loaded.pool)
            for name in pool.names
            if "messages" not in loaded.pool.serves(loaded.pool.target_of.get(name, name))
        }
        self._users = 0
        self._unused = asyncio.Event()
        self._unused.set()

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

    def body_for(
        self, target: str, splicer: Splicer, endpoint: Endpoint, *, ask_usage: bool
    ) -> bytes:
        """A request's body for a deployment: the client's bytes, with its own model name.

        Fields that set a target apart from its model, such as its reasoning effort, are added to
        chats that don't set them.
        """
        if endpoint == "messages" and target in self.chat_only:
            from prefill_router_gateway.protocol import chat_splicer  # for translated calls alone

            splicer, endpoint = chat_splicer(splicer.body, limit=self.chat_only[target]), "chat"
            ask_usage = self.settings.streams.usage == "ask"
        further = self._further[target] if endpoint == "chat" else None
        return splicer.body_for(self.models[target], ask_usage=ask_usage, further=further)

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
        kept = () if keep is None else [snapshot.forecaster for snapshot in keep.each]
        for snapshot in self.each:
            if snapshot.forecaster not in kept:
                await snapshot.forecaster.close()


@final
@dataclass(frozen=True, kw_only=True)
class IncomingRequest:
    """A request that was read.

    Attributes:
        envelope: Its body, without its fields.
        question: Its properties for the decision.
        prompt: What the encoder reads; None for nothing. For a request that names its target, it is
            set only where prompts are kept.
        scored: The part of the request that the prompt is.
        sampled: Its body, where it is to be kept with its answer to learn from; None otherwise.
    """

    envelope: Envelope
    question: RoutingRequest
    prompt: Prompt | None
    scored: Scored
    sampled: bytes | None = None


_PREFIX = HEADER.encode()
_TARGET, _ID, _REASON = _PREFIX + b"target", _PREFIX + b"decision-id", _PREFIX + b"reason"
_LAM, _MS, _FALLBACK = _PREFIX + b"lam", _PREFIX + b"decision-ms", _PREFIX + b"fallback"
_PROBABILITY, _COST = _PREFIX + b"probability", _PREFIX + b"estimated-cost"
_ASKED, _TRANSLATED = _PREFIX + b"asked", _PREFIX + b"translated"
_LONGEST_NAME = 200
_RETRIES = _PREFIX + b"retries"
_NO_RETRY = ("answered", "refused", "breaker_open")  # not failed calls


@final
class RequestRecord:
    """Records one request that was decided on.

    Args:
        live: The snapshot that decided.
        incoming: The request.
        choice: The decision.
        decision_seconds: The duration of the decision.
        forecast_seconds: The wait for the forecast; None where none was needed.
        trace: The request's span; None where it isn't traced.
        leave: Ends the request as far as its key's limits count it; None where nothing is to end.

    Attributes:
        sample: The request, where it is to be kept with its answer to learn from; None otherwise.
    """

    def __init__(
        self,
        live: Snapshot,
        incoming: IncomingRequest,
        choice: RoutingDecision,
        *,
        decision_seconds: float,
        forecast_seconds: float | None,
        trace: Trace | None = None,
        leave: Leave | None = None,
    ) -> None:
        self._live, self._choice, self._leave = live, choice, leave
        self._question, self._scored = incoming.question, incoming.scored
        envelope = incoming.envelope  # not kept, so that its texts are freed during the answer
        self._requested, self._stream = envelope.model[:_LONGEST_NAME], envelope.stream
        self._options = envelope.options
        self._prompt: str | list[dict[str, str]] | None = None
        if live.settings.receipts.prompts and incoming.prompt is not None:
            given = incoming.prompt
            turns = () if isinstance(given, str) else given
            kept = [{"role": turn.role, "content": turn.content} for turn in turns]
            self._prompt = given if isinstance(given, str) else kept
        self._decision_seconds, self._forecast_seconds = decision_seconds, forecast_seconds
        self._trace = trace
        self.sample: SampleDraft | None = None
        if incoming.sampled is not None:
            self.sample = SampleDraft(
                id=choice.id,
                at=incoming.question.at,
                share=live.settings.learning.share,
                endpoint=envelope.endpoint,
                body=incoming.sampled,
                answer=AnswerText(envelope.endpoint),
            )

    def reply_headers(
        self, target: str | None, attempts: tuple[TargetAttempt, ...]
    ) -> list[Header]:
        """The gateway's own response headers.

        Args:
            target: The target that answers; None for none.
            attempts: The attempts.
        """
        choice = self._choice
        headers = [
            (_ID, choice.id.encode()),
            (_REASON, choice.reason.encode()),
            (_MS, b"%.2f" % (1e3 * self._decision_seconds)),
            (_RETRIES, b"%d" % sum(a.end not in _NO_RETRY for a in attempts)),
        ]
        if choice.lam is not None:
            headers.append((_LAM, b"%g" % choice.lam))
        if self._options is not None:
            headers.append((_ASKED, self._options.header))
        if choice.fallback is not None:
            headers.append((_FALLBACK, choice.fallback.encode()))
        if target is not None:
            headers.append(target_header(target))
            if self._question.endpoint == "messages" and target in self._live.chat_only:
                headers.append((_TRANSLATED, b"chat"))
            if target in choice.correctness:
                headers.append((_PROBABILITY, b"%.4f" % choice.correctness[target]))
            if target in choice.estimated_cost:
                headers.append((_COST, b"%.3g" % choice.estimated_cost[target]))
        return headers

    def named(self, deployment: str, response: str) -> None:
        """Remember where a response is being written, since it may be cancelled."""
        self._live.recorder.sessions.keep(response, target=deployment, key=self._question.key)

    async def finished(self, outcome: RequestOutcome) -> None:
        """Record the outcome; when this returns, the receipt is written or the wait timed out.

        So is what other replicas need to know.
        """
        receipt = self._receipt(outcome)
        self._live.decider.answered(
            self._choice,
            outcome,
            cost=receipt.cost,
            at=time.time(),
            stored=receipt.endpoint == "responses",
        )
        if self._trace is not None:
            self._trace.end(receipt)
        recorder = self._live.recorder
        if self._live.settings.routing.latency is not None:
            recorder.speeds.observe(receipt)
        recorder.metrics.observe(receipt)
        recorder.recent.add(receipt)
        log_request(receipt)
        if self._leave is not None:
            self._leave()  # now, to be written together with the answer
        shared = None if recorder.shared is None else recorder.shared.written()
        if self.sample is not None and (outcome.kind != "answered" or outcome.tool_calls):
            self.sample.answer.drop()
        await recorder.writer.keep(receipt, self.sample)
        if shared is not None:
            await shared

    def _receipt(self, outcome: RequestOutcome) -> Receipt:
        question, loaded = self._question, self._live.loaded
        decided = self._choice.reason != "named"
        cost, is_estimated = self._cost(outcome)
        alone = self._choice.session is None
        details = self._live.details if alone else self._live.session_details
        if (shared := self._live.recorder.shared) is not None:
            details = {**details, **shared.details(question.key)}
        details = details if decided else {}
        if self._options is not None:
            details = {**details, "asked": self._options.asked}
        return Receipt(
            choice=self._choice,
            outcome=outcome,
            at=question.at,
            router=loaded.light.fingerprint if decided else "",
            policy=self._live.policy if decided else "",
            endpoint=question.endpoint,
            requested=self._requested,
            stream=self._stream,
            key=question.key,
            scored=self._scored,
            cost=cost,
            cost_is_estimated=is_estimated,
            decision_seconds=self._decision_seconds,
            forecast_seconds=self._forecast_seconds,
            baseline=self._live.baseline,
            prompt=self._prompt,
            details=details,
        )

    def _cost(self, outcome: RequestOutcome) -> tuple[float | None, bool]:
        """The observed cost in US dollars, and whether it is an estimate.

        It is the provider's reported cost, or else the price of its token counts. Where these are
        impossible or not known yet, it is the decision's estimate, so that budgets have no gap.
        """
        usage, target = outcome.usage, outcome.target
        if target is None or (usage is None and not outcome.usage_is_estimated):
            return None, outcome.usage_is_estimated
        cost = None if usage is None else reported_cost(usage)
        if cost is None and usage is not None:
            cost = cost_of(usage, self._live.targets[outcome.deployment or target])
        if cost is not None:
            return cost, outcome.usage_is_estimated
        expected = self._choice.estimated_cost.get(target)
        return expected, outcome.usage_is_estimated or expected is not None


def target_header(name: str) -> Header:
    """The header with the target's name, percent-encoded where it isn't printable ASCII."""
    return _TARGET, (name if name.isascii() and name.isprintable() else quote(name)).encode()
