"""The routed endpoints: a request is read, decided on, forwarded and recorded (ASGI).

For those who have a gateway already there is the decision without the call: `/v1/route`.
"""

import asyncio
import json
import time
from collections.abc import Callable, Mapping
from typing import Any, final

from fastapi import Request
from starlette.responses import JSONResponse
from starlette.types import Receive, Scope, Send

from prefill_router.gateway.api.request_scope import (
    Headers,
    IncomingRequest,
    RequestRecord,
    headers_on,
    query_of,
    read_incoming,
    request_scope,
)
from prefill_router.gateway.errors import RefusalError
from prefill_router.gateway.forecast import NoForecastError
from prefill_router.gateway.guard import FREE_BODY, KEY
from prefill_router.gateway.protocol import Envelope
from prefill_router.gateway.protocol.json_splice import without_collecting
from prefill_router.gateway.proxy import ForwardRequest
from prefill_router.gateway.records import RequestOutcome, RoutingDecision
from prefill_router.gateway.runtime.configuration import Snapshot
from prefill_router.gateway.runtime.gateway import Gateway
from prefill_router.gateway.telemetry import Trace
from prefill_router.gateway.types import FallbackReason
from prefill_router.router import Forecast
from prefill_router.targets import Endpoint


@final
class RoutedEndpoint:
    """One forwarding endpoint. What it refuses, it raises: the guard replies.

    Args:
        gateway: The gateway.
        endpoint: Which call.
    """

    def __init__(self, gateway: Gateway, endpoint: Endpoint) -> None:
        self._gateway, self._endpoint = gateway, endpoint

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request; the guard has read its body."""
        at, gateway = time.time(), self._gateway
        with request_scope(gateway, scope["headers"], at=at) as (live, trace):
            call = await self._decide(scope, receive, live, trace, at)
            await forward(gateway, live, call, receive, send)

    async def _decide(
        self, scope: Scope, receive: Receive, live: Snapshot, trace: Trace | None, at: float
    ) -> ForwardRequest:
        """The call to make; nothing but it keeps the request's body."""
        began, arrived = time.perf_counter(), asyncio.get_running_loop().time()
        gateway, headers = self._gateway, scope["headers"]
        incoming = read_incoming(
            self._endpoint,
            (await receive()).get("body", b""),
            headers,
            key=scope.get(KEY),
            settings=live.settings,
            pool=live.loaded.pool,
            lam=gateway.lam_set,
            at=at,
        )
        check_streams(gateway, stream=incoming.envelope.stream)
        decided = await decide(gateway, live, incoming)
        check_streams(gateway, stream=incoming.envelope.stream)  # others may have come meanwhile
        seconds = time.perf_counter() - began
        recording = RequestRecord(
            gateway,
            live,
            incoming,
            decided.choice,
            decision_seconds=seconds,
            forecast_seconds=decided.waited,
            trace=trace,
        )
        call = _call(live, incoming, decided.choice, recording, scope, trace, arrived)
        live.decider.started(decided.choice, key=incoming.question.key)
        return call


async def forward(
    gateway: Gateway, live: Snapshot, call: ForwardRequest, receive: Receive, send: Send
) -> None:
    """Answer a client by a target, or by an error."""
    gateway.under_way += 1
    gateway.streams += call.stream
    try:
        await live.forwarder.forward(call, receive, send)
    finally:
        gateway.under_way -= 1
        gateway.streams -= call.stream


@final
class TimedDecision:
    """A decision, and how long its forecast was waited for; None where it wasn't."""

    __slots__ = ("choice", "waited")

    def __init__(self, choice: RoutingDecision, waited: float | None) -> None:
        self.choice, self.waited = choice, waited


async def decide(
    gateway: Gateway, live: Snapshot, incoming: IncomingRequest, *, counted: bool = True
) -> TimedDecision:
    """Decide about a request.

    Args:
        gateway: The gateway.
        live: By what.
        incoming: The request.
        counted: Whether it is one of those whose drift and fallbacks are watched.

    Raises:
        RefusalError: No target may answer it, or a budget is spent.
    """
    if not live.decider.needs_forecast(incoming.question):
        return TimedDecision(live.decider.decide(incoming.question, None), None)
    began = time.perf_counter()
    found = await _forecast(live, incoming)
    waited = time.perf_counter() - began
    if counted:
        gateway.fallbacks.add(None if isinstance(found, Forecast) else found)
    if counted and isinstance(found, Forecast):
        gateway.drift.add(found.bins)
    return TimedDecision(live.decider.decide(incoming.question, found), waited)


def check_streams(gateway: Gateway, *, stream: bool) -> None:
    """Check that there is room for a request, where its answer is a stream.

    Raises:
        RefusalError: 503, with `retry-after`: as many streams are open as may be.
    """
    most = gateway.settings.limits.streams
    if stream and gateway.streams >= most:
        raise RefusalError(
            f"the gateway has {most} streams open and takes no more; ask again soon",
            status=503,
            kind="server_error",
            code="overloaded",
            headers={"retry-after": "1"},
        )


async def _forecast(live: Snapshot, incoming: IncomingRequest) -> Forecast | FallbackReason:
    if incoming.prompt is None:
        return "no_text"
    try:
        return await live.forecaster.forecast(
            incoming.prompt, seconds=live.settings.routing.deadline_seconds
        )
    except NoForecastError as error:
        return error.reason


