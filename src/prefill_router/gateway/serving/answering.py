"""The forwarding endpoints: a request is read, decided on, forwarded and recorded (ASGI)."""

import asyncio
import time
from collections.abc import Callable
from typing import final

from starlette.types import Receive, Scope, Send

from prefill_router.gateway.choice import Choice
from prefill_router.gateway.forecasting import NoForecastError
from prefill_router.gateway.forwarding import Call
from prefill_router.gateway.guarding import FREE_BODY, KEY
from prefill_router.gateway.protocol import Envelope
from prefill_router.gateway.refusal import RefusalError
from prefill_router.gateway.serving.begun import begun, headers_on
from prefill_router.gateway.serving.gateway import Gateway
from prefill_router.gateway.serving.incoming import Incoming, query_of, read_incoming
from prefill_router.gateway.serving.live import Live
from prefill_router.gateway.serving.recording import Recording
from prefill_router.gateway.telemetry import Trace
from prefill_router.gateway.words import Endpoint, FallbackReason
from prefill_router.router import Forecast


@final
class Answering:
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
        with begun(gateway, scope["headers"], at=at) as (live, trace):
            call = await self._decide(scope, receive, live, trace, at)
            await forward(gateway, live, call, receive, send)

    async def _decide(
        self, scope: Scope, receive: Receive, live: Live, trace: Trace | None, at: float
    ) -> Call:
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
        recording = Recording(
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


async def forward(gateway: Gateway, live: Live, call: Call, receive: Receive, send: Send) -> None:
    """Answer a client by a target, or by an error."""
    gateway.under_way += 1
    gateway.streams += call.stream
    try:
        await live.forwarder.forward(call, receive, send)
    finally:
        gateway.under_way -= 1
        gateway.streams -= call.stream


@final
class Decided:
    """A decision, and how long its forecast was waited for; None where it wasn't."""

    __slots__ = ("choice", "waited")

    def __init__(self, choice: Choice, waited: float | None) -> None:
        self.choice, self.waited = choice, waited


async def decide(
    gateway: Gateway, live: Live, incoming: Incoming, *, counted: bool = True
) -> Decided:
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
        return Decided(live.decider.decide(incoming.question, None), None)
    began = time.perf_counter()
    found = await _forecast(live, incoming)
    waited = time.perf_counter() - began
    if counted:
        gateway.fallbacks.add(None if isinstance(found, Forecast) else found)
    if counted and isinstance(found, Forecast):
        gateway.drift.add(found.bins)
    return Decided(live.decider.decide(incoming.question, found), waited)


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


async def _forecast(live: Live, incoming: Incoming) -> Forecast | FallbackReason:
    if incoming.prompt is None:
        return "no_text"
    try:
        return await live.forecaster.forecast(
            incoming.prompt, seconds=live.settings.routing.deadline_seconds
        )
    except NoForecastError as error:
        return error.reason


def _call(
    live: Live,
    incoming: Incoming,
    choice: Choice,
    recording: Recording,
    scope: Scope,
    trace: Trace | None,
    arrived: float,
) -> Call:
    envelope = incoming.envelope
    ask_usage = live.settings.streams.usage == "ask" and envelope.can_ask_usage
    bodies, settled = _bodies(live, envelope, ask_usage=ask_usage, free=scope[FREE_BODY])
    return Call(
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
    live: Live, envelope: Envelope, *, ask_usage: bool, free: Callable[[], object]
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
