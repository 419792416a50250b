"""The routed endpoints, which read, decide, forward and record a request (ASGI)."""

import asyncio
import random
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from types import MappingProxyType
from typing import Any, Final, final

from starlette.types import Receive, Scope, Send

from prefill_router.agents import RequestReading
from prefill_router.data import Message, Prompt, prompt_text
from prefill_router.router import Forecast
from prefill_router.targets import Endpoint, Pool
from prefill_router_gateway.answer_text import AnswerText
from prefill_router_gateway.api.requested_targets import RequestedTargets, read_requested_targets
from prefill_router_gateway.decide import session_name
from prefill_router_gateway.errors import RefusalError
from prefill_router_gateway.forecast import NoForecastError
from prefill_router_gateway.guard import HELD_BODY, KEY, PLACE, ClientKey, SharedPlace
from prefill_router_gateway.protocol import (
    TRANSLATED,
    Envelope,
    OpenRouterOptions,
    RoutingPreferences,
    Splicer,
    ThinkingHint,
    ThinkingRule,
    asks_to_think,
    holds_state,
    read_cache_mark,
    read_envelope,
    scored_prompt,
    thinking_hints,
)
from prefill_router_gateway.proxy import (
    LACKING,
    BodyRules,
    ForwardedCall,
    ForwardRequest,
    SplicedBody,
    await_to_end,
)
from prefill_router_gateway.receipts import SampleDraft
from prefill_router_gateway.records import (
    ASIDE,
    AgentRequest,
    FallbackReason,
    Header,
    RoutingDecision,
    RoutingRequest,
    Scored,
)
from prefill_router_gateway.repeatable import MOST_BYTES, is_repeatable, is_text_turn
from prefill_router_gateway.runtime import (
    LONGEST_NAME,
    Gateway,
    RoutedRequest,
    Snapshot,
    plain_prompt,
    remember_stream,
    reply_headers,
    write_receipt,
)
from prefill_router_gateway.settings import GatewaySettings, KindSettings
from prefill_router_gateway.telemetry import Trace


@final
@dataclass(frozen=True, kw_only=True)
class IncomingRequest:
    """A request that was read.

    Attributes:
        question: Its properties for the decision.
        recorded: The same for its receipt. One that names its target has its conversation and agent
            there alone, since these neither decide about it nor move with it.
        model: The model that the client named.
        stream: Whether the answer is to be streamed.
        options: What OpenRouter's routing fields ask for; None where there are none.
        prompt: What the encoder reads; None for nothing. For a request that names its target, it is
            set only where prompts are kept.
        scored: The part of the request that the prompt is.
        splicer: Makes the bodies for targets from the received bytes.
        can_ask_usage: Whether token counts can be requested that the client didn't request.
        is_sampled: Whether it is to be kept with its answer to learn from.
        ask: The person's ask, by which it is kept as a turn; None where it is kept whole.
        thinks: Whether it asks the target to think before it answers.
        hints: The hints on thinking for targets that are called by a chat instead.
    """

    question: RoutingRequest
    recorded: RoutingRequest
    model: str
    stream: bool
    options: OpenRouterOptions | None
    prompt: Prompt | None
    scored: Scored
    splicer: Splicer
    can_ask_usage: bool
    is_sampled: bool
    ask: str | None
    thinks: bool
    hints: Mapping[str, ThinkingHint]


_DRAWS: Final = random.Random()
"""Draws samples; a generator of its own, since others may seed the module's."""