def _call(
    live: Snapshot,
    incoming: IncomingRequest,
    choice: RoutingDecision,
    recording: RequestRecord,
    scope: Scope,
    trace: Trace | None,
    arrived: float,
) -> ForwardRequest:
    envelope = incoming.envelope
    ask_usage = live.settings.streams.usage == "ask" and envelope.can_ask_usage
    bodies, settled = _bodies(live, envelope, ask_usage=ask_usage, free=scope[FREE_BODY])
    return ForwardRequest(
        endpoint=envelope.endpoint,
        bodies=bodies,
        order=choice.order,
        finished=recording.finished,
        reply_headers=recording.reply_headers,
        stream=envelope.stream,
        usage_added=ask_usage,
        headers=headers_on(live, scope["headers"], trace),
        stay=choice.tool_loop or choice.reason in ("named", "stored"),
        input_tokens=choice.input_tokens,
        began=arrived,
        query=query_of(scope),
        named=recording.named if envelope.endpoint == "responses" else None,
        settled=settled,
    )


def _bodies(
    live: Snapshot, envelope: Envelope, *, ask_usage: bool, free: Callable[[], object]
) -> tuple[Callable[[str], bytes], Callable[[], None]]:
    """What makes a request's body for a target, and what ends that, to free what it is made of.

    Only the bytes that came are kept for it: the fields that were read may take ten times as much.
    """
    endpoint, held = envelope.endpoint, [envelope.splicer]

    def body_for(target: str) -> bytes:
        return live.body_for(target, held[0], endpoint, ask_usage=ask_usage)

    def settled() -> None:
        held.clear()
        free()

    return body_for, settled


_ENDPOINTS: Mapping[str, Endpoint] = {
    "messages": "chat",
    "prompt": "completions",
    "input": "responses",
}
_ANTHROPIC = b"anthropic-version"
"""A header that all who speak Anthropic's protocol send; the bodies look alike."""


async def dry_run(gateway: Gateway, request: Request) -> JSONResponse:
    """Decide about a request as it would be forwarded, and keep a receipt of that.

    The target that is told counts as the one that goes on with the conversation; nothing is spent.

    Raises:
        RefusalError: It can't be read, no target may answer it, or a budget is spent.
    """
    at, began = time.time(), time.perf_counter()
    headers = list(request.scope["headers"])
    body, endpoint = _whole(await request.body(), headers)
    with request_scope(gateway, headers, at=at) as (live, trace):
        incoming = read_incoming(
            endpoint,
            body,
            headers,
            key=request.scope.get(KEY),
            settings=live.settings,
            pool=live.loaded.pool,
            lam=gateway.lam_set,
            at=at,
            to_call=False,
        )
        decided = await decide(gateway, live, incoming)
        seconds = time.perf_counter() - began
        choice = decided.choice
        recording = RequestRecord(
            gateway,
            live,
            incoming,
            choice,
            decision_seconds=seconds,
            forecast_seconds=decided.waited,
            trace=trace,
        )
        outcome = RequestOutcome(
            kind="routed", target=None, status=200, attempts=(), total_seconds=seconds
        )
        await recording.finished(outcome)
    own = {n.decode(): v.decode() for n, v in recording.reply_headers(choice.target, ())}
    told = _told(live, choice, incoming.question.key_targets)
    return JSONResponse(told, headers=own)


def _told(
    live: Snapshot, choice: RoutingDecision, allowed: frozenset[str] | None
) -> dict[str, Any]:
    """A decision as plain values; of targets that the client's key may not use it tells nothing."""
    routed = live.loaded.light.pool.names
    names = routed if choice.target in routed else (choice.target,)
    shown = [name for name in names if allowed is None or name in allowed]
    known = {
        "id": choice.id,
        "target": choice.target,
        "model": live.models.get(choice.target, choice.target),
        "order": list(choice.order),
        "reason": choice.reason,
        "fallback": choice.fallback,
        "lam": choice.lam,
        "lam_asked": choice.lam_asked,
        "novelty": choice.novelty,
        "input_tokens": choice.input_tokens,
        "excluded": {name: why for name, why in choice.excluded.items() if name in shown},
    }
    rows = {
        name: {
            "correctness": choice.correctness.get(name),
            "estimated_cost": choice.estimated_cost.get(name),
        }
        for name in shown
    }
    return {**known, "targets": rows}


def _whole(body: bytes, headers: Headers) -> tuple[bytes, Endpoint]:
    """A body with a model's name, and the call that it would be: its fields and headers say so."""
    try:
        with without_collecting(body):
            value = json.loads(body)
    except (ValueError, RecursionError):
        value = None
    if not isinstance(value, dict):
        return body, "chat"  # whoever reads it says what is wrong
    found = next((call for field, call in _ENDPOINTS.items() if field in value), None)
    if found is None:
        raise RefusalError("the body has no messages, prompt or input; send one", param="messages")
    if found == "chat" and any(name == _ANTHROPIC for name, _ in headers):
        found = "messages"
    if "model" in value:
        return body, found
    return body.lstrip().replace(b"{", b'{"model":"auto",', 1), found
