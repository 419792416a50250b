"""The connections to one provider: idle ones are used again, the latest first."""

import asyncio
import ssl
from collections import deque
from typing import final

import httpx2

from prefill_router.gateway.forwarding.arrival import Arrival, BrokenError, Header
from prefill_router.gateway.forwarding.client import Client, check_not_cancelled
from prefill_router.gateway.forwarding.connection import Connection

_NO_BODY = {b"POST": b"content-length: 0\r\n\r\n", b"GET": b"\r\n", b"DELETE": b"\r\n"}
"""The end of headers that no body follows (RFC 9110, 8.6)."""
_IDLE_SECONDS = 3.0  # less than servers keep idle connections, which is 5 s with uvicorn


@final
class Connections:
    """Calls one provider without a proxy. As many connections are open as calls are under way.

    Args:
        url: The provider's.
        connect_seconds: A connection that takes longer has failed.
        context: For TLS; None where the URL asks for none.
    """

    def __init__(
        self, url: httpx2.URL, *, connect_seconds: float, context: ssl.SSLContext | None
    ) -> None:
        self._host = url.raw_host.decode()
        self._port = url.port or (443 if context else 80)
        self._place = url.netloc
        self._context, self._connect_seconds = context, connect_seconds
        self._idle: deque[tuple[float, Connection]] = deque()
        self._sweeper: asyncio.TimerHandle | None = None
        self._closed = False

    async def call(
        self,
        method: bytes,
        path: bytes,
        headers: list[Header],
        body: bytes,
        *,
        client: Client,
        fresh: bool,
    ) -> Arrival:
        """Send a request, and return its reply, which then arrives.

        Args:
            method: Of HTTP.
            path: Of the URL, with its query.
            headers: All but `host` and `content-length`.
            body: What is sent.
            client: Who asks; connecting ends when it leaves.
            fresh: Whether a new connection is to be used.

        Raises:
            BrokenError: There is no connection.
            GoneError: The client has left.
        """
        connection = None if fresh else self._take()
        if connection is None:
            connection = await self._connect(client)
        lines = [b"%b %b HTTP/1.1\r\nhost: %b" % (method, path, self._place)]
        lines += [b"%b: %b" % header for header in headers]
        lines.append(b"content-length: %d\r\n\r\n" % len(body) if body else _NO_BODY[method])
        return connection.ask(b"\r\n".join(lines), body)

    async def close(self) -> None:
        """Close what is idle, now and from now on; calls under way go on."""
        self._closed = True
        if self._sweeper is not None:
            self._sweeper.cancel()
        while self._idle:
            self._idle.pop()[1].leave()

    def _take(self) -> Connection | None:
        while self._idle:
            _, connection = self._idle.pop()
            if connection.is_open:
                return connection
        return None

    async def _connect(self, client: Client) -> Connection:
        client.check()  # else what is begun here would be nobody's
        loop = asyncio.get_running_loop()
        task = loop.create_task(self._reach())
        late = loop.call_later(self._connect_seconds, task.cancel)
        client.stop_with(task.cancel)
        try:
            return await task
        except (OSError, ValueError):  # no such name, nobody listens, no certificate that holds
            raise BrokenError("connect") from None
        except asyncio.CancelledError:
            check_not_cancelled()
            client.check()
            raise BrokenError("connect") from None
        finally:
            late.cancel()
            client.stop_with(None)

    async def _reach(self) -> Connection:
        _, connection = await asyncio.get_running_loop().create_connection(
            lambda: Connection(freed=self._keep),
            self._host,
            self._port,
            ssl=self._context,
        )
        return connection

    def _keep(self, connection: Connection) -> None:
        if self._closed:
            connection.leave()
            return
        loop = asyncio.get_running_loop()
        self._idle.append((loop.time() + _IDLE_SECONDS, connection))
        if self._sweeper is None:
            self._sweeper = loop.call_later(_IDLE_SECONDS, self._sweep)

    def _sweep(self) -> None:
        """Close what has been idle for long; the longest idle stand first."""
        loop = asyncio.get_running_loop()
        now = loop.time()
        while self._idle and (self._idle[0][0] <= now or not self._idle[0][1].is_open):
            self._idle.popleft()[1].leave()
        again = bool(self._idle)
        self._sweeper = loop.call_at(self._idle[0][0], self._sweep) if again else None
