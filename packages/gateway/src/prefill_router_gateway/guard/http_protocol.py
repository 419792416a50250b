"""Connections with limits on the size and time of incomplete requests (uvicorn).

uvicorn reads headers of any length and waits without limit for their end, and for the end of a body
that is no longer read. Here both are limited. uvicorn refuses bytes that aren't HTTP in plain text,
at once, even in the middle of an earlier response; here the refusal is JSON, like all of the
guard's, and is sent after the responses due before it. uvicorn loses the body of a request that
offers an upgrade, as every request of Java's client does (h2c); here the offer is ignored (RFC
9110, 7.8).

With pipelined requests, uvicorn reports a disconnect only to the last one, so that the one being
answered goes on; and it waits without limit for a client to read. Here the answer ends when the
client disconnects or stops reading.
"""

import asyncio
import json
from collections import Counter
from collections.abc import Awaitable, Callable
from http import HTTPStatus
from typing import Any, final

import httptools
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from prefill_router_gateway.errors import RefusalError


def refusal_body(refusal: RefusalError, *, path: str) -> bytes:
    """A refusal's JSON, in the format of the API that the path belongs to."""
    anthropic = path.startswith("/v1/messages")
    return json.dumps(refusal.body(anthropic=anthropic), allow_nan=False).encode()


async def send_refusal(send: Send, refusal: RefusalError, *, path: str) -> None:
    """Send a refusal, in the format of the API that the path belongs to."""
    body = refusal_body(refusal, path=path)
    headers = [
        (b"content-type", b"application/json"),
        (b"content-length", str(len(body)).encode()),
        (b"x-content-type-options", b"nosniff"),
        *((name.encode(), value.encode()) for name, value in refusal.headers.items()),
    ]
    await send({"type": "http.response.start", "status": refusal.status, "headers": headers})
    await send({"type": "http.response.body", "body": body, "more_body": False})


Handler = Callable[[Request, Any], Awaitable[Response]]


def error_handlers() -> dict[int | type[Exception], Handler]:
    """The `exception_handlers` of FastAPI: for Starlette's errors, refusals and unexpected errors.

    The response to an unexpected error reveals nothing of it; the log has the details.
    """
    return {HTTPException: _of_starlette, RefusalError: _reply, Exception: _unexpected}


async def _of_starlette(request: Request, error: HTTPException) -> Response:
    headers = dict(error.headers or {})
    if "Allow" in headers:
        names = {name.strip() for name in headers["Allow"].split(",")}
        names |= {"HEAD"} if "GET" in names else set()  # every GET also answers HEAD
        headers["Allow"] = ", ".join(sorted(names))
    messages = {  # without the path, which may contain anything
        404: f"no such path{_nearest(request)}; /openapi.json lists all paths",
        405: f"the path doesn't accept {request.method}; the header allow lists what it accepts",
    }
    text = messages.get(error.status_code, HTTPStatus(error.status_code).phrase)
    code = {404: "unknown_path", 405: "method_not_allowed"}.get(error.status_code)
    refusal = RefusalError(text, status=error.status_code, code=code, headers=headers)
    return await _reply(request, refusal)


def _nearest(request: Request) -> str:
    """A suggestion of the path that was probably meant, from the server's own paths."""
    known = request.app.openapi()["paths"]
    parts = [part for part in request.scope["path"].split("/") if part]
    while parts[:1] == ["v1"]:
        parts.pop(0)
    for path in ("/" + "/".join(parts), "/" + "/".join(["v1", *parts])):
        if path in known and parts:
            return (
                f"; did you mean {path}? OpenAI's clients need a base URL that ends with /v1, "
                "Anthropic's one without it"
            )
    return ""


async def _unexpected(request: Request, error: Exception) -> Response:  # noqa: ARG001
    refusal = RefusalError(
        "the gateway failed; its log has the error",
        status=500,
        kind="server_error",
        code="internal",
    )
    return await _reply(request, refusal)


async def _reply(request: Request, refusal: RefusalError) -> Response:
    return Response(
        refusal_body(refusal, path=request.url.path),
        status_code=refusal.status,
        headers={"x-content-type-options": "nosniff", **refusal.headers},
        media_type="application/json",
    )


