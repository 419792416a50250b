"""Connections with limits on the size and time of incomplete requests (uvicorn).

A `GuardedConnection` stands between a socket and uvicorn's own protocol. It parses what arrives and
gives uvicorn the whole headers of valid requests, one request at a time. So uvicorn never sees what
it has no limits for: headers without an end, bytes that aren't HTTP, trailers, offers of an upgrade
(ignored, RFC 9110, 7.8), and requests that come before the response to the last one.

uvicorn's protocol is used only by the methods of `asyncio.Protocol`; `check_uvicorn` checks the
rest. docs/decisions/0033-in-front-of-uvicorn.md says what stops which attack.
"""

import asyncio
import inspect
from collections import Counter, deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, ClassVar, cast, final

import httptools
import uvicorn
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http import httptools_impl

from prefill_router.errors import ConfigError
from prefill_router_gateway.errors import RefusalError
from prefill_router_gateway.guard.refusals import refusal_body, send_refusal

_OnRefusal = Callable[[RefusalError, str | None], None]
_REQUEST = "prefill_router_gateway.request"  # in the `state` of a scope
_OFFER = (b"upgrade", b"http2-settings")
_NOT_HTTP = frozenset(
    (
        b"PRI",  # the preface of HTTP/2, of which uvicorn's parser would await the rest
        *(b"DESCRIBE", b"ANNOUNCE", b"SETUP", b"PLAY", b"PAUSE", b"TEARDOWN", b"GET_PARAMETER"),
        *(b"SET_PARAMETER", b"REDIRECT", b"RECORD", b"FLUSH"),  # RTSP
    )
)
"""Methods of other protocols, which httptools reads too."""
_STATUS_LINES = {
    400: b"HTTP/1.1 400 Bad Request\r\n",
    431: b"HTTP/1.1 431 Request Header Fields Too Large\r\n",
}
_USED_OF_SERVER = (
    *("serve", "startup", "main_loop", "shutdown", "capture_signals", "_captured_signals"),
    *("config", "server_state", "started", "should_exit", "force_exit"),
)


def guarded_config(
    app: ASGIApp,
    *,
    header_bytes: int,
    connections: int | None = None,
    waiting_per_address: int | None = None,
    on_refusal: _OnRefusal = lambda *_: None,
    seconds: float = 30.0,
    still_seconds: float = 60.0,
    **options: Any,
) -> uvicorn.Config:
    """The configuration of uvicorn for an application behind guarded connections.

    Args:
        app: The application.
        header_bytes: Longer headers are refused with 431 before all of them are read.
        connections: The most connections; requests on further ones are refused with 503. None for
            no limit.
        waiting_per_address: The most connections per address without complete headers; further
            ones are closed. None for no limit.
        on_refusal: Called with each refusal made here and the client's address.
        seconds: A connection without a request in flight is closed after this time: before its
            first request, within headers, or within a refused body.
        still_seconds: A connection is closed if a response waits for its client and the client
            reads less than about 50 kB in this time.
        options: uvicorn's other options.

    Raises:
        ConfigError: The installed uvicorn can't be used.
    """
    check_uvicorn()
    shared = _Rules(
        header_bytes=header_bytes,
        connections=connections,
        waiting_per_address=waiting_per_address,
        on_refusal=on_refusal,
        seconds=seconds,
        still_seconds=still_seconds,
    )

    @final
    class Connection(GuardedConnection):
        rules = shared

    return uvicorn.Config(_ReportingApp(app), http=Connection, ws="none", **options)


def open_connections(config: uvicorn.Config) -> list["GuardedConnection"]:
    """The open connections of a server with a `guarded_config`."""
    protocol = cast("type[GuardedConnection]", config.http)
    return list(protocol.rules.open)


