"""One request from its beginning to its end: what it goes on with, what was read, what is recorded.

Its body, headers and key are read as deciding needs them. Its receipt tells metrics, log and
traces.
"""

import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, final
from urllib.parse import quote

from starlette.types import Scope

from prefill_router.client import cost_of, reported_cost
from prefill_router.data import Prompt, prompt_text
from prefill_router.gateway.decide import RoutingRequest, session_name
from prefill_router.gateway.errors import RefusalError
from prefill_router.gateway.guard import ClientKey
from prefill_router.gateway.protocol import (
    Envelope,
    RequestedModel,
    RoutingPreferences,
    parse_model,
    read_envelope,
    read_preferences,
    scored_prompt,
)
from prefill_router.gateway.proxy import Header
from prefill_router.gateway.receipts import Receipt
from prefill_router.gateway.records import RequestOutcome, RoutingDecision, TargetAttempt
from prefill_router.gateway.runtime.configuration import Snapshot
from prefill_router.gateway.runtime.gateway import Gateway
from prefill_router.gateway.settings import GatewaySettings
from prefill_router.gateway.telemetry import Trace
from prefill_router.gateway.types import HEADER, Scored
from prefill_router.targets import Endpoint, Pool


@contextmanager
def request_scope(
    gateway: Gateway, headers: list[Header], *, at: float
) -> Iterator[tuple[Snapshot, Trace | None]]:
    """What a request goes on with whatever is reloaded meanwhile, and its span, if any.

    A refusal ends the span; whatever else ends the request has to.

    Args:
        gateway: The gateway.
        headers: Of the request.
        at: When it came, seconds since 1970.
    """
    trace = None if gateway.traces is None else gateway.traces.begin(headers, at=at)
    live = gateway.enter()
    try:
        yield live, trace
    except RefusalError as refusal:
        if trace is not None:
            trace.end_refused(refusal.status, at=time.time())
        raise
    finally:
        live.leave()


def headers_on(live: Snapshot, headers: list[Header], trace: Trace | None) -> list[Header]:
    """The client's headers, as far as they go on; the trace goes on from the request's own span."""
    passed = live.passing.to_target(headers)
    if trace is None:
        return passed
    carried = trace.headers()
    names = {name for name, _ in carried}
    return [header for header in passed if header[0] not in names] + carried


Headers = list[tuple[bytes, bytes]]
_odd = re.compile(rb"[^!-~]").sub


@final
@dataclass(frozen=True, kw_only=True)
class IncomingRequest:
    """A request that was read.

    Attributes:
        envelope: Its body, of which the fields are forgotten.
        question: What deciding needs to know of it.
        prompt: What the encoder is to read; None for nothing. Of a request that names its target,
            what it would have read, where prompts are kept.
        scored: Which part of the request that is.
    """

    envelope: Envelope
    question: RoutingRequest
    prompt: Prompt | None
    scored: Scored


