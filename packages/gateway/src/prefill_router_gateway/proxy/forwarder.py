"""Forwards calls to the targets of a pool: finds one that answers, and forwards its answer."""

import asyncio
import json
import os
import random
from collections import Counter
from collections.abc import Callable, Coroutine, Mapping
from contextlib import suppress
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, final

from prefill_router.endpoints import Breakers, BreakerState, provider_keys
from prefill_router.targets import Pool
from prefill_router_gateway.errors import BrokenResponseError, ClientGoneError, RefusalError
from prefill_router_gateway.proxy.chat_answer import TranslatedStream
from prefill_router_gateway.proxy.client_connection import ClientConnection, Receive, Send
from prefill_router_gateway.proxy.deployments import DeploymentOrder, ProviderEndpoint, RateHeadroom
from prefill_router_gateway.proxy.failover import (
    AnswerStream,
    CallAttempts,
    ForwardContext,
    OpenResponse,
)
from prefill_router_gateway.proxy.failures import (
    HARMLESS,
    TargetRefusal,
    cut_event,
    error_event,
    no_answer_error,
    refusal_event,
    stream_error_end,
)
from prefill_router_gateway.proxy.forward_request import ForwardRequest
from prefill_router_gateway.proxy.keep_alive import KeepAlive, comments
from prefill_router_gateway.proxy.response_stream import ResponseStream
from prefill_router_gateway.records import (
    AttemptEnd,
    Header,
    OutcomeKind,
    RequestOutcome,
    TargetAttempt,
)
from prefill_router_gateway.settings import FailureSettings


@final
@dataclass(frozen=True, kw_only=True)
class TargetState:
    """The state of a target.

    Attributes:
        breaker: The state of its circuit breaker.
        failures: The number of failed calls in a row.
        opened: How often its breaker has opened.
        under_way: The number of calls in flight.
    """

    breaker: BreakerState
    failures: int
    opened: int
    under_way: int


@final
class Forwarder:
    """Forwards calls to the targets of one pool; make it where the event loop runs.

    Args:
        pool: The targets.
        failures: The settings for failures.
        breakers: The circuit breakers of its deployments; they may outlive it.
        passing: Selects the response headers that the client gets.
        environment: The variables that hold the keys; by default the process's environment.
        headroom: What remains of rate limits; it may outlive it too.
        keep_alive_seconds: The seconds of silence after which a client of a stream gets a byte;
            None for never.
        watch_all: Whether to read the rate limits of all targets, not only of those with several
            endpoints.

    Raises:
        ConfigError: A key isn't set or isn't valid, a target has no endpoint, or the
            environment's proxies or certificates can't be used.
    """

    def __init__(
        self,
        pool: Pool,
        *,
        failures: FailureSettings,
        breakers: Breakers,
        passing: Callable[[list[Header]], list[Header]],
        environment: Mapping[str, str] | None = None,
        headroom: RateHeadroom | None = None,
        keep_alive_seconds: float | None = None,
        watch_all: bool = False,
    ) -> None:
        keys = provider_keys(pool, os.environ if environment is None else environment)
        lines = {p: ProviderEndpoint(p, key, failures=failures) for p, key in keys.items()}
        self._names = pool.names
        self._breakers = breakers
        self._lines = tuple(lines.values())
        self._under_way: Counter[str] = Counter()
        headroom = RateHeadroom() if headroom is None else headroom
        several = {t.name: DeploymentOrder(t, headroom) for t in pool if t.endpoints}
        deployed = pool.deployment_pool
        self._ways = ForwardContext(
            lines={name: lines[deployed.provider_of(name)] for name in deployed.names},
            target_of=pool.target_of,
            shared=pool.deployment_names,
            deployments=several,
            headroom=headroom,
            watched={n for n, of in pool.target_of.items() if watch_all or of in several},
            failures=failures,
            keep_alive_seconds=keep_alive_seconds,
            breakers=breakers,
            passing=passing,
            under_way=self._under_way,
            fixes={},
            chance=random.Random(),
        )

    def call(self, request: ForwardRequest, receive: Receive, send: Send) -> "ForwardedCall":
        """Begin to forward a request, which has been read.

        Args:
            request: The request, for targets of the pool.
            receive: ASGI's `receive`, which reports a disconnect.
            send: ASGI's `send`.
        """
        return ForwardedCall(self._ways, request, ClientConnection(receive, send))

    async def close(self) -> None:
        """Close idle connections, now and later; calls in flight go on to their end."""
        for line in self._lines:
            await line.close()

    def state(self) -> dict[str, TargetState]:
        """The state of each target, by name."""
        return {
            name: TargetState(
                breaker=self._breakers.state(name),
                failures=self._breakers.failures(name),
                opened=self._breakers.count_openings(name),
                under_way=self._under_way[name],
            )
            for name in self._names
        }


