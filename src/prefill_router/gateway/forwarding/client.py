"""The client's end of a call: what it is sent, and whether it is still there."""

import asyncio
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any, final

from prefill_router.gateway.forwarding.arrival import Header

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]


@final
class GoneError(Exception):
    """The client has left."""


@final
class Client:
    """Whom a call is answered (ASGI); its request has been read.

    Attributes:
        gone: Whether it has left.
        has_started: Whether the answer has begun to go to it.
    """

    def __init__(self, receive: Receive, send: Send) -> None:
        self._receive, self._send = receive, send
        self._stop: Callable[[], object] | None = None
        self._watch: asyncio.Task[None] | None = None
        self.gone = False
        self.has_started = False

    def watch(self) -> None:
        """Notice from now on when it leaves."""
        if self._watch is None:
            self._watch = asyncio.get_running_loop().create_task(self._until_gone())

    def close(self) -> None:
        """Watch no longer."""
        if self._watch is not None:
            self._watch.cancel()

    def stop_with(self, stop: Callable[[], object] | None) -> None:
        """Call this, and nothing else, when it leaves.

        Raises:
            GoneError: It has left already.
        """
        self._stop = stop
        if stop is not None:
            self.check()

    def check(self) -> None:
        """Raises GoneError where it has left."""
        if self.gone:
            raise GoneError

    async def wait(self, seconds: float) -> None:
        """Wait so long.

        Raises:
            GoneError: It left meanwhile.
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
        """Send status and headers.

        Raises:
            GoneError: It has left.
        """
        self.has_started = True
        await self._give({"type": "http.response.start", "status": status, "headers": headers})

    async def body(self, piece: bytes, *, more: bool = True) -> None:
        """Send a piece of the body.

        Raises:
            GoneError: It has left.
        """
        await self._give({"type": "http.response.body", "body": piece, "more_body": more})

    async def _give(self, message: Message) -> None:
        self.check()
        try:
            await self._send(message)
        except OSError:  # what servers raise where the connection is closed (ASGI, version 2.4)
            self._leave()
            raise GoneError from None

    async def _until_gone(self) -> None:
        try:
            while (await self._receive())["type"] != "http.disconnect":
                pass
        except OSError:
            pass
        self._leave()

    def _leave(self) -> None:
        self.gone = True
        if self._stop is not None:
            self._stop()


def check_not_cancelled() -> None:
    """Go on with a cancellation, where it is the present task that was cancelled.

    Raises:
        CancelledError: It was, and not something that it waited for.
    """
    task = asyncio.current_task()
    if task is not None and task.cancelling():
        raise asyncio.CancelledError


def _settle(over: "asyncio.Future[None]") -> None:
    if not over.done():
        over.set_result(None)