def read_incoming(
    endpoint: Endpoint,
    body: bytes,
    headers: Headers,
    *,
    key: ClientKey | None,
    settings: GatewaySettings,
    pool: Pool,
    lam: float | None,
    at: float,
    to_call: bool = True,
) -> IncomingRequest:
    """Read a request.

    Args:
        endpoint: What is asked.
        body: All of it.
        headers: Names in lower case.
        key: The client's key.
        settings: The present ones.
        pool: All that can be asked.
        lam: The trade-off of requests that name none; None for that of the settings.
        at: When it came, seconds since 1970.
        to_call: Whether a target will be called.

    Raises:
        RefusalError: It can't be read, or asks for what there isn't.
    """
    envelope = read_envelope(endpoint, body)
    allowed = _targets(key)
    names = [n for n in pool.names if allowed is None or n in allowed]  # others aren't even told
    wishes = read_preferences(headers, names)
    asked = parse_model(envelope.model, targets=names, names=settings.routing.names)
    scored = wishes.scored or settings.routing.scored
    if asked.target is not None:
        question = _named(envelope, wishes, asked.target, key, at=at, to_call=to_call)
        kept = scored_prompt(envelope, scored) if settings.receipts.prompts else None
        envelope.forget()
        return IncomingRequest(envelope=envelope, question=question, prompt=kept, scored=scored)
    prompt = scored_prompt(envelope, scored)
    question = RoutingRequest(
        endpoint=endpoint,
        at=at,
        text_bytes=envelope.text_bytes,
        scored_bytes=0 if prompt is None else _bytes(prompt),
        needs=envelope.needs,
        max_tokens=envelope.max_tokens,
        session=session_name(
            settings.sessions,
            header=wishes.session,
            hint=envelope.session_hint,
            key_turns=envelope.key_turns,
            key=None if key is None else key.name,
        ),
        opening=wishes.session is None and len(envelope.turns) == len(envelope.key_turns),
        in_tool_loop=envelope.in_tool_loop,
        tool_call_ids=envelope.tool_call_ids,
        previous_response_id=envelope.previous_response_id,
        lam_asked=_lam(wishes, asked, lam),
        max_cost=wishes.max_cost,
        allow=wishes.allow,
        exclude=wishes.exclude,
        key=None if key is None else key.name,
        key_targets=_targets(key),
        to_call=to_call,
    )
    envelope.forget()
    return IncomingRequest(envelope=envelope, question=question, prompt=prompt, scored=scored)


def query_of(scope: Scope) -> bytes:
    """What a request's address has behind its question mark, as a target may be sent it."""
    query: bytes = scope["query_string"]
    return _odd(lambda found: b"%%%02X" % found[0][0], query) if query else b""


def _named(
    envelope: Envelope,
    wishes: RoutingPreferences,
    target: str,
    key: ClientKey | None,
    *,
    at: float,
    to_call: bool,
) -> RoutingRequest:
    """What is known of a request that names its target; of its text only how long it is."""
    return RoutingRequest(
        endpoint=envelope.endpoint,
        at=at,
        text_bytes=envelope.text_bytes,
        max_tokens=envelope.max_tokens,
        previous_response_id=envelope.previous_response_id,
        named=target,
        max_cost=wishes.max_cost,
        allow=wishes.allow,
        exclude=wishes.exclude,
        key=None if key is None else key.name,
        key_targets=_targets(key),
        to_call=to_call,
    )


def _targets(key: ClientKey | None) -> frozenset[str] | None:
    return None if key is None or key.targets is None else frozenset(key.targets)


def _lam(wishes: RoutingPreferences, asked: RequestedModel, lam: float | None) -> float | None:
    if wishes.lam is not None:
        return wishes.lam
    return lam if asked.lam is None else asked.lam


def _bytes(prompt: Prompt) -> int:
    text = prompt_text(prompt)
    return len(text) if text.isascii() else len(text.encode("utf-8", "surrogatepass"))


ReplyHeader = tuple[bytes, bytes]
_PREFIX = HEADER.encode()
_TARGET, _ID, _REASON = _PREFIX + b"target", _PREFIX + b"decision-id", _PREFIX + b"reason"
_LAM, _MS, _FALLBACK = _PREFIX + b"lam", _PREFIX + b"decision-ms", _PREFIX + b"fallback"
_PROBABILITY, _COST = _PREFIX + b"probability", _PREFIX + b"estimated-cost"
_LONGEST_NAME = 200
_RETRIES = _PREFIX + b"retries"
_NO_RETRY = ("answered", "refused", "breaker_open")  # nobody was asked in vain


