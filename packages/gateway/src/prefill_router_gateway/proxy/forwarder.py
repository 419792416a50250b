"""Forwards calls to the targets of a pool: finds one that answers, and forwards its answer."""

import asyncio
import json
import os
import random
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from http import HTTPStatus
from typing import final

from prefill_router.endpoints import provider_keys
from prefill_router.targets import Pool
from prefill_router_gateway.errors import BrokenResponseError, ClientGoneError
from prefill_router_gateway.proxy.client_connection import ClientConnection, Receive, Send
from prefill_router_gateway.proxy.deployments import (
    Breakers,
    BreakerState,
    DeploymentOrder,
    ProviderEndpoint,
    RateHeadroom,
)
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
    no_answer_error,
    stream_error_end,
)
from prefill_router_gateway.proxy.response_stream import ResponseStream
from prefill_router_gateway.records import (
    AttemptEnd,
    ForwardRequest,
    Header,
    OutcomeKind,
    RequestOutcome,
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
        deployed = pool.deployed
        self._ways = ForwardContext(
            lines={name: lines[deployed.provider_of(name)] for name in deployed.names},
            target_of=pool.target_of,
            deployments=several,
            headroom=headroom,
            watched={n for n, of in pool.target_of.items() if watch_all or of in several},
            failures=failures,
            breakers=breakers,
            passing=passing,
            under_way=self._under_way,
            chance=random.Random(),
        )

    async def forward(self, call: ForwardRequest, receive: Receive, send: Send) -> None:
        """Answer a client with a target's answer or an error; its request has been read.

        Args:
            call: The request to forward, to targets of the pool.
            receive: ASGI's `receive`, which reports a disconnect.
            send: ASGI's `send`.
        """
        await ProxyCall(self._ways, call, ClientConnection(receive, send)).go()

    async def close(self) -> None:
        """Close idle connections, now and later; calls in flight go on to their end."""
        for line in self._lines:
            await line.close()

    def state(self) -> dict[str, TargetState]:
        """The state of each target, by name."""
        opened = self._breakers.opened
        return {
            name: TargetState(
                breaker=self._breakers.state(name),
                failures=self._breakers.failures(name),
                opened=opened.get(name, 0),
                under_way=self._under_way[name],
            )
            for name in self._names
        }


_LAST_SECONDS = 1.0  # how long to wait for a stream to close once its answer is complete
_LEFT = 499  # the recorded status of a request whose client disconnected
_FRAMING = frozenset((b"content-length", b"transfer-encoding", b"connection", b"keep-alive"))


@final
class ProxyCall:
    """One forwarded call.

    Args:
        ways: The state that all calls share.
        call: The request to forward.
        client: The client.
    """

    def __init__(
        self, ways: ForwardContext, call: ForwardRequest, client: ClientConnection
    ) -> None:
        self._ways, self._call, self._client = ways, call, client
        self._clock = asyncio.get_running_loop().time
        self._began = self._clock() if call.began is None else call.began
        self._track = CallAttempts(ways, call, client)
        self._answer: OpenResponse | None = None
        self._target: str | None = None
        self._first_byte: float | None = None
        self._is_finished = False

    async def go(self) -> None:
        """Answer the client."""
        self._client.watch()
        try:
            await self._give()
        except ClientGoneError:
            await self._leave("disconnected")
        finally:
            self._client.close()
            if not self._is_finished:  # the gateway is stopping, or failed itself
                kind: OutcomeKind = "cut" if self._client.has_started else "failed"
                await asyncio.shield(self._leave(kind))

    async def _give(self) -> None:
        found = await self._track.find_answer()
        self._call.settled()
        if isinstance(found, OpenResponse):
            self._answer, self._target = found, self._track.target
            if found.arrival is None or found.watch is None:
                await self._give_whole(found)
            else:
                await self._give_stream(found, found.arrival, found.watch)
        elif isinstance(found, TargetRefusal):
            await self._pass_on(found)
        else:
            await self._send_failure()

    # Answers.

    async def _give_whole(self, answer: OpenResponse) -> None:
        self._client.check()
        self._first_byte = self._clock()
        self._track.end("answered", status=answer.status)
        if self._call.answer is not None:
            self._call.answer.take(answer.body)
        await self._finish("answered", answer.status)
        await self._send(answer.status, answer.headers, answer.body)

    async def _give_stream(
        self,
        answer: OpenResponse,
        arrival: ResponseStream,
        watch: AnswerStream,
    ) -> None:
        deployment = self._track.deployment or ""
        line, piece, name = self._ways.lines[deployment], answer.body, answer.facts.response_id
        if self._call.named is not None and name is not None:
            self._call.named(deployment, name)
        try:
            await self._client.start(answer.status, self._headers(answer.headers))
            self._first_byte = self._clock()
            while True:
                if watch.facts.done and not self._is_finished:
                    await self._conclude(answer, "broken_off")
                    arrival.limit(self._clock() + _LAST_SECONDS, "silence")
                if piece:
                    await self._client.body(piece)
                if not self._is_finished:
                    line.go_on(arrival)
                came = await arrival.piece()
                if not came:
                    break
                piece = watch.feed(came)
            await self._end_stream(answer, watch.close(), "broken_off")
        except BrokenResponseError as error:
            if error.end == "disconnected":
                raise ClientGoneError from None
            await self._end_stream(answer, b"", error.end)
        except asyncio.CancelledError:  # the gateway is stopping
            await asyncio.shield(self._break_off(watch))
            raise
        finally:
            self._client.stop_with(None)
            arrival.close()

    async def _end_stream(self, answer: OpenResponse, rest: bytes, end: AttemptEnd) -> None:
        """End a stream, with an error event if its answer is incomplete."""
        if not self._is_finished:
            facts = answer.facts
            if not facts.is_complete and facts.error is None:
                number = answer.watch.sequence_number if answer.watch is not None else 0
                rest += cut_event(self._call.endpoint, end, number=number)
            await self._conclude(answer, end)
        await self._client.body(rest, more=False)

    async def _break_off(self, watch: AnswerStream) -> None:
        """End an incomplete stream with an error event, without blaming the target."""
        if not self._is_finished:
            await self._leave("cut")
            event = cut_event(self._call.endpoint, "disconnected", number=watch.sequence_number)
            with suppress(ClientGoneError):
                await self._client.body(event, more=False)

    async def _conclude(self, answer: OpenResponse, end: AttemptEnd) -> None:
        """Report how a stream ended; `end` applies to an incomplete one."""
        facts = answer.facts
        if facts.error is not None:
            end = stream_error_end(facts.error)
            end = "server_error" if end in HARMLESS else end
        elif facts.is_complete:
            end = "answered"
        self._track.end(end, status=answer.status)
        await self._finish("answered" if end == "answered" else "cut", answer.status)

    # Refusals and failures.

    async def _pass_on(self, refusal: TargetRefusal) -> None:
        self._client.check()
        self._target = self._track.last_asked
        self._first_byte = self._clock()
        await self._finish("refused", refusal.status)
        await self._send(refusal.status, refusal.headers, refusal.body)

    async def _send_failure(self) -> None:
        attempts = tuple(self._track.attempts)
        error = no_answer_error(attempts, wait=self._track.wait)
        body = json.dumps(error.body(anthropic=self._call.endpoint == "messages")).encode()
        headers = [
            (b"content-type", b"application/json"),
            (b"content-length", b"%d" % len(body)),
            *((name.encode(), value.encode()) for name, value in error.headers.items()),
            *self._call.reply_headers(None, attempts),
        ]
        await self._finish("failed", error.status)
        await self._client.start(error.status, headers)
        await self._client.body(body, more=False)

    async def _leave(self, kind: OutcomeKind) -> None:
        """Report an end that the target didn't cause."""
        status = None if self._answer is None else self._answer.status
        self._track.end("disconnected", status=status)
        await self._finish(kind, _LEFT if status is None else status)

    # Parts of every response.

    async def _send(self, status: int, headers: list[Header], body: bytes) -> None:
        framed = self._headers(headers)
        if status != HTTPStatus.NO_CONTENT:  # it must not have a length (RFC 9110, 8.6)
            framed.append((b"content-length", b"%d" % len(body)))
        await self._client.start(status, framed)
        await self._client.body(body, more=False)

    def _headers(self, headers: list[Header]) -> list[Header]:
        """The target's response headers that are forwarded, and the gateway's own."""
        own = self._call.reply_headers(self._target, tuple(self._track.attempts))
        return [*(h for h in self._ways.passing(headers) if h[0] not in _FRAMING), *own]

    async def _finish(self, kind: OutcomeKind, status: int) -> None:
        if self._is_finished:
            return
        self._is_finished = True
        usage = guessed = None
        facts = self._answer.facts if self._answer is not None else None
        if facts is not None:
            usage, guessed = facts.usage(input_tokens=self._call.input_tokens)
        now, first = self._clock(), self._first_byte
        attempts = tuple(self._track.attempts)
        outcome = RequestOutcome(
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
        )
        await self._call.finished(outcome)
