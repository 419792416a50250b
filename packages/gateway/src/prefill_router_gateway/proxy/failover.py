"""Calls target after target until one begins to answer; after that there is no failover.

The attempts of a call are recorded and reported to the circuit breakers. The answers to passthrough
calls are forwarded unread: only their end is observed.
"""

import asyncio
import json
import random
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol, final, runtime_checkable

from prefill_router.endpoints import (
    Breakers,
    LineSplitter,
    forms_of_key,
    kind_of,
    parse_error,
    without_key,
)
from prefill_router.targets import Fields
from prefill_router_gateway.errors import (
    TOO_LONG,
    BrokenResponseError,
    ClientGoneError,
    RefusalError,
)
from prefill_router_gateway.proxy.chat_answer import AnswerWriter, TranslatedStream, read_answer
from prefill_router_gateway.proxy.client_connection import ClientConnection
from prefill_router_gateway.proxy.deployments import DeploymentOrder, ProviderEndpoint, RateHeadroom
from prefill_router_gateway.proxy.failures import (
    HARMLESS,
    OF_ONE_TARGET,
    RETRIED,
    AttemptFailedError,
    TargetRefusal,
    classify_body_error,
    classify_passthrough_refusal,
    classify_refusal,
)
from prefill_router_gateway.proxy.forward_request import (
    NO_FIXES,
    BodyFixes,
    ForwardRequest,
    hint_for,
)
from prefill_router_gateway.proxy.message_writer import MessageWriter, message_of
from prefill_router_gateway.proxy.response_metadata import (
    LONGEST_LINE,
    SEQUENCE_NUMBER,
    ResponseMetadata,
    StreamObserver,
    complete_lines,
    parsed,
)
from prefill_router_gateway.proxy.response_stream import ResponseStream
from prefill_router_gateway.proxy.response_writer import ResponseWriter, response_of
from prefill_router_gateway.records import AttemptEnd, Header, TargetAttempt
from prefill_router_gateway.settings import FailureSettings


@runtime_checkable
class AnswerStream(Protocol):
    """What a stream passes on its way to the client."""

    @property
    def facts(self) -> ResponseMetadata:
        """What has been read of it."""

    @property
    def sequence_number(self) -> int:
        """The number that the next event of a Responses stream would have."""

    def feed(self, piece: bytes) -> bytes:
        """Take received bytes, and return the bytes to forward."""

    def close(self) -> bytes:
        """Return the remaining bytes to forward at the end of the stream."""


_NAME = b'"sequence_number"'


@final
class PassthroughStream:
    """Takes the place of a `StreamObserver` where the gateway needs nothing from the events.

    Args:
        facts: Marked as ended at the end of the stream.
        secret: The target's key, which no line may quote; None for none.

    Attributes:
        facts: Marked as ended at the end of the stream.
        sequence_number: The number that the next event of a Responses stream would have.
    """

    def __init__(self, facts: ResponseMetadata, *, secret: bytes | None = None) -> None:
        self._split = LineSplitter(LONGEST_LINE)
        self.facts, self._secret = facts, secret
        self.sequence_number = 0

    def feed(self, piece: bytes) -> bytes:
        """Take received bytes, and return the bytes to forward.

        Raises:
            BrokenResponseError: A line is too long, or quotes the secret.
        """
        whole = complete_lines(self._split, piece)
        if self._secret is not None and self._secret in whole:
            raise BrokenResponseError("malformed")
        match = SEQUENCE_NUMBER.match(whole, whole.rfind(_NAME)) if _NAME in whole else None
        if match:
            self.sequence_number = int(match[1]) + 1
        return whole

    def close(self) -> bytes:
        """Return the remaining bytes to forward at the end of the stream."""
        self.facts.has_ended = True
        rest = self._split.close()
        return b"" if self._secret is not None and self._secret in rest else rest