@final
class RequestRecord:
    """What is recorded of one request that was decided on.

    Args:
        gateway: Keeps the receipt.
        live: By what it was decided.
        incoming: The request.
        choice: The decision.
        decision_seconds: How long it took.
        forecast_seconds: How long the forecast was waited for; None where it wasn't.
        trace: The request's span; None for none.
    """

    def __init__(
        self,
        gateway: "Gateway",
        live: Snapshot,
        incoming: IncomingRequest,
        choice: RoutingDecision,
        *,
        decision_seconds: float,
        forecast_seconds: float | None,
        trace: Trace | None = None,
    ) -> None:
        self._gateway, self._live, self._choice = gateway, live, choice
        self._question, self._scored = incoming.question, incoming.scored
        envelope = incoming.envelope  # isn't kept: its texts are freed while the answer comes
        self._requested, self._stream = envelope.model[:_LONGEST_NAME], envelope.stream
        self._prompt = _plain(incoming.prompt) if live.settings.receipts.prompts else None
        self._decision_seconds, self._forecast_seconds = decision_seconds, forecast_seconds
        self._trace = trace

    def reply_headers(
        self, target: str | None, attempts: tuple[TargetAttempt, ...]
    ) -> list[ReplyHeader]:
        """The gateway's own headers of the answer.

        Args:
            target: Who answers; None for nobody.
            attempts: What was tried.
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
        if choice.fallback is not None:
            headers.append((_FALLBACK, choice.fallback.encode()))
        if target is not None:
            headers.append(target_header(target))
            if target in choice.correctness:
                headers.append((_PROBABILITY, b"%.4f" % choice.correctness[target]))
            if target in choice.estimated_cost:
                headers.append((_COST, b"%.3g" % choice.estimated_cost[target]))
        return headers

    def named(self, target: str, response: str) -> None:
        """Remember who keeps a response that still comes: it may be cancelled meanwhile."""
        self._gateway.sessions.keep(response, target=target, key=self._question.key)

    async def finished(self, outcome: RequestOutcome) -> None:
        """Record how it ended; the receipt is kept when this returns, or it took too long."""
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
        await self._gateway.keep(receipt)

    def _receipt(self, outcome: RequestOutcome) -> Receipt:
        question, loaded = self._question, self._live.loaded
        decided = self._choice.reason != "named"
        cost, is_estimated = self._cost(outcome)
        return Receipt(
            choice=self._choice,
            outcome=outcome,
            at=question.at,
            router=loaded.light.fingerprint if decided else "",
            policy=loaded.light.policy.kind if decided else "",
            endpoint=question.endpoint,
            requested=self._requested,
            stream=self._stream,
            key=question.key,
            scored=self._scored,
            cost=cost,
            cost_is_estimated=is_estimated,
            decision_seconds=self._decision_seconds,
            forecast_seconds=self._forecast_seconds,
            prompt=self._prompt,
            details=self._details() if decided else {},
        )

    def _details(self) -> dict[str, Any]:
        alone = self._choice.session is None
        return self._live.details if alone else self._live.session_details

    def _cost(self, outcome: RequestOutcome) -> tuple[float | None, bool]:
        """Observed cost, US dollars, and whether it is an estimate.

        What the provider says, or else what its counts cost. Where these can't be true, or aren't
        known yet, it is what the decision expected: budgets have no gap then.
        """
        usage, target = outcome.usage, outcome.target
        if target is None or (usage is None and not outcome.usage_is_estimated):
            return None, outcome.usage_is_estimated
        cost = None if usage is None else reported_cost(usage)
        if cost is None and usage is not None:
            cost = cost_of(usage, self._live.loaded.pool[target])
        if cost is not None:
            return cost, outcome.usage_is_estimated
        expected = self._choice.estimated_cost.get(target)
        return expected, outcome.usage_is_estimated or expected is not None


def target_header(name: str) -> ReplyHeader:
    """Who answers; percent-encoded where the name has what headers can't hold, or not unharmed."""
    return _TARGET, (name if name.isascii() and name.isprintable() else quote(name)).encode()


def _plain(prompt: Prompt | None) -> str | list[dict[str, str]] | None:
    if prompt is None or isinstance(prompt, str):
        return prompt
    return [{"role": turn.role, "content": turn.content} for turn in prompt]
