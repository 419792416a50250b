"""The client of a call: sends to it, and notices its disconnect (ASGI)."""

import asyncio
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any, final

from prefill_router_gateway.errors import ClientGoneError
from prefill_router_gateway.records import Header

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]


@final
class ClientConnection:
    """The client of a call (ASGI); its request has been read.

    Attributes:
        is_gone: Whether it has disconnected.
        has_started: Whether the response has begun to be sent.
    """

    def __init__(self, receive: Receive, send: Send) -> None:
        self._receive, self._send = receive, send
        self._stop: Callable[[], object] | None = None
        self._watch: asyncio.Task[None] | None = None
        self.is_gone = False
        self.has_started = False

    def watch(self) -> None:
        """Start watching for a disconnect."""
        if self._watch is None:
            self._watch = asyncio.get_running_loop().create_task(self._await_disconnect())

    def close(self) -> None:
        """Stop watching."""
        if self._watch is not None:
            self._watch.cancel()

    def stop_with(self, stop: Callable[[], object] | None) -> None:
        """Call this function, in place of the last one, on a disconnect.

        Raises:
            ClientGoneError: It has already disconnected.
        """
        self._stop = stop
        if stop is not None:
            self.check()

    def check(self) -> None:
        """Raise ClientGoneError if it has disconnected."""
        if self.is_gone:
            raise ClientGoneError

    async def wait(self, seconds: float) -> None:
        """Wait this many seconds.

        Raises:
            ClientGoneError: It disconnected meanwhile.
        """
        loop = asyncio.get_running_loop()
        over = loop.create_future()
        timer = loop.call_later(seconds, _settle, over)
        self.stop_with(lambda: _settle(over))
        try:
            await over
        finally:
            timer.cancel()
            self._stop = None
        self.check()

    async def start(self, status: int, headers: list[Header]) -> None:
        """Send the status and headers.

        Raises:
            ClientGoneError: It has disconnected.
        """
        self.has_started = True
        await self._send_message(
            {"type": "http.response.start", "status": status, "headers": headers}
        )

    async def body(self, piece: bytes, *, more: bool = True) -> None:
        """Send a piece of the body.

        Raises:
            ClientGoneError: It has disconnected.
        """
        await self._send_message({"type": "http.response.body", "body": piece, "more_body": more})

    async def _send_message(self, message: Message) -> None:
        self.check()
        try:
            await self._send(message)
        except OSError:  # servers raise it where the connection is closed (ASGI 2.4)
            self._note_disconnect()
            raise ClientGoneError from None

    async def _await_disconnect(self) -> None:
        try:
            while (await self._receive())["type"] != "http.disconnect":
                pass
        except OSError:
            pass
        self._note_disconnect()

    def _note_disconnect(self) -> None:
        self.is_gone = True
        if self._stop is not None:
            self._stop()


def _settle(over: "asyncio.Future[None]") -> None:
    if not over.done():
        over.set_result(None)
