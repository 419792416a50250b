"""The routed endpoints, which read, decide, forward and record a request (ASGI)."""

import asyncio
import random
import re
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final, final

from starlette.types import Receive, Scope, Send

from prefill_router.data import Prompt, prompt_text
from prefill_router.router import Forecast
from prefill_router.targets import Endpoint, Pool
from prefill_router_gateway.decide import session_name
from prefill_router_gateway.errors import RefusalError
from prefill_router_gateway.forecast import NoForecastError
from prefill_router_gateway.guard import FREE_BODY, KEY, LEAVE, ClientKey
from prefill_router_gateway.protocol import (
    Envelope,
    RoutingPreferences,
    parse_model,
    read_envelope,
    read_preferences,
    scored_prompt,
)
from prefill_router_gateway.records import (
    FallbackReason,
    ForwardRequest,
    Header,
    RoutingDecision,
    RoutingRequest,
    is_repeatable,
)
from prefill_router_gateway.runtime import Gateway, IncomingRequest, RequestRecord, Snapshot
from prefill_router_gateway.settings import GatewaySettings
from prefill_router_gateway.telemetry import Trace

_DRAWS: Final = random.Random()
"""Draws samples; a generator of its own, since others may seed the module's."""


@final
class RoutedEndpoint:
    """One routed endpoint. It raises its refusals; the guard turns them into responses.

    Args:
        gateway: The gateway.
        endpoint: The endpoint.
    """

    def __init__(self, gateway: Gateway, endpoint: Endpoint) -> None:
        self._gateway, self._endpoint = gateway, endpoint

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request; the guard has read its body."""
        at, gateway = time.time(), self._gateway
        live = gateway.live
        with live.scope(gateway.traces, scope["headers"], at=at) as trace:
            call = await self._decide(scope, receive, live, trace, at)
            await forward(gateway, live, call, receive, send)

    async def _decide(
        self, scope: Scope, receive: Receive, live: Snapshot, trace: Trace | None, at: float
    ) -> ForwardRequest:
        """The request to forward; nothing else keeps the request's body."""
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
        live = live.deciding(incoming.question)
        choice, waited = await decide(gateway, live, incoming)
        check_streams(gateway, stream=incoming.envelope.stream)  # others may have opened meanwhile
        record = RequestRecord(
            live,
            incoming,
            choice,
            decision_seconds=time.perf_counter() - began,
            forecast_seconds=waited,
            trace=trace,
            leave=scope.get(LEAVE),
        )
        call = _call(live, incoming, choice, record, scope, trace, arrived)
        live.decider.started(choice, key=incoming.question.key)
        return call


async def forward(
    gateway: Gateway, live: Snapshot, call: ForwardRequest, receive: Receive, send: Send
) -> None:
    """Answer a client with a target's answer or an error."""
    gateway.under_way += 1
    gateway.streams += call.stream
    try:
        await live.forwarder.forward(call, receive, send)
    finally:
        gateway.under_way -= 1
        gateway.streams -= call.stream


async def decide(
    gateway: Gateway, live: Snapshot, incoming: IncomingRequest, *, counted: bool = True
) -> tuple[RoutingDecision, float | None]:
    """Decide about a request, and measure the wait for its forecast.

    Args:
        gateway: The gateway.
        live: The snapshot to decide with.
        incoming: The request.
        counted: Whether it counts in the gauges of drift and fallbacks.

    Returns:
        The decision, and the seconds waited for its forecast; None where it needed none.

    Raises:
        RefusalError: No target may answer it, or a budget is spent.
    """
    if gateway.shared is not None:
        await gateway.shared.prepare(incoming.question)
    begun = live.decider.begin(incoming.question)
    if not begun.needs_forecast:
        return live.decider.finish(begun, None), None
    began = time.perf_counter()
    found = await _forecast(live, incoming)
    waited = time.perf_counter() - began
    if counted:
        gateway.fallbacks.add(None if isinstance(found, Forecast) else found)
    if counted and isinstance(found, Forecast) and live.loaded.share is None:
        gateway.drift.add(found.bins)
    return live.decider.finish(begun, found), waited


def check_streams(gateway: Gateway, *, stream: bool) -> None:
    """Check that another stream may be opened, where the answer is a stream.

    Raises:
        RefusalError: 503 with `retry-after`: as many streams are open as the limit allows.
    """
    most = gateway.live.settings.limits.streams
    if stream and gateway.streams >= most:
        raise RefusalError(
            f"the gateway has {most} streams open, its limit; try again soon",
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
    record: RequestRecord,
    scope: Scope,
    trace: Trace | None,
    arrived: float,
) -> ForwardRequest:
    envelope = incoming.envelope
    ask_usage = live.settings.streams.usage == "ask" and envelope.can_ask_usage
    bodies, settled = _bodies(live, envelope, record, ask_usage=ask_usage, free=scope[FREE_BODY])
    return ForwardRequest(
        endpoint=envelope.endpoint,
        bodies=bodies,
        order=choice.order if choice.deployment is None else (choice.deployment,),
        finished=record.finished,
        reply_headers=record.reply_headers,
        stream=envelope.stream,
        usage_added=ask_usage,
        headers=live.headers_on(scope["headers"], trace),
        stay=choice.tool_loop or choice.reason == "stored",
        input_tokens=choice.input_tokens,
        began=arrived,
        query=query_of(scope),
        named=record.named if envelope.endpoint == "responses" else None,
        conversation=choice.session or choice.id,
        settled=settled,
        answer=None if record.sample is None else record.sample.answer,
        translated=live.chat_only if envelope.endpoint == "messages" else (),
    )


