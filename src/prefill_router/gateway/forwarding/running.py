"""One call under way: a target that answers is found, and its answer forwarded to its end."""

import asyncio
import json
from contextlib import suppress
from http import HTTPStatus
from typing import final

from prefill_router.gateway.forwarding.arrival import Arrival, BrokenError, Header
from prefill_router.gateway.forwarding.call import Call
from prefill_router.gateway.forwarding.client import Client, GoneError
from prefill_router.gateway.forwarding.opening import Opened
from prefill_router.gateway.forwarding.search import find_answer
from prefill_router.gateway.forwarding.telling import cut_event, no_answer
from prefill_router.gateway.forwarding.track import Track, Ways
from prefill_router.gateway.forwarding.verdicts import HARMLESS, Refusal, end_of
from prefill_router.gateway.forwarding.watch import Watch
from prefill_router.gateway.forwarding.whole_lines import WholeLines
from prefill_router.gateway.outcome import AttemptEnd, Outcome
from prefill_router.gateway.words import OutcomeKind

_LAST_SECONDS = 1.0  # for the end of a stream whose answer is complete
_LEFT = 499  # the status of what nobody waited for
_FRAMING = frozenset((b"content-length", b"transfer-encoding", b"connection", b"keep-alive"))


@final
class Run:
    """One call.

    Args:
        ways: What all calls share.
        call: What is asked.
        client: Who asks.
    """

    def __init__(self, ways: Ways, call: Call, client: Client) -> None:
        self._ways, self._call, self._client = ways, call, client
        self._clock = asyncio.get_running_loop().time
        self._began = self._clock() if call.began is None else call.began
        self._track = Track(ways)
        self._answer: Opened | None = None
        self._target: str | None = None
        self._first_byte: float | None = None
        self._is_finished = False

    async def go(self) -> None:
        """Answer the client."""
        self._client.watch()
        try:
            await self._give()
        except GoneError:
            await self._leave("disconnected")
        finally:
            self._client.close()
            if not self._is_finished:  # the gateway is being stopped, or has a fault of its own
                kind: OutcomeKind = "cut" if self._client.has_started else "failed"
                await asyncio.shield(self._leave(kind))

    async def _give(self) -> None:
        found = await find_answer(self._ways, self._call, self._client, self._track)
        self._call.settled()
        if isinstance(found, Opened):
            self._answer, self._target = found, self._track.target
            if found.arrival is None or found.watch is None:
                await self._give_whole(found)
            else:
                await self._give_stream(found, found.arrival, found.watch)
        elif isinstance(found, Refusal):
            await self._pass_on(found)
        else:
            await self._tell_failure()

    # Answers.

    async def _give_whole(self, answer: Opened) -> None:
        self._client.check()
        self._first_byte = self._clock()
        self._track.end("answered", status=answer.status)
        await self._finish("answered", answer.status)
        await self._send(answer.status, answer.headers, answer.body)

    async def _give_stream(
        self, answer: Opened, arrival: Arrival, watch: Watch | WholeLines
    ) -> None:
        line = self._ways.lines[self._track.target or ""]
        piece = answer.body
        self._name(answer)
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
        except BrokenError as error:
            if error.end == "disconnected":
                raise GoneError from None
            await self._end_stream(answer, b"", error.end)
        except asyncio.CancelledError:  # the gateway is being stopped
            await asyncio.shield(self._break_off(watch))
            raise
        finally:
            self._client.stop_with(None)
            arrival.close()

    def _name(self, answer: Opened) -> None:
        name, target = answer.facts.response_id, self._target
        if self._call.named is not None and name is not None and target is not None:
            self._call.named(target, name)

    async def _end_stream(self, answer: Opened, rest: bytes, end: AttemptEnd) -> None:
        """End it well where its answer is complete, and with an error event where it isn't."""
        if not self._is_finished:
            facts = answer.facts
            if not facts.is_complete and facts.error is None:
                number = answer.watch.sequence_number if answer.watch is not None else 0
                rest += cut_event(self._call.endpoint, end, number=number)
            await self._conclude(answer, end)
        await self._client.body(rest, more=False)

    async def _break_off(self, watch: Watch | WholeLines) -> None:
        """End a stream that isn't complete with an error event, through no fault of the target."""
        if not self._is_finished:
            await self._leave("cut")
            event = cut_event(self._call.endpoint, "disconnected", number=watch.sequence_number)
            with suppress(GoneError):
                await self._client.body(event, more=False)

    async def _conclude(self, answer: Opened, end: AttemptEnd) -> None:
        """Report how a stream ended; `end` is for one that isn't complete."""
        facts = answer.facts
        if facts.error is not None:
            end = end_of(facts.error)
            end = "server_error" if end in HARMLESS else end
        elif facts.is_complete:
            end = "answered"
        self._track.end(end, status=answer.status)
        await self._finish("answered" if end == "answered" else "cut", answer.status)

    # What is no answer.

    async def _pass_on(self, refusal: Refusal) -> None:
        self._client.check()
        self._target = self._track.last_asked
        self._first_byte = self._clock()
        await self._finish("refused", refusal.status)
        await self._send(refusal.status, refusal.headers, refusal.body)

    async def _tell_failure(self) -> None:
        attempts = tuple(self._track.attempts)
        error = no_answer(attempts, wait=self._track.wait)
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
        """Report an end that isn't the target's doing."""
        status = None if self._answer is None else self._answer.status
        self._track.end("disconnected", status=status)
        await self._finish(kind, _LEFT if status is None else status)

    # What all have in common.

    async def _send(self, status: int, headers: list[Header], body: bytes) -> None:
        framed = self._headers(headers)
        if status != HTTPStatus.NO_CONTENT:  # which has no length (RFC 9110, 8.6)
            framed.append((b"content-length", b"%d" % len(body)))
        await self._client.start(status, framed)
        await self._client.body(body, more=False)

    def _headers(self, headers: list[Header]) -> list[Header]:
        """Those of a target's reply that go on, and the gateway's own."""
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
        outcome = Outcome(
            kind=kind,
            target=self._target,
            status=status,
            attempts=tuple(self._track.attempts),
            usage=usage,
            usage_is_estimated=bool(guessed),
            response_id=facts.response_id if facts is not None else None,
            tool_calls=facts.tool_calls if facts is not None else (),
            first_byte_seconds=None if first is None else first - self._began,
            total_seconds=now - self._began,
        )
        await self._call.finished(outcome)