@final
class RoutedEndpoint:
    """One routed endpoint. It raises its refusals; the guard turns them into responses.

    Args:
        gateway: The gateway.
        endpoint: The endpoint.
        below: The path after the endpoint's own, for a call that targets answer like it.
    """

    def __init__(self, gateway: Gateway, endpoint: Endpoint, below: str = "") -> None:
        self._gateway, self._endpoint, self._below = gateway, endpoint, below.encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request; the guard has read its body."""
        at, gateway = time.time(), self._gateway
        live = gateway.live
        with live.scope(gateway.traces, scope["headers"], at=at) as trace:
            live, request, call = await self._decide(scope, receive, live, trace, at)
            with (
                gateway.count_in_flight(stream=call.stream),
                live.forwarder.call(call, receive, send) as forwarded,
            ):
                try:
                    await forwarded.find_answer(partial(reply_headers, live, request, None))
                    _release_body(scope, request, call)
                    remember_stream(live, gateway.sessions, request, forwarded.streamed)
                    target, retries = forwarded.target, forwarded.retries
                    own = reply_headers(live, request, target, retries=retries)
                    await forwarded.send_until_end(own)
                finally:
                    ending = self._end(live, request, forwarded, trace, scope.get(PLACE))
                    await await_to_end(ending)

    async def _end(
        self,
        live: Snapshot,
        request: RoutedRequest,
        forwarded: ForwardedCall,
        trace: Trace | None,
        place: SharedPlace | None,
    ) -> None:
        """Write the receipt, and then send the end of the answer."""
        recorders, outcome = self._gateway.recorders, forwarded.outcome()
        await write_receipt(recorders, live, request, outcome, trace=trace, place=place)
        await forwarded.send_end()

    async def _decide(
        self, scope: Scope, receive: Receive, live: Snapshot, trace: Trace | None, at: float
    ) -> tuple[Snapshot, RoutedRequest, ForwardRequest]:
        """The snapshot that decided, and the request; nothing else keeps the request's body."""
        began, arrived = time.perf_counter(), asyncio.get_running_loop().time()
        gateway = self._gateway
        incoming = read_incoming(
            self._endpoint,
            (await receive()).get("body", b""),
            scope["headers"],
            key=scope.get(KEY),
            settings=live.settings,
            pool=live.loaded.pool,
            lam=gateway.lam_set,
            at=at,
            hinted=live.bodies.hinted,
        )
        check_streams(gateway, stream=incoming.stream)
        if self._below:  # a chat has no such call, and its answer is no response to learn from
            question = replace(incoming.question, untranslatable=None)
            incoming = replace(incoming, is_sampled=False, question=question)
        live = live.deciding(incoming.question)
        choice, waited = await decide(gateway, live, incoming)
        check_streams(gateway, stream=incoming.stream)  # others may have opened meanwhile
        seconds = time.perf_counter() - began
        request = routed_request(live, incoming, choice, seconds=seconds, waited=waited)
        call = _build_call(live, incoming, request, scope, trace, arrived)
        if self._below:
            call = replace(call, below=self._below, lacking=LACKING)
        live.decider.reserve(choice, key=incoming.question.key)
        return live, request, call


def _release_body(scope: Scope, request: RoutedRequest, call: ForwardRequest) -> None:
    """Free the body, unless it is kept to learn from: then it is needed until the request ends."""
    call.body.release()
    if request.sample is None or not request.sample.body:
        scope[HELD_BODY].free()


def routed_request(
    live: Snapshot,
    incoming: IncomingRequest,
    choice: RoutingDecision,
    *,
    seconds: float,
    waited: float | None,
) -> RoutedRequest:
    """What the receipt of a request needs.

    Args:
        live: The snapshot that decided.
        incoming: The request.
        choice: The decision.
        seconds: The duration of the decision.
        waited: The seconds waited for the forecast; None where none was needed.
    """
    question, prompt, sample = incoming.recorded, incoming.prompt, None
    if incoming.is_sampled and prompt is not None:
        sample = SampleDraft(
            id=choice.id,
            at=question.at,
            share=live.settings.learning.share,
            endpoint=question.endpoint,
            body=incoming.splicer.body if incoming.ask is None else b"",
            answer=AnswerText(question.endpoint),
            prompt=plain_prompt(prompt),
            ask=incoming.ask,
        )
    keeps = live.settings.receipts.prompts and prompt is not None
    return RoutedRequest(
        question=question,
        choice=choice,
        requested=incoming.model[:LONGEST_NAME],
        stream=incoming.stream,
        scored=incoming.scored,
        options=incoming.options,
        prompt=plain_prompt(prompt) if keeps and prompt is not None else None,
        sample=sample,
        decision_seconds=seconds,
        forecast_seconds=waited,
    )


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
    decision = live.decider.begin(incoming.question)
    if not decision.needs_forecast:
        return live.decider.finish(decision, None), None
    began = time.perf_counter()
    forecast = await _make_forecast(live, incoming)
    waited = time.perf_counter() - began
    if counted:
        gateway.fallbacks.add(None if isinstance(forecast, Forecast) else forecast)
    if counted and isinstance(forecast, Forecast) and live.loaded.share is None:
        gateway.drift.add(forecast.bins)
    return live.decider.finish(decision, forecast), waited


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