@final
@dataclass(frozen=True, kw_only=True)
class ForwardContext:
    """The state that all calls share.

    Attributes:
        lines: The endpoint of each deployment, by name.
        target_of: The target of each deployment, by name.
        shared: What all efforts of a model share, as `Pool.deployment_names`.
        deployments: The order of the deployments, for the targets that have several.
        headroom: What remains of rate limits.
        watched: The deployments whose rate limits matter.
        failures: The settings for failures.
        keep_alive_seconds: The seconds of silence after which a client of a stream gets a byte;
            None for never.
        breakers: The circuit breakers of the targets.
        passing: Selects the response headers that the client gets.
        under_way: The number of calls in flight, by target.
        fixes: How the bodies of a deployment differ, once it has refused the usual ones.
        chance: The random generator for the jitter of retries.
    """

    lines: Mapping[str, ProviderEndpoint]
    target_of: Mapping[str, str]
    shared: Mapping[str, str]
    deployments: Mapping[str, DeploymentOrder]
    headroom: RateHeadroom
    watched: Collection[str]
    failures: FailureSettings
    keep_alive_seconds: float | None
    breakers: Breakers
    passing: Callable[[list[Header]], list[Header]]
    under_way: Counter[str]
    fixes: dict[str, BodyFixes]
    chance: random.Random


_LONGEST = 2**26  # bytes of a reply that isn't streamed
_LONGEST_ERROR = 2**20
_LONGEST_PARSED = 2**20  # bytes; parsing more would delay other requests
_LONGEST_PRELUDE = 2**20  # bytes before the first event of a stream
_FIRST_GOOD, _FIRST_ODD = 200, 300


@final
@dataclass(frozen=True, kw_only=True, slots=True)
class OpenResponse:
    """An answer that has begun.

    Attributes:
        status: Its HTTP status.
        headers: Its headers.
        facts: What has been read from it so far.
        body: The whole body, or the part of a stream that has arrived.
        arrival: The rest of a stream; None where the body is whole.
        watch: Reads the rest of a stream as it passes.
    """

    status: int
    headers: list[Header]
    facts: ResponseMetadata
    body: bytes
    arrival: ResponseStream | None = None
    watch: AnswerStream | None = None


async def open_answer(
    call: ForwardRequest,
    target: str,
    line: ProviderEndpoint,
    client: ClientConnection,
    fixes: BodyFixes = NO_FIXES,
) -> OpenResponse:
    """Call a target, and wait until its stream has begun or its reply is complete.

    Args:
        call: The request to forward.
        target: The deployment to call.
        line: Its endpoint.
        client: The client.
        fixes: As in `ForwardBody`.

    Raises:
        AttemptFailedError: There is no answer.
        ClientGoneError: The client has disconnected.
    """
    if target in call.translated:
        return await _open_translated(call, target, line, client, fixes)
    arrival: ResponseStream | None = None
    opened: OpenResponse | None = None
    try:
        body, thinks = call.body.for_target(target, fixes), target in call.thinking
        arrival = await line.call(call, body, client=client, thinks=thinks)
        opened = await _read(call, arrival, line.key)
    except BrokenResponseError as error:
        status = (arrival.status or None) if arrival is not None else None
        raise AttemptFailedError(error.end, status=status, cause=error.cause) from None
    finally:
        if arrival is not None and (opened is None or opened.arrival is None):
            client.stop_with(None)
            arrival.close()
    return opened