async def await_to_end(ending: Coroutine[Any, Any, None]) -> None:
    """Await the end of a call; once this task was cancelled, no further cancellation stops it."""
    task = asyncio.current_task()
    if task is not None and task.cancelling():
        await asyncio.shield(ending)
    else:
        await ending


_LAST_SECONDS = 1.0  # how long to wait for a stream to close once its answer is complete
_STARTED = 200  # the status of a stream that began before its answer
_NO_STREAM = "the target answered as a whole, where a stream was requested"
_LEFT = 499  # the recorded status of a request whose client disconnected
_FRAMING = frozenset((b"content-length", b"transfer-encoding", b"connection", b"keep-alive"))


@final
class ForwardedCall:
    """One forwarded call.

    Within its `with` block, `find_answer`, `send_until_end` and `send_end` follow one another.
    Before the last one its owner records the `outcome`, so that the client gets the last byte only
    then. None of them raises where the client disconnects: then that is the outcome.

    Args:
        ways: The state that all calls share.
        request: The request to forward.
        client: The client.
    """

    def __init__(
        self, ways: ForwardContext, request: ForwardRequest, client: ClientConnection
    ) -> None:
        self._ways, self._request, self._client = ways, request, client
        self._clock = asyncio.get_running_loop().time
        self._began = self._clock() if request.began is None else request.began
        self._track = CallAttempts(ways, request, client)
        self._response: OpenResponse | TargetRefusal | None = None
        self._target: str | None = None
        self._first_byte: float | None = None
        self._outcome: RequestOutcome | None = None
        self._whole: tuple[int, list[Header], bytes] | None = None  # a response to send at the end
        self._last: bytes | None = None  # the piece of a stream to send at the end
        self._goes_on = False  # a stream's end mark has arrived, but not the end of the response
        self._is_open = False  # whether a stream is to be closed

    def __enter__(self) -> "ForwardedCall":
        self._client.watch()
        return self

    def __exit__(self, *_: object) -> None:
        self._close_stream()
        self._client.close()

    @property
    def target(self) -> str | None:
        """The target whose answer or refusal the client gets; None for none."""
        return (
            self._track.last_target if isinstance(self._response, TargetRefusal) else self._target
        )

    @property
    def attempts(self) -> tuple[TargetAttempt, ...]:
        """The attempts that have ended."""
        return tuple(self._track.attempts)

    @property
    def retries(self) -> int:
        """How many calls followed the first."""
        return max(0, self._track.calls - 1)

    @property
    def streamed(self) -> tuple[str, str] | None:
        """The deployment whose stream has begun, and the answer's id; None where unknown."""
        response, deployment = self._response, self._track.deployment
        if not isinstance(response, OpenResponse) or response.arrival is None or deployment is None:
            return None
        name = response.facts.response_id
        return None if name is None else (deployment, name)

    async def find_answer(self, early: Callable[[], list[Header]] | None = None) -> None:
        """Call target after target until one answers; bodies are no longer needed then.

        Args:
            early: Makes the gateway's own headers for a client whose stream begins before there is
                an answer, since targets are silent. None where it waits for them.
        """
        try:
            async with self._keep_alive(early, is_on=early is not None and self._request.stream):
                response = self._response = await self._track.find_answer()
            if isinstance(response, OpenResponse):
                self._target, self._is_open = self._track.target, response.arrival is not None
                if not self._is_open:
                    self._take_whole(response)
        except ClientGoneError:
            self._leave("disconnected")
        except asyncio.CancelledError:
            self._stop()
            raise

    async def send_until_end(self, own: list[Header]) -> None:
        """Send the response, but not its end.

        Args:
            own: The gateway's own response headers.
        """
        response = self._response
        if self._outcome is not None:
            return
        try:
            if self._client.has_started:
                await self._send_late(response, own)
            elif response is None:
                self._fail(own)
            elif isinstance(response, TargetRefusal):
                self._refuse(response, own)
            elif response.arrival is None or response.watch is None:
                self._finish("answered", response.status)
                self._whole = self._frame(response.status, response.headers, response.body, own)
            else:
                await self._client.start(response.status, self._headers(response.headers, own))
                await self._send_stream(response, response.arrival, response.watch)
        except ClientGoneError:
            self._leave("disconnected")

    def outcome(self) -> RequestOutcome:
        """How the request ended; it ends here if the gateway is stopping, or failed itself."""
        if self._outcome is None:
            return self._leave("cut" if self._client.has_started else "failed")
        return self._outcome

    async def send_end(self) -> None:
        """Send the end of the response, with an error event where the gateway is stopping."""
        with suppress(ClientGoneError):
            if self._whole is not None:
                status, headers, body = self._whole
                await self._client.start(status, headers)
                await self._client.body(body, more=False)
            elif self._last is not None:
                last = await self._send_rest(self._last) if self._goes_on else self._last
                await self._client.body(last, more=False)

    def _keep_alive(
        self, headers: Callable[[], list[Header]] | None = None, *, is_on: bool
    ) -> KeepAlive:
        seconds = self._ways.keep_alive_seconds if is_on else None
        endpoint = self._request.endpoint
        return KeepAlive(self._client, seconds=seconds, endpoint=endpoint, headers=headers)

    def _stop(self) -> None:
        """End what the client has of a stream, since the gateway is stopping."""
        if self._client.has_started:
            response = self._response if isinstance(self._response, OpenResponse) else None
            watch = None if response is None else response.watch
            number = 0 if watch is None else watch.sequence_number
            self._last = cut_event(self._request.endpoint, "disconnected", number=number)

    # Answers.

    async def _send_late(
        self, response: OpenResponse | TargetRefusal | None, own: list[Header]
    ) -> None:
        """Send what was found for a client whose stream has begun without it."""
        endpoint = self._request.endpoint
        if isinstance(response, OpenResponse) and response.arrival and response.watch:
            await self._client.body(comments(own))
            await self._send_stream(response, response.arrival, response.watch)
        elif isinstance(response, TargetRefusal):
            self._end_refused(_STARTED)
            self._last = refusal_event(endpoint, response)
        elif response is not None:
            error = RefusalError(_NO_STREAM, status=502, kind="upstream_error", code="no_stream")
            self._finish("cut", _STARTED)
            self._last = error_event(endpoint, error)
        else:
            error = no_answer_error(self._track.attempts, wait=self._track.wait)
            self._finish("failed", _STARTED)
            self._last = error_event(endpoint, error)

    def _take_whole(self, answer: OpenResponse) -> None:
        self._client.check()
        self._first_byte = self._clock()
        self._track.end("answered", status=answer.status)
        if self._request.answer is not None:
            self._request.answer.take(answer.body)

    async def _send_stream(
        self,
        answer: OpenResponse,
        arrival: ResponseStream,
        watch: AnswerStream,
    ) -> None:
        piece = answer.body
        self._first_byte = self._clock()
        is_routed = not self._request.is_plain
        try:
            while not watch.facts.has_ended:
                if piece:
                    await self._client.body(piece)
                arrival.await_next()
                async with self._keep_alive(is_on=is_routed):
                    data = await arrival.piece()
                if not data:
                    self._end_stream(answer, watch.close(), "broken_off")
                    return
                piece = watch.feed(data)
            self._conclude(answer, "broken_off")
            self._last, self._goes_on = piece, True
        except BrokenResponseError as error:
            if error.end == "disconnected":
                raise ClientGoneError from None
            is_translated = isinstance(watch, TranslatedStream) and answer.facts.is_complete
            self._end_stream(answer, watch.close() if is_translated else b"", error.end)
        except asyncio.CancelledError:  # the gateway is stopping, which isn't the target's fault
            self._stop()
            raise
        finally:
            if not self._goes_on:
                self._close_stream()

    async def _send_rest(self, piece: bytes) -> bytes:
        """Send what a stream has behind the end of its answer, and return the last of it."""
        response = self._response
        if (
            not isinstance(response, OpenResponse)
            or response.arrival is None
            or response.watch is None
        ):
            return piece
        arrival, watch = response.arrival, response.watch
        try:
            arrival.limit(self._clock() + _LAST_SECONDS, "silence")
            while True:
                if piece:
                    await self._client.body(piece)
                data = await arrival.piece()
                if not data:
                    return watch.close()
                piece = watch.feed(data)
        except BrokenResponseError as error:
            if error.end == "disconnected":
                raise ClientGoneError from None
            return b""

    def _end_stream(self, answer: OpenResponse, rest: bytes, end: AttemptEnd) -> None:
        """End a stream, with an error event if its answer is incomplete."""
        facts = answer.facts
        if not facts.is_complete and facts.error is None:
            number = answer.watch.sequence_number if answer.watch is not None else 0
            rest += cut_event(self._request.endpoint, end, number=number)
        self._conclude(answer, end)
        self._last = rest

    def _conclude(self, answer: OpenResponse, end: AttemptEnd) -> None:
        """Note how a stream ended; `end` applies to an incomplete one."""
        facts = answer.facts
        if facts.error is not None:
            end = stream_error_end(facts.error)
            end = "server_error" if end in HARMLESS else end
        elif facts.is_complete:
            end = "answered"
        self._track.end(end, status=answer.status)
        self._finish("answered" if end == "answered" else "cut", answer.status)

    def _close_stream(self) -> None:
        response, is_open = self._response, self._is_open
        self._is_open = False
        if is_open and isinstance(response, OpenResponse) and response.arrival is not None:
            self._client.stop_with(None)
            response.arrival.close()

    # Refusals and failures.

    def _refuse(self, refusal: TargetRefusal, own: list[Header]) -> None:
        self._end_refused(refusal.status)
        self._whole = self._frame(refusal.status, refusal.headers, refusal.body, own)

    def _end_refused(self, status: int) -> None:
        self._client.check()
        self._target = self._track.last_target
        self._first_byte = self._clock()
        is_limited = self._track.attempts[-1].end == "rate_limited"
        self._finish("failed" if is_limited else "refused", status)

    def _fail(self, own: list[Header]) -> None:
        error = no_answer_error(self._track.attempts, wait=self._track.wait)
        body = json.dumps(error.body(anthropic=self._request.endpoint == "messages")).encode()
        headers = [
            (b"content-type", b"application/json"),
            (b"content-length", b"%d" % len(body)),
            *((name.encode(), value.encode()) for name, value in error.headers.items()),
            *own,
        ]
        self._finish("failed", error.status)
        self._whole = (error.status, headers, body)

    def _leave(self, kind: OutcomeKind) -> RequestOutcome:
        """Note an end that the target didn't cause."""
        status = self._response.status if isinstance(self._response, OpenResponse) else None
        self._track.end("disconnected", status=status)
        return self._finish(kind, _LEFT if status is None else status)

    # Parts of every response.

    def _frame(
        self, status: int, headers: list[Header], body: bytes, own: list[Header]
    ) -> tuple[int, list[Header], bytes]:
        framed = self._headers(headers, own)
        if status != HTTPStatus.NO_CONTENT:  # it must not have a length (RFC 9110, 8.6)
            framed.append((b"content-length", b"%d" % len(body)))
        return status, framed, body

    def _headers(self, headers: list[Header], own: list[Header]) -> list[Header]:
        """The target's response headers that are forwarded, and the gateway's own."""
        return [*(h for h in self._ways.passing(headers) if h[0] not in _FRAMING), *own]

    def _finish(self, kind: OutcomeKind, status: int) -> RequestOutcome:
        usage = guessed = None
        facts = self._response.facts if isinstance(self._response, OpenResponse) else None
        if facts is not None:
            usage, guessed = facts.usage(input_tokens=self._request.input_tokens)
        now, first, attempts = self._clock(), self._first_byte, self.attempts
        self._outcome = RequestOutcome(
            kind=kind,
            target=self._target,
            status=status,
            attempts=attempts,
            usage=usage,
            usage_is_estimated=bool(guessed),
            response_id=facts.response_id if facts is not None else None,
            tool_calls=facts.tool_calls if facts is not None else (),
            first_byte_seconds=None if first is None else first - self._began,
            total_seconds=now - self._began,
            deployment=attempts[-1].deployment if attempts and self._target is not None else None,
            sent_hints=self._track.sent_hints,
        )
        return self._outcome
