"""Connections that hold little and end soon, until their request is whole (uvicorn).

uvicorn reads headers of any length, and waits for their end, and for the end of a body that nobody
reads any more, as long as the connection lives. Here both end.
"""

import asyncio
from typing import Any, final

from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from prefill_router.gateway.guarding.replies import refusal_body
from prefill_router.gateway.refusal import RefusalError


def guarded_protocol(*, header_bytes: int, seconds: float = 30.0) -> type[HttpToolsProtocol]:
    """The class of connections, for `uvicorn.Config(http=...)`.

    Args:
        header_bytes: Headers that are longer are refused with 431 before all of them are read.
        seconds: A connection without a request under way is closed after so long: where nothing
            was asked yet, headers are still coming, or a body that was refused is.
    """

    @final
    class Connection(_Connection):
        most_bytes = header_bytes
        most_seconds = seconds

    return Connection


class _Connection(HttpToolsProtocol):
    most_bytes: int
    most_seconds: float

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._size = 0  # of what has come of the present headers
        self._in_headers = True
        self._waiting: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:  # uvloop's are no asyncio.Transport
        super().connection_made(transport)
        self._wait()

    def connection_lost(self, exc: Exception | None) -> None:
        self._wait_no_more()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._in_headers:
            self._size += len(data)
        super().data_received(data)
        if self.transport.is_closing():
            return
        if self._in_headers and self._size > self.most_bytes:
            self._refuse()
        elif self._waiting is None and self._is_idle() and self.timeout_keep_alive_task is None:
            self._wait()

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._in_headers = True

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._in_headers:  # else it comes after the body, where nobody looks for it
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        self._in_headers = False
        self._size = 0
        self._wait_no_more()
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        self._in_headers = True
        super().on_message_complete()

    def _is_idle(self) -> bool:
        return self.cycle is None or self.cycle.response_complete

    def _wait(self) -> None:
        self._waiting = self.loop.call_later(self.most_seconds, self._end)

    def _wait_no_more(self) -> None:
        if self._waiting is not None:
            self._waiting.cancel()
            self._waiting = None

    def _end(self) -> None:
        self._waiting = None
        if self._is_idle() and not self.transport.is_closing():
            self.transport.close()

    def _refuse(self) -> None:
        if not self._is_idle():  # pipelined: an answer is on its way
            self.transport.close()
            return
        body = refusal_body(
            RefusalError(
                f"the request's headers have more than {self.most_bytes} bytes",
                status=431,
                code="headers_too_large",
            ),
            path="",
        )
        head = (
            b"content-type: application/json\r\ncontent-length: %d\r\nconnection: close\r\n\r\n"
        ) % len(body)
        self.transport.write(STATUS_LINE[431] + head + body)
        self.transport.close()