async def _make_forecast(live: Snapshot, incoming: IncomingRequest) -> Forecast | FallbackReason:
    if incoming.prompt is None:
        return "no_text"
    try:
        return await live.forecaster.forecast(
            incoming.prompt, seconds=live.settings.routing.deadline_seconds
        )
    except NoForecastError as error:
        return error.reason


def _build_call(
    live: Snapshot,
    incoming: IncomingRequest,
    request: RoutedRequest,
    scope: Scope,
    trace: Trace | None,
    arrived: float,
) -> ForwardRequest:
    endpoint, choice, rules = request.question.endpoint, request.choice, live.bodies
    ask_usage = rules.ask_usage and incoming.can_ask_usage
    translated, hints = rules.chat_only.get(endpoint, {}), incoming.hints
    splicer, sample = incoming.splicer, request.sample
    return ForwardRequest(
        endpoint=endpoint,
        body=SplicedBody(
            splicer,
            endpoint=endpoint,
            rules=rules,
            ask_usage=ask_usage,
            hints=hints,
        ),
        order=choice.order if choice.deployment is None else (choice.deployment,),
        stream=request.stream,
        usage_added=ask_usage,
        headers=live.headers_on(scope["headers"], trace),
        stay=choice.tool_loop or choice.reason == "stored",
        input_tokens=choice.input_tokens,
        began=arrived,
        query=query_of(scope),
        conversation=choice.session or choice.id,
        answer=None if sample is None else sample.answer,
        translated=translated,
        thinking=_find_thinking(rules, endpoint, hints) if incoming.thinks else rules.thinking,
        hints=hints,
    )


def _find_thinking(
    rules: BodyRules, endpoint: Endpoint, hints: Mapping[str, ThinkingHint]
) -> set[str]:
    """The targets that may think for a request that asks; those called by a chat need a hint."""
    unhinted = rules.chat_only.get(endpoint, {}).keys() - hints.keys()
    return {*rules.thinking, *(rules.models.keys() - unhinted)}