def check_uvicorn() -> None:
    """Check that the installed uvicorn has what the gateway uses of it.

    Raises:
        ConfigError: Something is missing or has changed; the message names it.
    """
    protocol: Any = getattr(httptools_impl, "HttpToolsProtocol", None)
    config: Any = uvicorn.Config
    uses = {
        "an asyncio.Protocol named HttpToolsProtocol": inspect.isclass(protocol)
        and issubclass(protocol, asyncio.Protocol),
        "HttpToolsProtocol(config=, server_state=, app_state=)": _takes_arguments(
            protocol, "config", "server_state", "app_state"
        ),
        "HttpToolsProtocol.shutdown()": hasattr(protocol, "shutdown"),
        "Config(app, http=, ws=)": _takes_arguments(config, "app", "http", "ws"),
    }
    server = uvicorn.Server(uvicorn.Config(_refuse_excess, log_config=None))
    uses |= {f"Server.{name}": hasattr(server, name) for name in _USED_OF_SERVER}
    uses["Server.server_state.tasks"] = hasattr(server.server_state, "tasks")
    missing = [name for name, is_there in uses.items() if not is_there]
    if missing:
        raise ConfigError(
            f"uvicorn {uvicorn.__version__} lacks what the gateway needs: {', '.join(missing)}; "
            "install a version that prefill-router-gateway allows"
        )


def _takes_arguments(function: Any, *names: str) -> bool:
    try:
        inspect.signature(function).bind_partial(**dict.fromkeys(names))
    except (TypeError, ValueError):
        return False
    return True


@final
@dataclass(frozen=True)
class _Rules:
    """The limits of a server's connections, and what they share."""

    header_bytes: int
    connections: int | None
    waiting_per_address: int | None
    on_refusal: _OnRefusal
    seconds: float
    still_seconds: float
    open: set["GuardedConnection"] = field(default_factory=set)
    waiting: Counter[str] = field(default_factory=Counter)


@final
@dataclass(slots=True, eq=False)
class _Request:
    """A request that isn't over: its response or its body isn't complete.

    Attributes:
        is_excess: Whether its connection is beyond the limit, so that it is refused.
        pieces: What uvicorn hasn't received of it.
        size: The bytes received of it.
        is_passed: Whether uvicorn has received its headers.
        is_started: Whether its response has begun.
        is_answered: Whether its response is complete.
        is_complete: Whether its body is complete.
    """

    connection: "GuardedConnection"
    is_excess: bool
    pieces: list[bytes] = field(default_factory=list)
    size: int = 0
    is_passed: bool = False
    is_started: bool = False
    is_answered: bool = False
    is_complete: bool = False

    def add(self, piece: bytes) -> None:
        self.pieces.append(piece)
        self.size += len(piece)

    async def end(self, send: Send, message: Message) -> None:
        """Send the end of the response, and go on with the next request."""
        await send(message)
        self.is_answered = True
        self.connection.go_on()


