"""A client's connection: its request, the reply to it, and whether it is still open.

A reply is sent event by event, with the faults to inject.
"""

import asyncio
import json
from collections.abc import Awaitable, Callable, MutableMapping, Sequence
from typing import Any, final

from prefill_router.minipool.server.faults import CUTS, Effects, Rule
from prefill_router.minipool.server.protocol import ApiError, error_value

Received = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Received]]
Send = Callable[[Received], Awaitable[None]]
Header = tuple[bytes, bytes]
_MOST_BYTES = 32 * 2**20


@final
class DisconnectedError(Exception):
    """The client has disconnected."""


@final
class CutOffError(Exception):
    """An injected fault ends the reply before it is complete."""


@final
class AsgiConnection:
    """The connection of one request (ASGI)."""

    def __init__(self, receive: Receive, send: Send) -> None:
        self._receive = receive
        self._send = send
        self._gone = asyncio.Event()
        self._watch: asyncio.Task[None] | None = None
        self._wakes: list[Callable[[], None]] = []
        self._at_end: list[Callable[[], None]] = []
        self.status = 0
        self.complete = False

    @property
    def gone(self) -> bool:
        """Whether the client has disconnected, or the connection is abandoned."""
        return self._gone.is_set()

    def leave(self) -> None:
        """Abandon the connection: wake everything that waits on it."""
        self._gone.set()
        for wake in self._wakes:
            wake()

    def on_gone(self, wake: Callable[[], None]) -> None:
        """Register a function to call when the client disconnects."""
        self._wakes.append(wake)

    def at_end(self, act: Callable[[], None]) -> None:
        """Register a function to call once, before the end of the reply or instead of it."""
        self._at_end.append(act)

    def close(self) -> None:
        """Call the functions of `at_end`; nothing more will be sent."""
        while self._at_end:
            self._at_end.pop()()

    async def body(self) -> bytes:
        """The request's body; from then on a disconnection is noticed.

        Raises:
            ApiError: The body is too long.
            DisconnectedError: The client disconnected before the whole body had arrived.
        """
        parts: list[bytes] = []
        more = True
        while more:
            message = await self._receive()
            if message["type"] == "http.disconnect":
                raise DisconnectedError
            parts.append(message.get("body", b""))
            more = message.get("more_body", False)
            if sum(map(len, parts)) > _MOST_BYTES:
                raise ApiError(f"the body is longer than {_MOST_BYTES} bytes", status=413)
        self._watch = asyncio.create_task(self._until_gone())
        return b"".join(parts)

    async def pause(self, seconds: float | None) -> None:
        """Wait some seconds; None waits until the client disconnects.

        Raises:
            DisconnectedError: The client disconnected meanwhile.
        """
        try:
            async with asyncio.timeout(seconds):
                await self._gone.wait()
        except TimeoutError:
            return
        raise DisconnectedError

    async def start(self, status: int, headers: Sequence[Header]) -> None:
        """Send the status and the headers."""
        self.status = status
        await self._send(
            {"type": "http.response.start", "status": status, "headers": list(headers)}
        )

    async def write(self, part: bytes) -> None:
        """Send a part of the body.

        Raises:
            DisconnectedError: The client has disconnected.
        """
        if self.gone:
            raise DisconnectedError
        await self._send({"type": "http.response.body", "body": part, "more_body": True})

    async def end(self, part: bytes = b"", *, complete: bool = True) -> None:
        """Send the last part of the body; `complete` says whether the reply is whole."""
        self.complete = complete and not self.gone
        self.close()
        await self._send({"type": "http.response.body", "body": part, "more_body": False})

    async def reply(self, status: int, value: Any, headers: Sequence[Header] = ()) -> None:
        """Send a JSON document."""
        content = json.dumps(value).encode()
        await self.start(status, [*document_headers(content), *headers])
        await self.end(content)

    async def _until_gone(self) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass
        self.leave()


def document_headers(content: bytes) -> list[Header]:
    """The headers of a JSON document."""
    length = str(len(content)).encode()
    return [(b"content-type", b"application/json"), (b"content-length", length)]


_STREAM = ((b"content-type", b"text/event-stream; charset=utf-8"), (b"cache-control", b"no-cache"))
_BAD = ("bad_json", "bad_sse")
_BROKEN = error_value("the server broke on purpose", code="server_error")


@final
class ReplySender:
    """Sends one reply.

    Args:
        client: The client's connection.
        effects: The faults to inject.
    """

    def __init__(self, client: AsgiConnection, effects: Effects) -> None:
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
        """Send chunks of text; `before` is sent with the first and isn't counted as a chunk.

        Raises:
            CutOffError: A fault ends the reply here.
            DisconnectedError: The client has disconnected.
        """
        if not self._careful:
            await self._client.write(before + b"".join(events))
            return
        if before:
            await self._client.write(before)
        for event in events:
            await self._inject(last=False)
            await self._client.write(self._malformed(event))
            self._sent += 1

    async def last(self, end: bytes, rest: bytes) -> None:
        """Send the chunk that ends the answer, and what follows it.

        Raises:
            CutOffError: A fault ends the reply instead.
            DisconnectedError: The client has disconnected.
        """
        await self._inject(last=True)
        if self._bad and self._sent <= self._bad.after:
            self._sent = self._bad.after
            end = self._malformed(end)
        await self._client.end(end + rest)

    async def whole(self, content: bytes, *, chunks: int) -> None:
        """Send a document that isn't streamed, after the time that its chunks would take.

        Raises:
            CutOffError: A fault ends the reply in its middle.
            DisconnectedError: The client has disconnected.
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
        raise CutOffError

    async def _inject(self, *, last: bool) -> None:
        """Inject the faults that come before a chunk."""
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
        await asyncio.sleep(0)  # sends what was written before the connection is closed
        raise CutOffError

    def _malformed(self, event: bytes) -> bytes:
        if self._bad is None or self._sent != self._bad.after:
            return event
        if self._bad.kind == "bad_json":
            return event[: len(event) // 2] + b"\n\n"
        return b"data: \xff\xfe" + event[6:]
