"""The connections to one provider's endpoint: HTTP/1.1, one call at a time on each (RFC 9112).

Idle ones are used again, the latest first. httptools reads the bytes, since it costs a tenth of
what a client of many layers does.
"""

import asyncio
import ssl
from collections import deque
from collections.abc import Callable
from typing import Any, cast, final

import httptools
import httpx2

from prefill_router.gateway.proxy.call import (
    BrokenResponseError,
    ClientConnection,
    Header,
    ResponseStream,
    check_not_cancelled,
)

_LONGEST_HEAD = 2**18  # bytes of a reply's headers, or of what else is no body
_SWITCHING = 101
_FIRST_FINAL = 200
_FRAMED = (b"content-length", b"transfer-encoding")
_WITHOUT_BODY = (204, 304)
_AT_ONCE = 1.0  # seconds; a server that closes later has had the time to begin an answer


@final
class ProviderConnection(asyncio.Protocol):
    """One connection.

    Args:
        freed: Called with it when a call is over and another may follow.

    Attributes:
        is_open: Whether it is.
        calls: How many were made on it.
    """

    def __init__(self, *, freed: Callable[["ProviderConnection"], None]) -> None:
        self._freed = freed
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._parser: Any = None
        self._arrival: ResponseStream | None = None
        self._headers: list[Header] = []
        self._bare_bytes = 0  # that have come since the last piece of a body
        self._to_the_close = False
        self.is_open = False
        self.calls = 0

    def ask(self, head: bytes, body: bytes) -> ResponseStream:
        """Send a request; its reply arrives."""
        self.calls += 1
        self._headers, self._bare_bytes, self._to_the_close = [], 0, False
        self._parser = httptools.HttpResponseParser(self)
        self._arrival = ResponseStream(stop=self.leave, pause=self._pause)
        transport = self._transport
        if transport is None or transport.is_closing() or not self.is_open:
            self._arrival.fail("broken_off", unheard=True)
        else:
            transport.write(head + body if len(body) < _LONGEST_HEAD else head)
            if len(body) >= _LONGEST_HEAD:
                transport.write(body)
        return self._arrival

    def leave(self) -> None:
        """Close it at once, whatever is under way."""
        self.is_open = False
        if self._transport is not None:
            self._transport.abort()

    # What asyncio calls.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """It is open."""
        self._transport = cast(asyncio.Transport, transport)
        self.is_open = True

    def data_received(self, data: bytes) -> None:
        """Bytes of a reply have come."""
        arrival = self._arrival
        if arrival is None:  # nobody asked
            self.leave()
            return
        self._bare_bytes += len(data)
        try:
            self._parser.feed_data(data)
            if self._bare_bytes > _LONGEST_HEAD and not arrival.over:
                raise httptools.HttpParserError("headers or trailers without an end")
        except (httptools.HttpParserError, httptools.HttpParserUpgrade):
            arrival.fail("broken_off" if arrival.status else "malformed")
            self.leave()

    def eof_received(self) -> None:
        """The other side closes it, and so does this one."""
        self.is_open = False

    def connection_lost(self, exc: Exception | None) -> None:
        """It is closed."""
        self.is_open = False
        arrival, self._arrival = self._arrival, None
        if arrival is not None and not arrival.over:
            if self._to_the_close and exc is None:
                arrival.end()
            else:
                arrival.fail("broken_off", unheard=self._was_idle(arrival))

    # What the parser calls.

    def on_message_begin(self) -> None:
        """A reply begins."""
        if self._arrival is None:  # more than was asked for
            self.leave()

    def on_header(self, name: bytes, value: bytes) -> None:
        """A header has come."""
        if self._arrival is not None and not self._arrival.status:  # else a trailer
            self._headers.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        """All headers have come."""
        status = self._parser.get_status_code()
        if status < _FIRST_FINAL and status != _SWITCHING:  # the real one is still to come
            self._headers = []
            return
        if self._arrival is not None:
            self._arrival.keep_alive = self._parser.should_keep_alive()
            framed = any(name in _FRAMED for name, _ in self._headers)
            self._to_the_close = not framed and status not in _WITHOUT_BODY
            self._arrival.begin(status, self._headers)

    def on_body(self, body: bytes) -> None:
        """A piece of the body has come."""
        self._bare_bytes = 0
        if self._arrival is not None:
            self._arrival.put(body)

    def on_message_complete(self) -> None:
        """A reply is complete."""
        arrival = self._arrival
        if arrival is None or not arrival.status:
            return
        self._arrival = None
        arrival.end()
        transport = self._transport
        if not arrival.keep_alive or transport is None or transport.get_write_buffer_size():
            self.leave()
            return
        transport.resume_reading()
        self._freed(self)

    def _was_idle(self, arrival: ResponseStream) -> bool:
        soon = self._loop.time() - arrival.began < _AT_ONCE
        return self.calls > 1 and not arrival.status and not self._bare_bytes and soon

    def _pause(self, on: bool) -> None:
        if self._transport is None or not self.is_open:
            return
        if on:
            self._transport.pause_reading()
        elif self._arrival is not None:
            self._transport.resume_reading()


_NO_BODY = {b"POST": b"content-length: 0\r\n\r\n", b"GET": b"\r\n", b"DELETE": b"\r\n"}
"""The end of headers that no body follows (RFC 9110, 8.6)."""
_IDLE_SECONDS = 3.0  # less than servers keep idle connections, which is 5 s with uvicorn


@final
class ConnectionPool:
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
        self._idle: deque[tuple[float, ProviderConnection]] = deque()
        self._sweeper: asyncio.TimerHandle | None = None
        self._closed = False

    async def call(
        self,
        method: bytes,
        path: bytes,
        headers: list[Header],
        body: bytes,
        *,
        client: ClientConnection,
        fresh: bool,
    ) -> ResponseStream:
        """Send a request, and return its reply, which then arrives.

        Args:
            method: Of HTTP.
            path: Of the URL, with its query.
            headers: All but `host` and `content-length`.
            body: What is sent.
            client: Who asks; connecting ends when it leaves.
            fresh: Whether a new connection is to be used.

        Raises:
            BrokenResponseError: There is no connection.
            ClientGoneError: The client has left.
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

    def _take(self) -> ProviderConnection | None:
        while self._idle:
            _, connection = self._idle.pop()
            if connection.is_open:
                return connection
        return None

    async def _connect(self, client: ClientConnection) -> ProviderConnection:
        client.check()  # else what is begun here would be nobody's
        loop = asyncio.get_running_loop()
        task = loop.create_task(self._reach())
        late = loop.call_later(self._connect_seconds, task.cancel)
        client.stop_with(task.cancel)
        try:
            return await task
        except (OSError, ValueError):  # no such name, nobody listens, no certificate that holds
            raise BrokenResponseError("connect") from None
        except asyncio.CancelledError:
            check_not_cancelled()
            client.check()
            raise BrokenResponseError("connect") from None
        finally:
            late.cancel()
            client.stop_with(None)

    async def _reach(self) -> ProviderConnection:
        _, connection = await asyncio.get_running_loop().create_connection(
            lambda: ProviderConnection(freed=self._keep),
            self._host,
            self._port,
            ssl=self._context,
        )
        return connection

    def _keep(self, connection: ProviderConnection) -> None:
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