async def _open_translated(
    call: ForwardRequest,
    target: str,
    line: ProviderEndpoint,
    client: ClientConnection,
    fixes: BodyFixes,
) -> OpenResponse:
    """Call a target by a chat; the answer is translated to the API of the request.

    Raises:
        AttemptFailedError: There is no answer, or none that can be translated.
        ClientGoneError: The client has disconnected.
    """
    headers = [header for header in call.headers if not header[0].startswith(b"anthropic-")]
    chat = replace(call, endpoint="chat", translated=(), query=b"", answer=None, headers=headers)
    try:
        opened = await open_answer(chat, target, line, client, fixes)
    except AttemptFailedError as failure:
        if failure.refusal is None or call.endpoint != "messages":  # others share a chat's shape
            raise
        raise AttemptFailedError(
            failure.end,
            cause=failure.cause,
            location=failure.location,
            status=failure.status,
            wait=failure.wait,
            refusal=_translated_refusal(failure.refusal),
            rename=failure.rename,
        ) from None
    except (RecursionError, RefusalError):  # only where it was barely read before
        body = b'{"error":{"message":"the body is nested too deeply; use fewer levels"}}'
        refusal = TargetRefusal(status=400, headers=[], body=body)
        if call.endpoint == "messages":
            refusal = _translated_refusal(refusal)
        raise AttemptFailedError("refused", status=400, refusal=refusal) from None
    if isinstance(opened.watch, StreamObserver):
        writer = _writer(call, target)
        stream = TranslatedStream(opened.watch, writer, input_tokens=call.input_tokens)
        return replace(opened, body=stream.translate(opened.body), watch=stream)
    usage, _ = opened.facts.usage(input_tokens=call.input_tokens)
    answer = read_answer(parsed(opened.body) or {})
    if answer is None:
        raise AttemptFailedError("malformed", status=opened.status)
    write = message_of if call.endpoint == "messages" else response_of
    body = json.dumps(write(answer, usage, target=target)).encode()
    return replace(opened, body=without_key(body, forms_of_key(line.key)))


def _writer(call: ForwardRequest, target: str) -> AnswerWriter:
    if call.endpoint == "messages":
        return MessageWriter(answer=call.answer, input_tokens=call.input_tokens, target=target)
    return ResponseWriter(answer=call.answer, target=target)


def _translated_refusal(refusal: TargetRefusal) -> TargetRefusal:
    error_body = parse_error(refusal.body)
    words = error_body.words or "the target refused the request"
    if kind_of(error_body, refusal.status) == "context_too_long" and TOO_LONG not in words.lower():
        words = f"{TOO_LONG}: {words}"
    error = RefusalError(words, status=refusal.status).body(anthropic=True)
    headers = [header for header in refusal.headers if header[0] != b"content-type"]
    kind = (b"content-type", b"application/json")
    return replace(refusal, headers=[*headers, kind], body=json.dumps(error).encode())


async def _read(call: ForwardRequest, arrival: ResponseStream, key: str | None) -> OpenResponse:
    status = arrival.status
    fields = dict(arrival.headers)
    kind, encoding = (fields.get(n, b"").lower() for n in (b"content-type", b"content-encoding"))
    if encoding in (b"gzip", b"x-gzip", b"deflate"):
        arrival.inflate()
        arrival.headers = _without(arrival.headers, b"content-encoding")
        encoding = b""
    if not _FIRST_GOOD <= status < _FIRST_ODD:
        is_readable = encoding in (b"", b"identity")
        body = await _read_error(arrival) if is_readable else b""
        headers = arrival.headers if is_readable else _without(arrival.headers, b"content-encoding")
        refusal = TargetRefusal(status=status, headers=headers, body=body)
        if call.is_plain or status in call.lacking:
            raise classify_passthrough_refusal(refusal, key=key, lacking=call.lacking)
        raise classify_refusal(refusal, key=key)
    if encoding not in (b"", b"identity"):  # which wasn't requested
        name = encoding.decode("latin-1")
        raise AttemptFailedError("malformed", status=status, cause="encoding", encoding=name)
    if b"html" in kind:
        raise AttemptFailedError("malformed", status=status, cause="web_page")
    if call.is_plain:
        return await _open_plain(call, arrival, key, stream=b"event-stream" in kind)
    if b"event-stream" in kind:
        return await _open_stream(call, arrival, key)
    if call.stream and await arrival.begins_as_events():
        arrival.headers = [*_without(arrival.headers, b"content-type"), _EVENT_STREAM]
        return await _open_stream(call, arrival, key)
    return await _read_whole(call, arrival, key)


def _without(headers: list[Header], name: bytes) -> list[Header]:
    return [header for header in headers if header[0] != name]


_EVENT_STREAM = (b"content-type", b"text/event-stream")


