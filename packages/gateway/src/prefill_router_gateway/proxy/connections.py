"""The two connections of a call: the client's and the provider's (HTTP/1.1, RFC 9112).

A `ClientConnection` sends to the client and notices its disconnect. A `ProviderConnection` makes
one call at a time and puts the response into a `ResponseStream` as it arrives. httptools parses the
bytes, at a tenth of the cost of a full HTTP client.

`ProxiedConnections` calls a provider through a proxy that the environment names, with httpx2.
"""

import asyncio
import urllib.request
from collections.abc import AsyncIterator, Awaitable, Callable, MutableMapping
from http.cookiejar import CookieJar, DefaultCookiePolicy
from typing import Any, cast, final

import httptools
import httpx2

from prefill_router.endpoints import is_loopback
from prefill_router.errors import ConfigError
from prefill_router_gateway.errors import BrokenResponseError, ClientGoneError
from prefill_router_gateway.records import AttemptEnd, Header

IDLE_SECONDS = 3.0  # less than servers keep idle connections, which is 5 s with uvicorn
_MOST_WAITING = 2**18  # bytes buffered for a slow client before reading from the target pauses
_LONGEST_HEAD = 2**18  # bytes of a response's headers, or of anything else outside the body
_SWITCHING, _FIRST_FINAL = 101, 200
_FRAMED = (b"content-length", b"transfer-encoding")
_WITHOUT_BODY = (204, 304)
_AT_ONCE = 1.0  # seconds; a server that closes later may have begun an answer