class DisconnectProtocol(HttpToolsProtocol):
    """A connection that ends when its client disconnects or stops reading.

    Attributes:
        most_still: Seconds; a client that reads less than about 50 kB in this time counts as gone.
    """

    most_still: float

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._answering: Any = None  # uvicorn's `cycle` is that of the last request received
        self._stuck: asyncio.TimerHandle | None = None

    def connection_lost(self, exc: Exception | None) -> None:
        """Handle a disconnect: end the answer."""
        self._unstick()
        answering = self._answering
        if answering is not None and not answering.response_complete:
            answering.disconnected = True
            answering.message_event.set()
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        """Start the timer, since the client reads too slowly or not at all."""
        super().pause_writing()
        if self._stuck is None:
            self._stuck = self.loop.call_later(self.most_still, self._give_up)

    def resume_writing(self) -> None:
        """Stop the timer, since the client has read."""
        self._unstick()
        super().resume_writing()

    def _start_asgi_task(self, cycle: Any, app: Any) -> None:
        self._answering = cycle
        super()._start_asgi_task(cycle, app)

    def _unstick(self) -> None:
        if self._stuck is not None:
            self._stuck.cancel()
            self._stuck = None

    def _give_up(self) -> None:
        self._stuck = None
        self.transport.abort()  # close() would wait until everything is read


_OFFER = (b"upgrade", b"http2-settings")


def guarded_protocol(
    *,
    header_bytes: int,
    connections: int | None = None,
    waiting_per_address: int | None = None,
    refused: Callable[[RefusalError, str | None], None] | None = None,
    seconds: float = 30.0,
    still_seconds: float = 60.0,
) -> type[HttpToolsProtocol]:
    """The connection class for `uvicorn.Config(http=...)`.

    Args:
        header_bytes: Longer headers are refused with 431 before all of them are read.
        connections: The most connections; requests on further ones are refused with 503. None for
            no limit.
        waiting_per_address: The most connections per address without complete headers; further
            ones are closed. None for no limit.
        refused: Called with each refusal made here and the client's address.
        seconds: A connection without a request in flight is closed after this time: before its
            first request, within headers, or within a refused body.
        still_seconds: A connection whose client reads nothing is closed after this time.
    """
    counts: Counter[str] = Counter()

    @final
    class Connection(_GuardedConnection):
        most_bytes = header_bytes
        most_connections = connections
        most_waiting = waiting_per_address
        waiting_of = counts
        on_refusal = None if refused is None else staticmethod(refused)
        most_seconds = seconds
        most_still = still_seconds

    return Connection