def _bodies(
    live: Snapshot,
    envelope: Envelope,
    record: RequestRecord,
    *,
    ask_usage: bool,
    free: Callable[[], object],
) -> tuple[Callable[[str], bytes], Callable[[], None]]:
    """A function that builds the body for a target, and one that frees what it is built from.

    Only the received bytes are kept for it: the parsed fields may take ten times as much memory.
    """
    endpoint, held, sample = envelope.endpoint, [envelope.splicer], record.sample

    def body_for(target: str) -> bytes:
        if sample is not None:
            sample.answer.clear()  # of a target that was called before
        return live.body_for(target, held[0], endpoint, ask_usage=ask_usage)

    def settled() -> None:
        held.clear()
        if sample is None:  # otherwise the body is needed until the request ends
            free()

    return body_for, settled


_odd = re.compile(rb"[^!-~]").sub


def read_incoming(
    endpoint: Endpoint,
    body: bytes,
    headers: Sequence[Header],
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
        endpoint: The endpoint that was called.
        body: The whole body.
        headers: The headers, with names in lower case.
        key: The client's key.
        settings: The current settings.
        pool: All targets.
        lam: The trade-off of requests that give none; None for that of the settings.
        at: When it arrived, in seconds since 1970.
        to_call: Whether a target will be called.

    Raises:
        RefusalError: It can't be read, or names a model or target that doesn't exist.
    """
    envelope = read_envelope(endpoint, body)
    allowed = None if key is None or key.targets is None else frozenset(key.targets)
    names = [n for n in pool.names if allowed is None or n in allowed]  # errors list these alone
    preferences, model, dial = read_preferences(headers, names), envelope.model, None
    if (options := envelope.options) is not None:
        preferences = options.added_to(preferences, pool, names)
        model, dial = options.named_by(model, pool, names), options.lam
    asked = parse_model(model, targets=names, names=settings.routing.names)
    scored = preferences.scored or settings.routing.scored
    lams = (preferences.lam, asked.lam, dial, lam) if asked.target is None else ()
    question = RoutingRequest(
        endpoint=endpoint,
        at=at,
        text_bytes=envelope.text_bytes,
        max_tokens=envelope.max_tokens,
        previous_response_id=envelope.previous_response_id,
        named=asked.target,
        lam_asked=next((given for given in lams if given is not None), None),
        max_cost=preferences.max_cost,
        allow=preferences.allow,
        exclude=preferences.exclude,
        fallbacks=preferences.fallbacks,
        needs=envelope.needs if preferences.fallbacks else frozenset(),
        key=None if key is None else key.name,
        key_targets=allowed,
        to_call=to_call,
        untranslatable=_untranslatable(envelope, names, pool) if to_call else None,
    )
    prompt = None
    if asked.target is None or settings.receipts.prompts:
        prompt = scored_prompt(envelope, scored)
    if asked.target is None:  # a request that names its target needs only its length
        question = _routed(question, envelope, preferences, settings, prompt)
    sampled = None
    is_open = len(names) == len(pool.names) and preferences.allow is None
    may_learn = preferences.learn and (key is None or key.learning)
    if settings.learning.share and may_learn and is_open and not preferences.exclude:
        body = envelope.splicer.body
        sampled = body if _is_sampled(settings, envelope, question, len(body)) else None
    envelope.forget()
    return IncomingRequest(
        envelope=envelope, question=question, prompt=prompt, scored=scored, sampled=sampled
    )


def _untranslatable(envelope: Envelope, names: Sequence[str], pool: Pool) -> str | None:
    """As in `RoutingRequest`; None where all targets serve messages."""
    if envelope.endpoint != "messages" or all("messages" in pool.serves(n) for n in names):
        return None
    from prefill_router_gateway.protocol import untranslatable  # for such pools alone

    return untranslatable(envelope.value)


def _is_sampled(
    settings: GatewaySettings, envelope: Envelope, question: RoutingRequest, size: int
) -> bool:
    """Whether chance keeps a request to learn from; only routed ones that can be asked again."""
    if not question.to_call or question.named is not None:
        return False
    by_chance = _DRAWS.random() < settings.learning.share
    return by_chance and is_repeatable(envelope.endpoint, envelope.value, envelope.needs, size=size)


def _routed(
    question: RoutingRequest,
    envelope: Envelope,
    preferences: RoutingPreferences,
    settings: GatewaySettings,
    prompt: Prompt | None,
) -> RoutingRequest:
    """The routing request with the fields that only a routing decision needs."""
    text = "" if prompt is None else prompt_text(prompt)
    size = len(text) if text.isascii() else len(text.encode("utf-8", "surrogatepass"))
    session = session_name(
        settings.sessions,
        header=preferences.session,
        hint=envelope.session_hint,
        key_turns=envelope.key_turns,
        key=question.key,
    )
    return replace(
        question,
        scored_bytes=size,
        needs=envelope.needs,
        session=session,
        opening=preferences.session is None and len(envelope.turns) == len(envelope.key_turns),
        in_tool_loop=envelope.in_tool_loop,
        tool_call_ids=envelope.tool_call_ids,
    )


def query_of(scope: Scope) -> bytes:
    """The query string of a request, with unsafe characters escaped for a target."""
    query: bytes = scope["query_string"]
    return _odd(lambda found: b"%%%02X" % found[0][0], query) if query else b""