@final
class _ReportingApp:
    """The application; each request's connection learns when its response begins and ends."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        request: _Request = scope["state"].pop(_REQUEST)

        def report(message: Message) -> Awaitable[None]:
            if message["type"] == "http.response.start":
                request.is_started = True
            elif not message.get("more_body", False):
                return request.end(send, message)
            return send(message)

        await (_refuse_excess if request.is_excess else self._app)(scope, receive, report)


class GuardedConnection(asyncio.Protocol):
    """One connection. uvicorn makes it, with the arguments of its own protocol."""

    rules: ClassVar[_Rules]

    def __init__(self, *, app_state: dict[str, Any], **arguments: Any) -> None:
        self._state = {**app_state}  # uvicorn copies it into the scope of each request
        self._uvicorn = httptools_impl.HttpToolsProtocol(app_state=self._state, **arguments)
        self._loop = asyncio.get_running_loop()
        self._parser: Any = httptools.HttpRequestParser(self)
        self._transport: Any = None
        self._address = ""
        self._requests: deque[_Request] = deque()  # the first one is uvicorn's
        self._url = b""
        self._headers: list[tuple[bytes, bytes]] = []
        self._size = 0  # bytes received of the current headers
        self._in_headers = True
        self._is_chunked = self._is_offered = False
        self._last: RefusalError | None = None  # to send after all responses that are due
        self._ignores_input = self._is_lost = self._is_paused = False
        self._waiting: asyncio.TimerHandle | None = None
        self._stuck: asyncio.TimerHandle | None = None

    def abort(self) -> None:
        """Close it at once; its requests end as if the client had disconnected."""
        self._transport.abort()

    # Called by asyncio.

    def connection_made(self, transport: Any) -> None:  # uvloop's isn't an asyncio.Transport
        """Count the connection, and limit the time until its first request."""
        self._transport = transport
        peer = transport.get_extra_info("peername")
        self._address = str(peer[0]) if isinstance(peer, tuple) else ""
        self.rules.open.add(self)
        self._uvicorn.connection_made(transport)
        self._start_waiting()
        most = self.rules.waiting_per_address
        if most is not None and self.rules.waiting[self._address] > most:
            self._report(_many_waiting_refusal(most))
            self._transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        """End the answer."""
        self._stop_stuck_timer()
        self._stop_waiting()
        self.rules.open.discard(self)
        self._report_disconnect(exc)
        self._requests.clear()
        self._state.clear()
        self._parser = None  # it refers to this connection

    def pause_writing(self) -> None:
        """Start the timer, since the client reads too slowly or not at all."""
        self._uvicorn.pause_writing()
        if self._stuck is None:
            self._stuck = self._loop.call_later(self.rules.still_seconds, self._abort_stuck)

    def resume_writing(self) -> None:
        """Stop the timer, since the client has read."""
        self._stop_stuck_timer()
        self._uvicorn.resume_writing()

    def data_received(self, data: bytes) -> None:
        """Parse received bytes, and pass on what is valid."""
        if self._ignores_input:
            return
        if self._in_headers:
            self._size += len(data)
        self._parse(data)
        self.go_on()
        if self._transport.is_closing() or self._ignores_input:
            return
        if self._in_headers and self._size > self.rules.header_bytes:
            self._refuse(_long_headers_refusal(self.rules.header_bytes))
        elif self._is_idle():
            self._uvicorn.data_received(b"")  # its wait for the next request ends
            if self._waiting is None:
                self._start_waiting()
        else:
            self._pause_if_full()

    # Called by the parser.

    def on_message_begin(self) -> None:
        """Start with no headers."""
        self._url, self._headers = b"", []
        self._in_headers, self._is_chunked = True, False

    def on_url(self, url: bytes) -> None:
        """Add a part of the URL."""
        self._url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        """Add a header."""
        if self._in_headers:  # otherwise it is a trailer, which nothing reads
            self._headers.append((name, value))

    def on_headers_complete(self) -> None:
        """Begin a request."""
        self._size = 0
        self._stop_waiting()
        self._is_offered = self._parser.should_upgrade()
        if self._is_offered:  # see `_ignore_upgrade`
            return
        if self._parser.get_method() in _NOT_HTTP:
            raise ValueError("a method of another protocol")
        httptools.parse_url(self._url).path.decode("ascii")  # uvicorn would refuse others
        most = self.rules.connections
        request = _Request(self, is_excess=most is not None and len(self.rules.open) > most)
        request.add(self._make_head(self._headers))
        self._requests.append(request)
        self._in_headers = False

    def on_chunk_header(self) -> None:
        """Note how the body arrives."""
        self._is_chunked = True

    def on_body(self, body: bytes) -> None:
        """Add a piece of the body."""
        request = self._requests[-1]
        request.add(b"%x\r\n%b\r\n" % (len(body), body) if self._is_chunked else body)

    def on_message_complete(self) -> None:
        """End the body."""
        self._in_headers = True
        if self._is_offered:
            return
        request = self._requests[-1]
        request.is_complete = True
        if self._is_chunked:
            request.add(b"0\r\n\r\n")

    # Requests, in their order.

    def go_on(self) -> None:
        """Pass on what has arrived of the first request, or of the next one if that is over."""
        while self._requests and not self._transport.is_closing():
            request = self._requests[0]
            self._pass_on(request)
            if not (request.is_answered and request.is_complete):
                return
            self._requests.popleft()
            self._resume_reading()
            if not self._requests and self._last is not None:
                self._send_last(self._last)

    def _pass_on(self, request: _Request) -> None:
        if not request.is_passed:
            request.is_passed = True
            self._state[_REQUEST] = request
        if request.pieces:
            pieces, request.pieces = request.pieces, []
            self._uvicorn.data_received(b"".join(pieces))

    def _is_idle(self) -> bool:
        return not self._requests or self._requests[0].is_answered

    def _pause_if_full(self) -> None:
        """Stop reading while the requests behind the first one are large.

        Without a pause it would learn of a disconnect, so a few small requests don't cause one.
        """
        queued = sum(request.size for request in self._requests) - self._requests[0].size
        if queued > self.rules.header_bytes:
            self._is_paused = True
            self._transport.pause_reading()  # again, as uvicorn resumes it for the first request

    def _resume_reading(self) -> None:
        if self._is_paused:
            self._is_paused = False
            self._transport.resume_reading()

    # Time limits.

    def _start_waiting(self) -> None:
        self._stop_waiting()
        self.rules.waiting[self._address] += 1
        self._waiting = self._loop.call_later(self.rules.seconds, self._end_idle)

    def _stop_waiting(self) -> None:
        if self._waiting is not None:
            self._waiting.cancel()
            self._waiting = None
            self.rules.waiting[self._address] -= 1
            if not self.rules.waiting[self._address]:
                del self.rules.waiting[self._address]

    def _end_idle(self) -> None:
        self._stop_waiting()
        if self._is_idle() and not self._transport.is_closing():
            self._transport.close()

    def _stop_stuck_timer(self) -> None:
        if self._stuck is not None:
            self._stuck.cancel()
            self._stuck = None

    def _abort_stuck(self) -> None:
        self._stuck = None
        self._transport.abort()  # close() would wait until everything is read

    # Requests that aren't valid.

    def _parse(self, data: bytes) -> None:
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            self._ignore_upgrade(data[upgrade.args[0] :])
        except httptools.HttpParserError:
            self._refuse_malformed()

    def _ignore_upgrade(self, rest: bytes) -> None:
        """Parse a request again, without the upgrade that it offers."""
        if self._parser.get_method() == b"CONNECT":
            self._refuse_malformed()
            return
        headers = []
        for name, value in self._headers:
            if name.lower() == b"connection":
                words = value.split(b",")
                value = b", ".join(word for word in words if word.strip().lower() not in _OFFER)
            if name.lower() not in _OFFER:
                headers.append((name, value))
        head = self._make_head(headers)
        self._parser = httptools.HttpRequestParser(self)
        self._parse(head + rest)

    def _make_head(self, headers: list[tuple[bytes, bytes]]) -> bytes:
        version = self._parser.get_http_version().encode()
        rows = [b"%b %b HTTP/%b" % (self._parser.get_method(), self._url, version)]
        rows += [b"%b: %b" % header for header in headers]
        return b"\r\n".join(rows) + b"\r\n\r\n"

    def _refuse_malformed(self) -> None:
        refusal = RefusalError("the request isn't HTTP/1.1; send one that is", code="not_http")
        request = self._requests[-1] if self._requests and not self._in_headers else None
        if request is None:
            self._refuse(refusal)
        elif request.is_answered:
            self._ignores_input = True
            self._transport.close()
        elif request.is_started:
            request.is_complete = True  # no more of its body is read
            self._refuse(refusal)
        else:  # the refusal is its response
            self._requests.pop()
            self._refuse(refusal)
            if request.is_passed:
                self._report_disconnect(None)

    def _refuse(self, refusal: RefusalError) -> None:
        """Refuse a request after the responses that are due before it, and read no more."""
        self._last, self._ignores_input = refusal, True
        if all(request.is_answered for request in self._requests):
            self._send_last(refusal)

    def _send_last(self, refusal: RefusalError) -> None:
        self._report(refusal)
        body = refusal_body(refusal, path="")
        head = (
            b"content-type: application/json\r\ncontent-length: %d\r\nconnection: close\r\n\r\n"
        ) % len(body)
        self._transport.write(_STATUS_LINES[refusal.status] + head + body)
        self._transport.close()

    def _report(self, refusal: RefusalError) -> None:
        self.rules.on_refusal(refusal, self._address or None)

    def _report_disconnect(self, error: Exception | None) -> None:
        """Let uvicorn, and so the application, know that the client has disconnected."""
        if not self._is_lost:
            self._is_lost = True
            self._uvicorn.connection_lost(error)


def _long_headers_refusal(most_bytes: int) -> RefusalError:
    return RefusalError(
        f"the request's headers have more than {most_bytes} bytes; send fewer",
        status=431,
        code="headers_too_large",
    )


def _many_waiting_refusal(most: int) -> RefusalError:
    return RefusalError(
        f"{most} connections from this address have sent no request; send one, or close some",
        status=503,
        kind="server_error",
        code="too_many_waiting",
    )


async def _refuse_excess(scope: Scope, receive: Receive, send: Send) -> None:  # noqa: ARG001
    refusal = RefusalError(
        "the gateway has reached its limit of connections (limits.connections); try again soon",
        status=503,
        kind="server_error",
        code="overloaded",
        headers={"retry-after": "1", "connection": "close"},
    )
    await send_refusal(send, refusal, path=scope["path"])