_replace_odd = re.compile(rb"[^!-~]").sub


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
    hinted: Mapping[str, ThinkingRule] = MappingProxyType({}),
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
        hinted: The targets and deployments that get hints on thinking.

    Raises:
        RefusalError: It can't be read, or names a model or target that doesn't exist.
    """
    envelope = read_envelope(endpoint, body)
    requested = read_requested_targets(envelope, headers, key=key, pool=pool, settings=settings)
    preferences, is_routed = requested.preferences, requested.model.target is None
    scored = preferences.scored or settings.routing.scored
    reading = envelope.read(headers, settings.agents.harnesses)
    prompt, kind = None, KindSettings()
    if is_routed or settings.receipts.prompts:
        prompt = scored_prompt(envelope, scored, reading)
    if is_routed:
        kind = settings.agents.for_request(reading)
    question = _make_question(
        envelope, requested, kind, key=key, pool=pool, lam=lam, at=at, to_call=to_call
    )
    recorded = _add_conversation(question, envelope, preferences, settings, reading)
    if is_routed:  # one that names its target needs only its length
        question = recorded = _add_routing_fields(recorded, envelope, preferences, prompt, reading)
    is_sampled, ask = False, None
    if settings.learning.share and _may_sample(requested, question, key, pool):
        is_sampled, ask = _sample(settings, envelope, question, reading)
    return IncomingRequest(
        question=question,
        recorded=recorded,
        model=envelope.model,
        stream=envelope.stream,
        options=envelope.options,
        prompt=prompt,
        scored=scored,
        splicer=envelope.splicer,
        can_ask_usage=envelope.can_ask_usage,
        is_sampled=is_sampled,
        ask=ask,
        thinks=asks_to_think(envelope.value),
        hints=_read_hints(envelope, hinted, pool),
    )


def _make_question(
    envelope: Envelope,
    requested: RequestedTargets,
    kind: KindSettings,
    *,
    key: ClientKey | None,
    pool: Pool,
    lam: float | None,
    at: float,
    to_call: bool,
) -> RoutingRequest:
    """What is asked, from the body, the headers, the key and the settings of its agent's kind."""
    model, preferences = requested.model, requested.preferences
    lams: tuple[float | None, ...] = ()
    if model.target is None:
        lams = (preferences.lam, model.lam, requested.openrouter_lam, kind.lam, lam)
    return RoutingRequest(
        endpoint=envelope.endpoint,
        at=at,
        text_bytes=envelope.text_bytes,
        max_tokens=envelope.max_tokens,
        previous_response_id=envelope.previous_response_id,
        named=model.target,
        lam_asked=next((value for value in lams if value is not None), None),
        floor=kind.floor,
        max_cost=preferences.max_cost,
        allow=_expand(kind.targets, pool) if preferences.allow is None else preferences.allow,
        exclude=preferences.exclude,
        fallbacks=preferences.fallbacks,
        needs=envelope.needs if preferences.fallbacks else frozenset(),
        key=None if key is None else key.name,
        key_targets=requested.allowed,
        to_call=to_call,
        cache_mark=read_cache_mark(envelope.endpoint, envelope.value, envelope.splicer.body),
        **_check_translation(envelope, requested.names, pool) if to_call else {},
    )


def _may_sample(
    requested: RequestedTargets, question: RoutingRequest, key: ClientKey | None, pool: Pool
) -> bool:
    """Whether a request may be learned from.

    All targets must be open to it, and neither it nor its key may forbid it.
    """
    preferences = requested.preferences
    has_all = len(requested.names) == len(pool.names)
    is_open = has_all and question.allow is None and not preferences.exclude
    return is_open and preferences.learn and (key is None or key.learning)


def _read_hints(
    envelope: Envelope, hinted: Mapping[str, ThinkingRule], pool: Pool
) -> Mapping[str, ThinkingHint]:
    """The hints on thinking for the targets that don't serve the endpoint of a request."""
    endpoint, of = envelope.endpoint, pool.target_of
    if endpoint not in TRANSLATED:
        return {}
    rules = {n: rule for n, rule in hinted.items() if endpoint not in pool.serves(of.get(n, n))}
    return thinking_hints(rules, endpoint, envelope.value) if rules else {}


def _expand(names: frozenset[str] | None, pool: Pool) -> frozenset[str] | None:
    """The targets of a kind of requests; None for all."""
    return frozenset(pool.with_efforts(names)) if names else None


def _check_translation(envelope: Envelope, names: Sequence[str], pool: Pool) -> dict[str, Any]:
    """What a translation to a chat can't say and what it leaves out; empty where there is none."""
    endpoint = envelope.endpoint
    if endpoint not in TRANSLATED or all(endpoint in pool.serves(n) for n in names):
        return {}
    from prefill_router_gateway.protocol import left_out_hints, untranslatable  # for these alone

    value = envelope.value
    return {
        "untranslatable": untranslatable(endpoint, value),
        "hints": left_out_hints(endpoint, value),
    }


def _sample(
    settings: GatewaySettings,
    envelope: Envelope,
    question: RoutingRequest,
    reading: RequestReading,
) -> tuple[bool, str | None]:
    """Whether chance keeps a request to learn from, and the ask by which it is kept as a turn."""
    is_turn = reading.agent is not None or "tools" in envelope.needs
    ask = reading.scored_text if is_turn else None
    if _is_sampled(settings, envelope, question, ask):
        return True, ask
    return False, None


