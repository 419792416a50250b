"""The other end of a connection: what it sends, what it is sent, and whether it is still there."""

import asyncio
import json
from collections.abc import Awaitable, Callable, MutableMapping, Sequence
from typing import Any, final

from prefill_router.minipool.server.request import ApiError

Received = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Received]]
Send = Callable[[Received], Awaitable[None]]
Header = tuple[bytes, bytes]
_MOST_BYTES = 32 * 2**20


@final
class GoneError(Exception):
    """Nobody is at the other end any more."""


@final
class CutError(Exception):
    """The reply ends here, on purpose and unfinished."""


@final
class Client:
    """One request's connection (ASGI)."""

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
        """Whether it has left, or is to be left."""
        return self._gone.is_set()

    def leave(self) -> None:
        """Stop waiting, whatever is waited for."""
        self._gone.set()
        for wake in self._wakes:
            wake()

    def on_gone(self, wake: Callable[[], None]) -> None:
        """Call this when it leaves."""
        self._wakes.append(wake)

    def at_end(self, act: Callable[[], None]) -> None:
        """Do this once, right before the end of the reply is sent, or when there will be none."""
        self._at_end.append(act)

    def close(self) -> None:
        """Nothing more will be sent."""
        while self._at_end:
            self._at_end.pop()()

    async def body(self) -> bytes:
        """The request's body; from then on its leaving is noticed.

        Raises:
            ApiError: The body is too long.
            GoneError: It left before all had come.
        """
        parts: list[bytes] = []
        more = True
        while more:
            message = await self._receive()
            if message["type"] == "http.disconnect":
                raise GoneError
            parts.append(message.get("body", b""))
            more = message.get("more_body", False)
            if sum(map(len, parts)) > _MOST_BYTES:
                raise ApiError(f"the body is longer than {_MOST_BYTES} bytes", status=413)
        self._watch = asyncio.create_task(self._until_gone())
        return b"".join(parts)

    async def pause(self, seconds: float | None) -> None:
        """Wait so long; None waits until it leaves.

        Raises:
            GoneError: It left meanwhile.
        """
        try:
            await asyncio.wait_for(self._gone.wait(), seconds)
        except TimeoutError:
            return
        raise GoneError

    async def start(self, status: int, headers: Sequence[Header]) -> None:
        """Send the status and the headers."""
        self.status = status
        await self._send(
            {"type": "http.response.start", "status": status, "headers": list(headers)}
        )

    async def write(self, part: bytes) -> None:
        """Send a part of the body.

        Raises:
            GoneError: It has left.
        """
        if self.gone:
            raise GoneError
        await self._send({"type": "http.response.body", "body": part, "more_body": True})

    async def end(self, part: bytes = b"", *, complete: bool = True) -> None:
        """Send the last part of the body; `complete` says whether it is all that was to come."""
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
