"""Sending a reply event by event, with what is to go wrong on the way."""

import asyncio
import json
from typing import final

from prefill_router.minipool.server.client import Client, CutError, document_headers
from prefill_router.minipool.server.faults import CUTS, Effects, Rule
from prefill_router.minipool.server.replies import error_value

_STREAM = ((b"content-type", b"text/event-stream; charset=utf-8"), (b"cache-control", b"no-cache"))
_BAD = ("bad_json", "bad_sse")
_BROKEN = error_value("the server broke on purpose", code="server_error")


@final
class Sender:
    """Sends one reply.

    Args:
        client: To whom.
        effects: What goes wrong.
    """

    def __init__(self, client: Client, effects: Effects) -> None:
        self._client = client
        self._slow = effects.get("slow")
        self._stall = effects.get("stall")
        self._cut = next((effects[kind] for kind in effects if kind in CUTS), None)
        self._bad = next((effects[kind] for kind in effects if kind in _BAD), None)
        self._careful = any(rule is not None for rule in (self._slow, self._cut, self._bad))
        self._sent = 0

    async def begin(self) -> None:
        """Send the headers of a stream."""
        await self._client.start(200, _STREAM)
        if self._stall:
            await self._client.pause(self._stall.seconds)

    async def events(self, events: list[bytes], *, before: bytes = b"") -> None:
        """Send chunks of text; `before` goes with the first and counts for nothing.

        Raises:
            CutError: Here the reply is to end.
            GoneError: The client has left.
        """
        if not self._careful:
            await self._client.write(before + b"".join(events))
            return
        if before:
            await self._client.write(before)
        for event in events:
            await self._trouble(last=False)
            await self._client.write(self._spoilt(event))
            self._sent += 1

    async def last(self, end: bytes, rest: bytes) -> None:
        """Send the chunk that ends the answer, and what follows it.

        Raises:
            CutError: Here the reply is to end instead.
            GoneError: The client has left.
        """
        await self._trouble(last=True)
        if self._bad and self._sent <= self._bad.after:
            self._sent = self._bad.after
            end = self._spoilt(end)
        await self._client.end(end + rest)

    async def whole(self, content: bytes, *, chunks: int) -> None:
        """Send a document that isn't streamed, after the time that so many chunks take.

        Raises:
            CutError: The reply is to end in its middle.
            GoneError: The client has left.
        """
        stall = self._stall.seconds if self._stall else 0.0
        slow = self._slow.seconds * max(0, chunks - 1) if self._slow else 0.0
        if stall + slow:
            await self._client.pause(stall + slow)
        if self._cut:
            await self._cut_whole(content, self._cut)
        if self._bad:
            half = content[: len(content) // 2]
            content = half if self._bad.kind == "bad_json" else b"\xff\xfe" + content
        await self._client.start(200, document_headers(content))
        await self._client.end(content)

    async def _cut_whole(self, content: bytes, rule: Rule) -> None:
        half = content[: len(content) // 2]
        if rule.kind == "error_event":
            half = json.dumps(_BROKEN).encode()
        if rule.kind in ("error_event", "truncate"):
            await self._client.start(200, document_headers(half))
            await self._client.end(half, complete=False)
        else:
            await self._client.start(200, document_headers(content))
            await self._client.write(half)
            await self._end_badly(rule)
        raise CutError

    async def _trouble(self, *, last: bool) -> None:
        """What comes before a chunk."""
        if self._cut and (last or self._sent >= self._cut.after):
            await self._end_badly(self._cut)
        if self._slow and self._sent:
            await self._client.pause(self._slow.seconds)

    async def _end_badly(self, rule: Rule) -> None:
        if rule.kind == "hang":
            await self._client.pause(None)
        if rule.kind == "truncate":
            await self._client.end(complete=False)
        if rule.kind == "error_event":
            await self._client.end(
                b"data: " + json.dumps(_BROKEN).encode() + b"\n\n", complete=False
            )
        await asyncio.sleep(0)  # what was written goes out before the connection is closed
        raise CutError

    def _spoilt(self, event: bytes) -> bytes:
        if self._bad is None or self._sent != self._bad.after:
            return event
        if self._bad.kind == "bad_json":
            return event[: len(event) // 2] + b"\n\n"
        return b"data: \xff\xfe" + event[6:]