def _is_sampled(
    settings: GatewaySettings, envelope: Envelope, question: RoutingRequest, ask: str | None
) -> bool:
    """Whether chance keeps a request to learn from; only routed ones that answer a person.

    A turn is kept by its ask, any other only where it can be asked again. Of a turn without a
    conversation it isn't known who answered the rest.
    """
    if not question.to_call or question.named is not None or question.agent.kind in ASIDE:
        return False
    if question.session is None and (question.in_tool_loop or question.agent.is_ongoing):
        return False
    if _DRAWS.random() >= settings.learning.share:
        return False
    endpoint, value, needs = envelope.endpoint, envelope.value, envelope.needs
    if ask is not None:
        return question.scored_bytes <= MOST_BYTES and is_text_turn(endpoint, value, needs)
    return is_repeatable(endpoint, value, needs, size=len(envelope.splicer.body))


def _add_conversation(
    question: RoutingRequest,
    envelope: Envelope,
    preferences: RoutingPreferences,
    settings: GatewaySettings,
    reading: RequestReading,
) -> RoutingRequest:
    """The request with its conversation and its agent, which say what turn it belongs to."""
    session = None
    # a title doesn't say where its conversation belongs
    if reading.kind != "auxiliary" and question.endpoint != "embeddings":
        session = session_name(
            settings.sessions,
            header=preferences.session,
            hint=envelope.session_hint,
            key_turns=_key_turns(envelope, reading),
            key=question.key,
            conversation=reading.conversation,
        )
    return replace(
        question,
        session=session,
        in_tool_loop=envelope.in_tool_loop,
        agent=_agent_request(reading, settings, question.key),
    )


def _add_routing_fields(
    question: RoutingRequest,
    envelope: Envelope,
    preferences: RoutingPreferences,
    prompt: Prompt | None,
    reading: RequestReading,
) -> RoutingRequest:
    """The routing request with the fields that only a routing decision needs."""
    text = "" if prompt is None else prompt_text(prompt)
    size = len(text) if text.isascii() else len(text.encode("utf-8", "surrogatepass"))
    is_named = preferences.session is not None or reading.conversation is not None
    return replace(
        question,
        scored_bytes=size,
        needs=envelope.needs,
        opening=not is_named and len(envelope.turns) == len(envelope.key_turns),
        tool_call_ids=envelope.tool_call_ids,
        holds_state=holds_state(envelope.endpoint, envelope.value, envelope.splicer.body),
    )


def _key_turns(envelope: Envelope, reading: RequestReading) -> tuple[Message, ...]:
    """The turns that name a conversation; of an agent its first ask, since its own texts change."""
    if reading.agent is None:
        return envelope.key_turns
    return () if reading.opening is None else (Message("user", reading.opening),)


def _agent_request(
    reading: RequestReading, settings: GatewaySettings, key: str | None
) -> AgentRequest:
    parent = reading.parent
    if parent is not None:
        parent = session_name(
            settings.sessions, header=None, hint=None, key_turns=(), key=key, conversation=parent
        )
    return AgentRequest(
        agent=reading.agent,
        kind=reading.kind,
        turn=None if reading.turn is None else reading.turn[:LONGEST_NAME],
        type=None if reading.type is None else reading.type[:LONGEST_NAME],
        parent=parent,
        is_ongoing=reading.is_ongoing,
        failing_steps=reading.failing_steps,
        repeated_calls=reading.repeated_calls,
        stalled_steps=reading.stalled_steps,
        expected_requests=settings.agents.requests if _begins_task(reading) else 1.0,
    )


def _begins_task(reading: RequestReading) -> bool:
    """Whether an agent begins with what a person or another agent asks, in several requests."""
    is_task = reading.kind in ("main", "plan", "subagent")
    return reading.agent is not None and is_task and not reading.is_ongoing


def query_of(scope: Scope) -> bytes:
    """The query string of a request, with unsafe characters escaped for a target."""
    query: bytes = scope["query_string"]
    return _replace_odd(lambda match: b"%%%02X" % match[0][0], query) if query else b""
