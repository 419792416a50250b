"""The connections to a provider (HTTP/1.1, RFC 9112), and which of them are idle.

A `ConnectionPool` makes each call on an idle `ProviderConnection`, the latest first, or on a new
one. A connection makes one call at a time and puts the response into a `ResponseStream` as it
arrives. httptools parses the bytes. docs/decisions/0034-connections-to-targets.md compares it with
libraries.
"""

import asyncio
import ssl
from collections import deque
from collections.abc import Callable
from typing import Any, cast, final

import httptools
import httpx2

from prefill_router.endpoints import connect_cause
from prefill_router_gateway.errors import BrokenResponseError
from prefill_router_gateway.proxy.client_connection import ClientConnection
from prefill_router_gateway.proxy.response_stream import ResponseStream
from prefill_router_gateway.records import Header

IDLE_SECONDS = 3.0  # less than servers keep idle connections, which is 5 s with uvicorn
_LONGEST_HEAD = 2**18  # bytes of a response's headers, or of anything else outside the body
_SWITCHING, _FIRST_FINAL = 101, 200
_FRAMED = (b"content-length", b"transfer-encoding")
_WITHOUT_BODY = (204, 304)
_AT_ONCE = 1.0  # seconds; a server that closes later may have begun an answer
_NO_BODY = {b"POST": b"content-length: 0\r\n\r\n", b"GET": b"\r\n", b"DELETE": b"\r\n"}
"""The end of the headers of a request without a body (RFC 9110, 8.6)."""


@final
class ProviderConnection(asyncio.Protocol):
    """One connection to a provider.

    Args:
        freed: Called with the connection when a call is over and it can be reused.

    Attributes:
        is_open: Whether it is open.
        calls: The number of calls made on it.
    """

    def __init__(self, *, freed: Callable[["ProviderConnection"], None]) -> None:
        self._freed = freed
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._parser: Any = None
        self._arrival: ResponseStream | None = None
        self._headers: list[Header] = []
        self._bare_bytes = 0  # bytes received since the last piece of a body
        self._to_the_close = False
        self.is_open = False
        self.calls = 0

    def ask(self, head: bytes, body: bytes) -> ResponseStream:
        """Send a request, and return the stream of its response."""
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
        """Close it at once, even within a call."""
        self.is_open = False
        if self._transport is not None:
            self._transport.abort()

    # Called by asyncio.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport of the opened connection."""
        self._transport = cast(asyncio.Transport, transport)
        self.is_open = True

    def data_received(self, data: bytes) -> None:
        """Parse received bytes."""
        arrival = self._arrival
        if arrival is None:  # no request was sent
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
        """Close this side too, when the provider closes its side."""
        self.is_open = False

    def connection_lost(self, exc: Exception | None) -> None:
        """End or fail the response when the connection is closed."""
        self.is_open = False
        arrival, self._arrival = self._arrival, None
        if arrival is not None and not arrival.over:
            if self._to_the_close and exc is None:
                arrival.end()
            else:
                soon = self._loop.time() - arrival.began < _AT_ONCE
                unheard = self.calls > 1 and not arrival.status and not self._bare_bytes and soon
                arrival.fail("broken_off", unheard=unheard)

    # Called by the parser.

    def on_message_begin(self) -> None:
        """Close the connection if a response begins that wasn't requested."""
        if self._arrival is None:
            self.leave()

    def on_header(self, name: bytes, value: bytes) -> None:
        """Collect a header."""
        if self._arrival is not None and not self._arrival.status:  # otherwise a trailer
            self._headers.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        """Pass on the status and headers of a final response."""
        status = self._parser.get_status_code()
        if status < _FIRST_FINAL and status != _SWITCHING:  # the final response follows
            self._headers = []
            return
        if self._arrival is not None:
            self._arrival.keep_alive = self._parser.should_keep_alive()
            framed = any(name in _FRAMED for name, _ in self._headers)
            self._to_the_close = not framed and status not in _WITHOUT_BODY
            self._arrival.begin(status, self._headers)

    def on_body(self, body: bytes) -> None:
        """Pass on a piece of the body."""
        self._bare_bytes = 0
        if self._arrival is not None:
            self._arrival.put(body)

    def on_message_complete(self) -> None:
        """End the response, and free or close the connection."""
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

    def _pause(self, on: bool) -> None:
        if self._transport is None or not self.is_open:
            return
        if on:
            self._transport.pause_reading()
        elif self._arrival is not None:
            self._transport.resume_reading()


@final
class ConnectionPool:
    """Calls one provider without a proxy, over one connection per call in flight.

    Args:
        url: The provider's URL.
        connect_seconds: The time limit for connecting.
        context: The TLS context; None for plain HTTP.
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
        """Send a request, and return the stream of its response.

        Args:
            method: The HTTP method.
            path: The path of the URL, with its query.
            headers: All headers but `host` and `content-length`.
            body: The body.
            client: The client; connecting stops when it disconnects.
            fresh: Whether to use a new connection.

        Raises:
            BrokenResponseError: It can't connect.
            ClientGoneError: The client has disconnected.
        """
        connection = None if fresh else self._take()
        if connection is None:
            connection = await self._connect(client)
        lines = [b"%b %b HTTP/1.1\r\nhost: %b" % (method, path, self._place)]
        lines += [b"%b: %b" % header for header in headers]
        lines.append(b"content-length: %d\r\n\r\n" % len(body) if body else _NO_BODY[method])
        return connection.ask(b"\r\n".join(lines), body)

    async def close(self) -> None:
        """Close idle connections, now and later; calls in flight go on."""
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
        client.check()  # otherwise nothing would stop the connection attempt
        loop = asyncio.get_running_loop()
        task = loop.create_task(self._reach())
        late = loop.call_later(self._connect_seconds, task.cancel)
        client.stop_with(task.cancel)
        try:
            return await task
        except (OSError, ValueError) as error:  # no such host, refused, or invalid certificate
            raise BrokenResponseError("connect", cause=connect_cause(error)) from None
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
        self._idle.append((loop.time() + IDLE_SECONDS, connection))
        if self._sweeper is None:
            self._sweeper = loop.call_later(IDLE_SECONDS, self._sweep)

    def _sweep(self) -> None:
        """Close connections that were idle too long; those idle longest come first."""
        loop = asyncio.get_running_loop()
        now = loop.time()
        while self._idle and (self._idle[0][0] <= now or not self._idle[0][1].is_open):
            self._idle.popleft()[1].leave()
        again = bool(self._idle)
        self._sweeper = loop.call_at(self._idle[0][0], self._sweep) if again else None


def check_not_cancelled() -> None:
    """Raise a cancellation again if the current task was cancelled.

    Raises:
        CancelledError: The current task was cancelled, rather than a task that it awaited.
    """
    task = asyncio.current_task()
    if task is not None and task.cancelling():
        raise asyncio.CancelledError
