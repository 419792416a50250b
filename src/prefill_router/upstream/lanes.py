"""HTTP connections, one to a lane, so that asking costs the same however many there are.

A pool of n connections looks at all of them whenever a request begins or ends: with 64, that alone
is a third of what a short answer costs the client. Here each call takes a free connection.
"""

from collections.abc import AsyncIterable, AsyncIterator
from typing import final

import httpcore2
import httpx2

from prefill_router.upstream.wire import PlainBackend

_IDLE_SECONDS = 3.0  # less than servers keep idle connections, which is 5 s with uvicorn
_MOST_OF_AN_ERROR = 2**16  # bytes
_Lane = httpcore2.AsyncHTTPConnection
BROKEN = (httpcore2.NetworkError, httpcore2.ProtocolError, httpcore2.TimeoutException)
"""What reading an answer may raise."""
_THEIRS: dict[type[Exception], type[httpx2.TransportError]] = {
    httpcore2.ConnectTimeout: httpx2.ConnectTimeout,
    httpcore2.ConnectError: httpx2.ConnectError,
    httpcore2.ReadError: httpx2.ReadError,
    httpcore2.WriteError: httpx2.WriteError,
    httpcore2.RemoteProtocolError: httpx2.RemoteProtocolError,
    httpcore2.LocalProtocolError: httpx2.LocalProtocolError,
}


@final
class Lanes(httpx2.AsyncBaseTransport):
    """A transport that gives each call under way a connection of its own."""

    def __init__(self) -> None:
        self._context = httpx2.create_ssl_context()
        self._free: list[_Lane] = []
        self._every: set[_Lane] = set()

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        """Send a request on a free connection; it is free again when the response is closed.

        Raises:
            httpx2.TransportError: No response came.
        """
        origin = httpcore2.Origin(
            request.url.raw_scheme,
            request.url.raw_host,
            request.url.port or {"http": 80, "https": 443}[request.url.scheme],
        )
        lane = await self._lane(origin)
        self._every.discard(lane)  # where no response comes, it has closed itself
        try:
            response = await lane.handle_async_request(_translated(request))
        except BROKEN as error:
            theirs = _THEIRS.get(type(error), httpx2.NetworkError)
            raise theirs(str(error), request=request) from error
        self._every.add(lane)
        return httpx2.Response(
            response.status,
            headers=response.headers,
            stream=_Stream(response, self, lane),
            extensions=response.extensions,
        )

    def release(self, lane: _Lane) -> None:
        """Take back a connection that has been read to its end, or forget a closed one."""
        if lane.is_idle() and lane in self._every:
            self._free.append(lane)
        else:
            self._every.discard(lane)

    async def aclose(self) -> None:
        """Close every connection."""
        lanes, self._every, self._free = self._every, set(), []
        for lane in lanes:
            await lane.aclose()

    async def _lane(self, origin: httpcore2.Origin) -> _Lane:
        while self._free:
            lane = self._free.pop()
            if lane.can_handle_request(origin) and lane.is_available() and not lane.has_expired():
                return lane
            self._every.discard(lane)
            await lane.aclose()
        return _Lane(
            origin,
            ssl_context=self._context,
            keepalive_expiry=_IDLE_SECONDS,
            network_backend=PlainBackend() if origin.scheme == b"http" else None,
        )


@final
class _Stream(httpx2.AsyncByteStream):
    """A response's bytes; of an error only the beginning."""

    def __init__(self, response: httpcore2.Response, lanes: Lanes, lane: _Lane) -> None:
        if not isinstance(response.stream, AsyncIterable):
            raise TypeError("a connection on asyncio gives streams for asyncio")
        self._response, self._pieces = response, response.stream
        self._lanes, self._lane = lanes, lane
        self._is_open = True

    def __aiter__(self) -> AsyncIterator[bytes]:
        is_success = 200 <= self._response.status < 300
        return aiter(self._pieces) if is_success else self._beginning()

    async def aclose(self) -> None:
        if self._is_open:
            self._is_open = False
            try:
                await self._response.aclose()
            finally:
                self._lanes.release(self._lane)

    async def _beginning(self) -> AsyncIterator[bytes]:
        left = _MOST_OF_AN_ERROR
        async for piece in self._pieces:
            yield piece[:left]
            left -= len(piece)
            if left <= 0:
                return


def _translated(request: httpx2.Request) -> httpcore2.Request:
    url = request.url
    return httpcore2.Request(
        request.method,
        httpcore2.URL(scheme=url.raw_scheme, host=url.raw_host, port=url.port, target=url.raw_path),
        headers=request.headers.raw,
        content=request.stream,
        extensions=request.extensions,
    )