async def _open_plain(
    call: ForwardRequest, arrival: ResponseStream, key: str | None, *, stream: bool
) -> OpenResponse:
    """Open the answer to a passthrough call, which may be empty or contain errors.

    An error may quote the target's key; then it isn't forwarded.
    """
    facts = ResponseMetadata(call.endpoint, secret=key)
    secret = None if key is None else key.encode()
    if stream:
        return OpenResponse(
            status=arrival.status,
            headers=arrival.headers,
            facts=facts,
            body=b"",
            arrival=arrival,
            watch=PassthroughStream(facts, secret=secret),
        )
    body = await _read_all(arrival)
    if secret is not None and secret in body:
        raise AttemptFailedError("unauthorised", status=arrival.status)
    facts.has_ended = True
    return OpenResponse(status=arrival.status, headers=arrival.headers, facts=facts, body=body)


async def _open_stream(
    call: ForwardRequest, arrival: ResponseStream, key: str | None
) -> OpenResponse:
    watch = StreamObserver(
        call.endpoint, leave_out_usage=call.usage_added, secret=key, answer=call.answer
    )
    facts, pieces, length = watch.facts, list[bytes](), 0
    while not watch.is_open:
        arrival.await_first()  # any byte shows that the target lives
        piece = await arrival.piece()
        pieces.append(watch.feed(piece) if piece else watch.close())
        length += len(pieces[-1])
        if facts.error is not None and not watch.is_open:
            raise classify_body_error(facts.error, status=arrival.status)
        is_odd = watch.is_malformed or facts.has_ended or length > _LONGEST_PRELUDE
        if is_odd and not watch.is_open:
            raise AttemptFailedError("malformed", status=arrival.status)
        if not piece and not watch.is_open:
            raise AttemptFailedError("broken_off", status=arrival.status)
    return OpenResponse(
        status=arrival.status,
        headers=arrival.headers,
        facts=facts,
        body=b"".join(pieces),
        arrival=arrival,
        watch=watch,
    )


async def _read_whole(
    call: ForwardRequest, arrival: ResponseStream, key: str | None
) -> OpenResponse:
    body = await _read_all(arrival)
    facts = ResponseMetadata(call.endpoint, secret=key)
    if len(body) > _LONGEST_PARSED:
        if not (body.lstrip()[:1] == b"{" and body.rstrip()[-1:] == b"}"):
            raise AttemptFailedError("malformed", status=arrival.status)
        facts.take_end(body)
    else:
        value = parsed(body)
        if value is None:
            raise AttemptFailedError("malformed", status=arrival.status)
        facts.take(value)
    if facts.error is not None:
        raise classify_body_error(facts.error, status=arrival.status)
    facts.has_ended = True
    if not facts.has_output_count:
        facts.count(body)
    data = without_key(body, forms_of_key(key))
    return OpenResponse(status=arrival.status, headers=arrival.headers, facts=facts, body=data)


async def _read_all(arrival: ResponseStream) -> bytes:
    pieces, length = [], 0
    while piece := await arrival.piece():
        pieces.append(piece)
        length += len(piece)
        if length > _LONGEST:
            raise AttemptFailedError("malformed", status=arrival.status)
    return b"".join(pieces)


async def _read_error(arrival: ResponseStream) -> bytes:
    """Read an error's body, as far as it arrives."""
    pieces, length = [], 0
    try:
        while (piece := await arrival.piece()) and length < _LONGEST_ERROR:
            pieces.append(piece)
            length += len(piece)
    except BrokenResponseError as error:
        if error.end == "disconnected":
            raise
    return b"".join(pieces)


_MOST_FIXES = 2  # one of each kind
_ABOUT_FIELDS: tuple[AttemptEnd, ...] = ("unsupported", "refused")
_PATIENCE = 2.0  # seconds; where a target asks for a longer wait, the next one is called instead


