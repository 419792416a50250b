"""Connections that hold little and end soon, until their request is whole (uvicorn).

uvicorn reads headers of any length, and waits for their end, and for the end of a body that nobody
reads any more, as long as the connection lives. Here both end. What isn't HTTP it refuses in plain
text, at once, even amid the answer to an earlier request; here the refusal is JSON, and waits for
the answers that are due before it. Of a request that offers an upgrade, as Java's client does with
every one (h2c), it loses the body; here the offer is passed over (RFC 9110, 7.8).

Where requests are piled up, uvicorn tells only the last of them that the client has left, and the
one that is being answered goes on; and it waits for as long as it takes until a client reads. Here
what they wait for ends with the client.
"""

import asyncio
from collections import Counter
from collections.abc import Callable
from typing import Any, final

import httptools
from starlette.types import Receive, Scope, Send
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from prefill_router.gateway.errors import RefusalError
from prefill_router.gateway.guard.error_replies import refusal_body, send_refusal


class DisconnectProtocol(HttpToolsProtocol):
    """A connection that ends with its client.

    Attributes:
        most_still: Seconds; a client that takes less than some 50 kB in so long counts as gone.
    """

    most_still: float

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._answering: Any = None  # uvicorn's `cycle` is the last that came
        self._stuck: asyncio.TimerHandle | None = None

    def connection_lost(self, exc: Exception | None) -> None:
        """The client has left."""
        self._unstick()
        answering = self._answering
        if answering is not None and not answering.response_complete:
            answering.disconnected = True
            answering.message_event.set()
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        """The client reads too slowly, or nothing."""
        super().pause_writing()
        if self._stuck is None:
            self._stuck = self.loop.call_later(self.most_still, self._give_up)

    def resume_writing(self) -> None:
        """The client has read."""
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
        self.transport.abort()  # closing would wait until all is read


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
    """The class of connections, for `uvicorn.Config(http=...)`.

    Args:
        header_bytes: Headers that are longer are refused with 431 before all of them are read.
        connections: Requests of further connections are refused with 503; None for no limit.
        waiting_per_address: Of one address so many connections at most may have sent no whole
            headers; further ones are closed; None for no limit.
        refused: Told of what is refused here, and the address.
        seconds: A connection without a request under way is closed after so long: where nothing
            was asked yet, headers are still coming, or a body that was refused is.
        still_seconds: So is one whose client reads nothing of what was sent.
    """
    counts: Counter[str] = Counter()

    @final
    class Connection(_GuardedConnection):
        most_bytes = header_bytes
        most_connections = connections
        most_waiting = waiting_per_address
        waiting_of = counts
        told = None if refused is None else staticmethod(refused)
        most_seconds = seconds
        most_still = still_seconds

    return Connection


class _GuardedConnection(DisconnectProtocol):
    most_bytes: int
    most_connections: int | None
    most_waiting: int | None
    waiting_of: Counter[str]
    told: Callable[[RefusalError, str | None], None] | None
    most_seconds: float

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._size = 0  # of what has come of the present headers
        self._in_headers = True
        self._waiting: asyncio.TimerHandle | None = None
        self._last: RefusalError | None = None  # the reply behind all answers that are due
        self._is_deaf = self._is_offered = False
        self._application = self.app

    def connection_made(self, transport: Any) -> None:  # uvloop's are no asyncio.Transport
        super().connection_made(transport)
        self._wait()
        if self.most_waiting is not None and self.waiting_of[self._address] > self.most_waiting:
            self._tell(_many_waiting(self.most_waiting))
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
        if self._in_headers:  # else it comes after the body, where nobody looks for it
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        self._size = 0
        self._wait_no_more()
        self._is_offered = self.parser.should_upgrade()
        if self._is_offered:  # see `_pass_over`
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
        if not self._in_headers and cycle is not None:  # it is the body of this one that is broken
            if cycle.response_complete:
                self.transport.close()
                return
            if self.pipeline and self.pipeline[0][0] is cycle:
                self.pipeline.popleft()
            elif not cycle.response_started:
                cycle.response_complete = True  # by what follows
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
            self._pass_over(data[upgrade.args[0] :])
        except httptools.HttpParserError:
            self.send_400_response("")

    def _pass_over(self, rest: bytes) -> None:
        """Read a request again, without the upgrade that it offers."""
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
        """Refuse what has come, once what came before it is answered; hear no more."""
        self._last, self._is_deaf = refusal, True
        if self._is_idle():
            self._end_with(refusal)

    def _tell(self, refusal: RefusalError) -> None:
        if self.told is not None:
            self.told(refusal, self._address or None)

    def _end_with(self, refusal: RefusalError) -> None:
        self._tell(refusal)
        body = refusal_body(refusal, path="")
        head = (
            b"content-type: application/json\r\ncontent-length: %d\r\nconnection: close\r\n\r\n"
        ) % len(body)
        self.transport.write(STATUS_LINE[refusal.status] + head + body)
        self.transport.close()


def _long_headers(most_bytes: int) -> RefusalError:
    return RefusalError(
        f"the request's headers have more than {most_bytes} bytes",
        status=431,
        code="headers_too_large",
    )


def _many_waiting(most: int) -> RefusalError:
    return RefusalError(
        f"{most} connections of this address have asked nothing; send a request, or close some",
        status=503,
        kind="server_error",
        code="too_many_waiting",
    )


async def _refuse_full(scope: Scope, receive: Receive, send: Send) -> None:  # noqa: ARG001
    refusal = RefusalError(
        "the gateway has as many connections as it takes (limits.connections); ask again soon",
        status=503,
        kind="server_error",
        code="overloaded",
        headers={"retry-after": "1", "connection": "close"},
    )
    await send_refusal(send, refusal, path=scope["path"])