class _GuardedConnection(DisconnectProtocol):
    most_bytes: int
    most_connections: int | None
    most_waiting: int | None
    waiting_of: Counter[str]
    on_refusal: Callable[[RefusalError, str | None], None] | None
    most_seconds: float

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._size = 0  # bytes received of the current headers
        self._in_headers = True
        self._waiting: asyncio.TimerHandle | None = None
        self._last: RefusalError | None = None  # the refusal to send after all responses due
        self._is_deaf = self._is_offered = False
        self._application = self.app

    def connection_made(self, transport: Any) -> None:  # uvloop's isn't an asyncio.Transport
        super().connection_made(transport)
        self._wait()
        if self.most_waiting is not None and self.waiting_of[self._address] > self.most_waiting:
            self._report(_many_waiting(self.most_waiting))
            self.transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self._wait_no_more()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._is_deaf:
            return
        if self._in_headers:
            self._size += len(data)
        self._feed(data)
        if self.transport.is_closing() or self._is_deaf:
            return
        if self._in_headers and self._size > self.most_bytes:
            self._refuse(_long_headers(self.most_bytes))
        elif self._waiting is None and self._is_idle() and self.timeout_keep_alive_task is None:
            self._wait()

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._in_headers = True

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._in_headers:  # otherwise it is a trailer, which nothing reads
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        self._size = 0
        self._wait_no_more()
        self._is_offered = self.parser.should_upgrade()
        if self._is_offered:  # see `_ignore_upgrade`
            return
        most = self.most_connections
        is_full = most is not None and len(self.connections) > most
        self.app = _refuse_full if is_full else self._application
        super().on_headers_complete()
        self._in_headers = False

    def on_message_complete(self) -> None:
        self._in_headers = True
        if self._is_offered:
            return
        super().on_message_complete()

    def _is_idle(self) -> bool:
        return self.cycle is None or self.cycle.response_complete

    @property
    def _address(self) -> str:
        return "" if self.client is None else self.client[0]

    def _wait(self) -> None:
        self._wait_no_more()
        self.waiting_of[self._address] += 1
        self._waiting = self.loop.call_later(self.most_seconds, self._end)

    def _wait_no_more(self) -> None:
        if self._waiting is not None:
            self._waiting.cancel()
            self._waiting = None
            self.waiting_of[self._address] -= 1
            if not self.waiting_of[self._address]:
                del self.waiting_of[self._address]

    def _end(self) -> None:
        self._wait_no_more()
        if self._is_idle() and not self.transport.is_closing():
            self.transport.close()

    def send_400_response(self, msg: str) -> None:  # noqa: ARG002
        cycle = self.cycle
        if not self._in_headers and cycle is not None:  # the body of this request is invalid
            if cycle.response_complete:
                self.transport.close()
                return
            if self.pipeline and self.pipeline[0][0] is cycle:
                self.pipeline.popleft()
            elif not cycle.response_started:
                cycle.response_complete = True  # the refusal below is its response
        self._refuse(RefusalError("the request isn't HTTP/1.1; send one that is", code="not_http"))

    def on_response_complete(self) -> None:
        was_last = not self.pipeline
        super().on_response_complete()
        if was_last and self._last is not None and not self.transport.is_closing():
            self._end_with(self._last)

    def _feed(self, data: bytes) -> None:
        self._unset_keepalive_if_required()
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            self._ignore_upgrade(data[upgrade.args[0] :])
        except httptools.HttpParserError:
            self.send_400_response("")

    def _ignore_upgrade(self, rest: bytes) -> None:
        """Parse a request again, without the upgrade that it offers."""
        method, version = self.parser.get_method(), self.parser.get_http_version()
        if method == b"CONNECT":
            self.send_400_response("")
            return
        rows = [b"%b %b HTTP/%b" % (method, self.url, version.encode())]
        for name, value in self.headers:
            if name == b"connection":
                value = b", ".join(
                    word for word in value.split(b",") if word.strip().lower() not in _OFFER
                )
            if name not in _OFFER:
                rows.append(b"%b: %b" % (name, value))
        self.parser = httptools.HttpRequestParser(self)
        self._feed(b"\r\n".join(rows) + b"\r\n\r\n" + rest)

    def _refuse(self, refusal: RefusalError) -> None:
        """Refuse a request after the responses due before it, and read no more."""
        self._last, self._is_deaf = refusal, True
        if self._is_idle():
            self._end_with(refusal)

    def _report(self, refusal: RefusalError) -> None:
        if self.on_refusal is not None:
            self.on_refusal(refusal, self._address or None)

    def _end_with(self, refusal: RefusalError) -> None:
        self._report(refusal)
        body = refusal_body(refusal, path="")
        head = (
            b"content-type: application/json\r\ncontent-length: %d\r\nconnection: close\r\n\r\n"
        ) % len(body)
        self.transport.write(STATUS_LINE[refusal.status] + head + body)
        self.transport.close()


def _long_headers(most_bytes: int) -> RefusalError:
    return RefusalError(
        f"the request's headers have more than {most_bytes} bytes; send fewer",
        status=431,
        code="headers_too_large",
    )


def _many_waiting(most: int) -> RefusalError:
    return RefusalError(
        f"{most} connections from this address have sent no request; send one, or close some",
        status=503,
        kind="server_error",
        code="too_many_waiting",
    )


async def _refuse_full(scope: Scope, receive: Receive, send: Send) -> None:  # noqa: ARG001
    refusal = RefusalError(
        "the gateway has reached its limit of connections (limits.connections); try again soon",
        status=503,
        kind="server_error",
        code="overloaded",
        headers={"retry-after": "1", "connection": "close"},
    )
    await send_refusal(send, refusal, path=scope["path"])
