"""Shows a client that its stream goes on while a target is silent.

docs/decisions/0037-keep-alives.md has the reasons.
"""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import Final, final

from prefill_router.targets import Endpoint
from prefill_router_gateway.errors import ClientGoneError
from prefill_router_gateway.proxy.client_connection import ClientConnection
from prefill_router_gateway.records import Header

PING: Final = b'event: ping\ndata: {"type":"ping"}\n\n'
"""Anthropic's own event that says nothing."""
_COMMENT = b": waiting\n"
"""A comment, which a reader of server-sent events drops; it may stand between any two lines."""
_STREAM_HEADERS: Final[list[Header]] = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
]


def comments(headers: list[Header]) -> bytes:
    """Headers that are known too late to be sent as such, as comments of the stream."""
    return b"".join(b": %b: %b\n" % header for header in headers) + b"\n"


@final
class KeepAlive:
    """Sends something to a client as often as so many seconds pass within its `async with` block.

    Nothing else may be sent within the block. If the response hasn't begun, its headers are sent
    first; they say that a stream follows, and nothing of a target.

    Args:
        client: The client.
        seconds: The seconds without a byte; None never sends anything.
        endpoint: The endpoint, whose protocol says what is sent.
        headers: Makes the gateway's own headers for a response that hasn't begun.
    """

    def __init__(
        self,
        client: ClientConnection,
        *,
        seconds: float | None,
        endpoint: Endpoint,
        headers: Callable[[], list[Header]] | None = None,
    ) -> None:
        self._client, self._seconds, self._headers = client, seconds, headers
        self._before = PING if endpoint == "messages" else _COMMENT + b"\n"
        self._timer: asyncio.TimerHandle | None = None
        self._task: asyncio.Task[None] | None = None
        self._is_over = asyncio.Event()

    async def __aenter__(self) -> None:
        if self._seconds is not None:
            self._timer = asyncio.get_running_loop().call_later(self._seconds, self._begin)

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if self._task is None:
            return
        self._is_over.set()
        if kind is not None and issubclass(kind, asyncio.CancelledError):
            self._task.cancel()  # it may wait for a slow client
        with suppress(asyncio.CancelledError):
            await self._task

    def _begin(self) -> None:
        self._task = asyncio.get_running_loop().create_task(self._send())

    async def _send(self) -> None:
        if self._is_over.is_set():
            return
        with suppress(ClientGoneError):  # who waits for the target notices it too
            has_begun = self._client.has_started
            if not has_begun:
                own = [] if self._headers is None else self._headers()
                await self._client.start(200, [*_STREAM_HEADERS, *own])
            while not self._is_over.is_set():
                await self._client.body(_COMMENT if has_begun else self._before)
                with suppress(TimeoutError):
                    await asyncio.wait_for(self._is_over.wait(), self._seconds)