@final
class CallAttempts:
    """The attempts of one call, in order.

    Args:
        ways: The state that all calls share.
        call: The call.
        client: The client.

    Attributes:
        attempts: The attempts that have ended.
        deployment: The deployment that is being called or answers; None if none.
        calls: How often an endpoint was called.
        wait: The shortest wait in seconds that a target asked for; None if none did.
        sent_hints: The fields by which the latest target was asked to think.
    """

    def __init__(
        self, ways: ForwardContext, call: ForwardRequest, client: ClientConnection
    ) -> None:
        self._ways, self._call, self._client = ways, call, client
        self._clock = asyncio.get_running_loop().time
        self._began = 0.0
        self.deployment: str | None = None
        self.attempts: list[TargetAttempt] = []
        self._unreached: set[str] = set()
        self.calls = 0
        self.wait: float | None = None
        self.sent_hints: Fields = {}

    @property
    def target(self) -> str | None:
        """The target that is being called or answers; None if none."""
        return None if self.deployment is None else self._ways.target_of[self.deployment]

    @property
    def last_target(self) -> str | None:
        """The target that was called last; None if none was."""
        targets = (a.target for a in reversed(self.attempts) if a.end != "breaker_open")
        return next(targets, None)

    def end(
        self,
        end: AttemptEnd,
        *,
        status: int | None,
        silent: bool = False,
        failure: AttemptFailedError | None = None,
    ) -> None:
        """Record the end of the current attempt, if there is one.

        Args:
            end: How it ended.
            status: The HTTP status of the target's response; None without one.
            silent: Whether to keep it from the target's breaker.
            failure: What else is known of a failure.
        """
        name, self.deployment = self.deployment, None
        if name is None:
            return
        self._ways.under_way[self._ways.target_of[name]] -= 1
        words = None
        if end not in ("answered", "disconnected"):
            failure = failure or AttemptFailedError(end, status=status)
            words = self._ways.lines[name].describe(failure)
        self._add(name, end, status, self._clock() - self._began, words)
        if end == "connect":
            self._unreached.add(self._ways.lines[name].origin)
        breakers = self._ways.breakers
        if not silent and (end == "answered" or end in HARMLESS):
            breakers.record_success(name)
        elif end == "disconnected":
            breakers.release(name)
        elif words is not None and not silent:
            breakers.record_failure(name, words)

    def _add(
        self,
        name: str,
        end: AttemptEnd,
        status: int | None,
        seconds: float,
        failure: str | None = None,
    ) -> None:
        target = self._ways.target_of[name]
        self.attempts.append(
            TargetAttempt(
                target=target,
                end=end,
                status=status,
                seconds=seconds,
                deployment=None if target == name else name,
                failure=failure,
            )
        )

    async def find_answer(self) -> OpenResponse | TargetRefusal | None:
        """Find an answer that has begun, or a refusal that only the client can resolve, or None.

        Targets with an open breaker are skipped, unless all have one. A target fails when all its
        deployments have, and with it the other efforts of its model.

        Raises:
            ClientGoneError: The client has disconnected.
        """
        shared, failed = self._ways.shared, set[str]()
        order = self._call.order[:1] if self._call.stay else self._call.order
        result: OpenResponse | AttemptFailedError | None = None
        target_count, waiting = 0, list(order)
        while waiting and target_count < self._ways.failures.targets:
            target = self._pop_reachable(waiting)
            model = shared.get(target, target)
            if model in failed:
                continue
            answer = await self._ask_target(target)
            if answer is None:
                continue
            target_count, result = target_count + 1, answer
            if isinstance(result, OpenResponse) or result.end == "refused":
                break
            if result.end not in OF_ONE_TARGET:
                failed.add(model)
        if result is None:
            result = await self._ask(self._deployments(order[0])[0])
        if isinstance(result, OpenResponse):
            return result
        ends = {attempt.end for attempt in self.attempts if attempt.end != "breaker_open"}
        only_client = self.attempts[-1].end == "refused" or ends <= OF_ONE_TARGET
        is_alone = ends == {"rate_limited"} and len({a.target for a in self.attempts}) == 1
        return result.refusal if only_client or is_alone else None

    def _pop_reachable(self, waiting: list[str]) -> str:
        """Take the first target with a server that this request hasn't failed to reach, if any."""
        unreached = self._unreached
        for place, target in enumerate(waiting if unreached else ()):
            if {self._ways.lines[name].origin for name in self._deployments(target)} - unreached:
                return waiting.pop(place)
        return waiting.pop(0)

    def _deployments(self, target: str) -> Sequence[str]:
        order, call = self._ways.deployments.get(target), self._call
        return (target,) if order is None else order(call.conversation, call.input_tokens)

    async def _ask_target(self, target: str) -> OpenResponse | AttemptFailedError | None:
        """Call a target's deployments until one answers; None where all have an open breaker.

        Only the last one is retried: for the others, the next one is the retry.
        """
        breakers, result = self._ways.breakers, None
        names = self._deployments(target)
        for place, name in enumerate(names, 1):
            if not (breakers.allow(name) and await breakers.claim_trial(name)):
                self._add(name, "breaker_open", None, 0.0)
                continue
            is_last = all(breakers.is_open(other) for other in names[place:])
            result = await self._ask(name, retries=self._ways.failures.retries if is_last else 0)
            if isinstance(result, OpenResponse) or result.end == "refused":
                break
        return result

    async def _ask(
        self, name: str, *, retries: int | None = None
    ) -> OpenResponse | AttemptFailedError:
        """Call one deployment, with retries where they may help."""
        failures, only_limited = self._ways.failures, True
        retries = failures.retries if retries is None else retries
        for turn in range(retries + 1):
            result = await self._try(name)
            result = await self._try_fixed(name, result)
            if isinstance(result, OpenResponse):
                return result
            pause = failures.backoff_seconds * 2**turn * self._ways.chance.uniform(0.5, 1.0)
            is_last = turn == retries or result.end not in RETRIED
            if result.wait is not None:
                self.wait = result.wait if self.wait is None else min(self.wait, result.wait)
                is_last |= result.wait > _PATIENCE
                pause = max(pause, result.wait)
            only_limited &= result.end == "rate_limited"
            if only_limited and is_last:
                self._ways.breakers.record_failure(name, self._ways.lines[name].describe(result))
            if is_last or self._ways.breakers.state(name) == "open":
                break
            await self._client.wait(pause)
        return result

    async def _try_fixed(
        self, name: str, result: OpenResponse | AttemptFailedError
    ) -> OpenResponse | AttemptFailedError:
        """Call a deployment with a body that it takes; where it answers, this is remembered."""
        fixes = self._ways.fixes.get(name, NO_FIXES)
        for _ in range(_MOST_FIXES):
            if isinstance(result, OpenResponse):
                break
            further = self._fixes_after(name, fixes, result)
            if further == fixes:
                break
            fixes, result = further, await self._try(name, further)
            if isinstance(result, OpenResponse):
                self._ways.fixes[name] = fixes
        return result

    def _fixes_after(self, name: str, fixes: BodyFixes, refused: AttemptFailedError) -> BodyFixes:
        """What to change of a body that was refused; the same where nothing is known to help."""
        if refused.rename is not None:
            return replace(fixes, rename=refused.rename)
        hint = hint_for(self._call.hints, name, fixes)
        if hint is None or refused.refusal is None or refused.end not in _ABOUT_FIELDS:
            return fixes
        if not any(field.encode() in refused.refusal.body for field in hint.fields):
            return fixes
        return replace(fixes, refused_hints=fixes.refused_hints | {hint.name})

    async def _try(
        self, name: str, fixes: BodyFixes | None = None
    ) -> OpenResponse | AttemptFailedError:
        ways, self.deployment, self._began = self._ways, name, self._clock()
        ways.under_way[ways.target_of[name]] += 1
        self.calls += 1
        if self._call.answer is not None:
            self._call.answer.clear()  # of a target that was called before
        try:
            fixes = fixes or ways.fixes.get(name, NO_FIXES)
            hint = hint_for(self._call.hints, name, fixes)
            self.sent_hints = {} if hint is None else hint.fields
            opened = await open_answer(self._call, name, ways.lines[name], self._client, fixes)
        except AttemptFailedError as failure:
            if failure.end == "disconnected":
                raise ClientGoneError from None
            # a rate limit that a retry overcomes says nothing about the target
            is_limited = failure.end == "rate_limited"
            self.end(failure.end, status=failure.status, silent=is_limited, failure=failure)
            if name in ways.watched and is_limited:
                ways.headroom.refused(name, failure.wait)
            return failure
        if name in ways.watched:
            ways.headroom.observe(name, opened.headers)
        ways.breakers.record_start(name)
        return opened