@final
class ResponseStream:
    """One response as it arrives.

    One timer serves all time limits. Moving a limit to a later time costs nothing: when the timer
    fires, it checks whether the limit has passed.

    Attributes:
        began: When the request was sent, by the loop's clock.
        status: The HTTP status; 0 before it has arrived.
        headers: The headers, with names in lower case.
        over: Whether the response is complete.
        keep_alive: Whether the connection may be reused.
    """

    def __init__(
        self, *, stop: Callable[[], object], pause: Callable[[bool], None] | None = None
    ) -> None:
        """Start with no status, headers or body.

        Args:
            stop: Called where the rest of the response isn't needed.
            pause: Called with True to pause reading from the connection, and with False to resume.
        """
        self._stop = stop
        self._loop = asyncio.get_running_loop()
        self._pieces: list[bytes] = []
        self._waiting = 0
        self._waiter: asyncio.Future[None] | None = None
        self._broken: BrokenResponseError | None = None
        self._pause = pause
        self._timer: asyncio.TimerHandle | None = None
        self._at = 0.0
        self._too_late: AttemptEnd = "answer_timeout"
        self.began = self._loop.time()
        self.status = 0
        self.headers: list[Header] = []
        self.over = False
        self.keep_alive = False

    def begin(self, status: int, headers: list[Header]) -> None:
        """Add the status and headers."""
        self.status, self.headers = status, headers
        self._wake()

    def put(self, piece: bytes) -> None:
        """Add a piece of the body."""
        self._pieces.append(piece)
        self._waiting += len(piece)
        if self._waiting > _MOST_WAITING and self._pause is not None:
            self._pause(True)
        self._wake()

    def end(self) -> None:
        """Mark the response as complete."""
        self.over = True
        self._wake()

    def fail(self, end: AttemptEnd, *, unheard: bool = False) -> None:
        """Mark the response as broken off; pieces that have arrived can still be read."""
        if self._broken is None and not self.over:
            self._broken = BrokenResponseError(end, unheard=unheard)
            self._wake()

    def limit(self, at: float, too_late: AttemptEnd) -> None:
        """Set the time limit, by the loop's clock, and how it fails; it replaces the last one."""
        self._at, self._too_late = at, too_late
        if self._timer is None:
            self._timer = self._loop.call_at(at, self._look)
        elif at < self._timer.when():
            self._timer.cancel()
            self._timer = self._loop.call_at(at, self._look)

    def close(self) -> None:
        """Stop the response if it is incomplete, since nothing more will be read."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if not self.over:
            self._stop()

    async def head(self) -> int:
        """Wait for status and headers, and return the status.

        Raises:
            BrokenResponseError: They don't arrive.
        """
        while not self.status:
            await self._wait()
        return self.status

    async def piece(self) -> bytes:
        """Wait for and return the next bytes of the body; empty at the end.

        Raises:
            BrokenResponseError: The body broke off.
        """
        while not self._pieces:
            if self.over:
                return b""
            await self._wait()
        pieces = self._pieces
        found = pieces[0] if len(pieces) == 1 else b"".join(pieces)
        self._pieces = []
        if self._waiting > _MOST_WAITING and self._pause is not None:
            self._pause(False)
        self._waiting = 0
        return found

    async def _wait(self) -> None:
        if self._broken is not None:
            raise self._broken
        if self._timer is None and self._at:
            self._timer = self._loop.call_at(self._at, self._look)
        self._waiter = self._loop.create_future()
        try:
            await self._waiter
        finally:
            self._waiter = None

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def _look(self) -> None:
        self._timer = None
        if self._waiter is None:  # the client is slow, not the target
            return
        if self._loop.time() < self._at:
            self._timer = self._loop.call_at(self._at, self._look)
        else:
            self.fail(self._too_late)


Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]


@final
class ClientConnection:
    """The client of a call (ASGI); its request has been read.

    Attributes:
        gone: Whether it has disconnected.
        has_started: Whether the response has begun to be sent.
    """

    def __init__(self, receive: Receive, send: Send) -> None:
        self._receive, self._send = receive, send
        self._stop: Callable[[], object] | None = None
        self._watch: asyncio.Task[None] | None = None
        self.gone = False
        self.has_started = False

    def watch(self) -> None:
        """Start watching for a disconnect."""
        if self._watch is None:
            self._watch = asyncio.get_running_loop().create_task(self._until_gone())

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
        if self.gone:
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
        await self._give({"type": "http.response.start", "status": status, "headers": headers})

    async def body(self, piece: bytes, *, more: bool = True) -> None:
        """Send a piece of the body.

        Raises:
            ClientGoneError: It has disconnected.
        """
        await self._give({"type": "http.response.body", "body": piece, "more_body": more})

    async def _give(self, message: Message) -> None:
        self.check()
        try:
            await self._send(message)
        except OSError:  # servers raise it where the connection is closed (ASGI 2.4)
            self._leave()
            raise ClientGoneError from None

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


def _settle(over: "asyncio.Future[None]") -> None:
    if not over.done():
        over.set_result(None)


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


def wants_proxy(url: httpx2.URL) -> bool:
    """Whether the environment names a proxy for this URL (`HTTPS_PROXY`, `NO_PROXY`, ...).

    A server on this machine is never called through a proxy, which could read its traffic.
    """
    if is_loopback(url.host):
        return False
    named = urllib.request.getproxies()
    if not (named.get(url.scheme) or named.get("all")):
        return False
    return not urllib.request.proxy_bypass(url.host)


@final
class ProxiedConnections:
    """Calls one provider through a proxy.

    Args:
        url: The provider's URL.
        connect_seconds: The time limit for connecting.

    Raises:
        ConfigError: The environment's proxies or certificates can't be used.
    """

    def __init__(self, url: httpx2.URL, *, connect_seconds: float) -> None:
        self._url = url
        try:
            self._client = httpx2.AsyncClient(
                limits=httpx2.Limits(
                    max_connections=None,
                    max_keepalive_connections=None,
                    keepalive_expiry=IDLE_SECONDS,
                ),
                timeout=httpx2.Timeout(None, connect=connect_seconds),
                # no cookies: one client's would be sent with the next client's request
                cookies=CookieJar(DefaultCookiePolicy(allowed_domains=())),
            )
        except (ImportError, OSError, ValueError, httpx2.InvalidURL):  # not quoted: may hold a key
            raise ConfigError(
                "targets can't be reached with the proxies or certificates set in the environment; "
                "check HTTP_PROXY, HTTPS_PROXY, ALL_PROXY (http:// or https://) and SSL_CERT_FILE"
            ) from None
        self._calls: set[asyncio.Task[None]] = set()
        self._closing: asyncio.Task[None] | None = None
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
        """As `ConnectionPool.call`, but failures to connect are reported by the stream."""
        del client, fresh
        length = [(b"content-length", b"%d" % len(body))] if body else []
        request = self._client.build_request(
            method.decode(),
            self._url.copy_with(raw_path=path),
            headers=[*headers, *length],
            content=_once([body]) if body else None,
        )
        may_read = asyncio.Event()
        may_read.set()
        arrival = ResponseStream(
            stop=lambda: task.cancel(),
            pause=lambda on: may_read.clear() if on else may_read.set(),
        )
        task = asyncio.get_running_loop().create_task(self._pass_on(request, arrival, may_read))
        self._calls.add(task)
        task.add_done_callback(self._over)
        return arrival

    async def close(self) -> None:
        """Close the client, once the calls in flight have ended."""
        self._closed = True
        if not self._calls:
            await self._client.aclose()

    async def _pass_on(
        self, request: httpx2.Request, arrival: ResponseStream, may_read: asyncio.Event
    ) -> None:
        try:
            response = await self._client.send(request, stream=True)
            try:
                headers = [(name.lower(), value) for name, value in response.headers.raw]
                arrival.begin(response.status_code, headers)
                async for piece in response.aiter_raw():
                    arrival.put(piece)
                    await may_read.wait()
                arrival.end()
            finally:
                await response.aclose()
        except httpx2.HTTPError as error:
            unreached = (httpx2.ConnectError, httpx2.ConnectTimeout, httpx2.ProxyError)
            never = isinstance(error, unreached) and not arrival.status
            arrival.fail("connect" if never else "broken_off")
        except (ValueError, httpx2.StreamError, httpx2.InvalidURL):
            arrival.fail("malformed")

    def _over(self, task: "asyncio.Task[None]") -> None:
        self._calls.discard(task)
        if self._closed and not self._calls:
            self._closing = asyncio.get_running_loop().create_task(self._client.aclose())


async def _once(held: list[bytes]) -> AsyncIterator[bytes]:
    """A body that is released once sent, since the request lives as long as its response."""
    yield held.pop()
