"""HTTP connections, one to a lane, so that asking costs the same however many there are.

A pool of n connections looks at all of them whenever a request begins or ends: with 64, that alone
is a third of what a short answer costs the client. Here each call takes a free lane, a pool of one.
"""

from collections.abc import AsyncIterator
from typing import final

import httpx2

_IDLE_SECONDS = 3.0  # less than servers keep idle connections, which is 5 s with uvicorn
_MOST_OF_AN_ERROR = 2**16  # bytes


@final
class Lanes(httpx2.AsyncBaseTransport):
    """A transport that gives each call under way a connection of its own."""

    def __init__(self) -> None:
        self._context = httpx2.create_ssl_context()
        self._limits = httpx2.Limits(max_connections=1, keepalive_expiry=_IDLE_SECONDS)
        self._free: list[httpx2.AsyncHTTPTransport] = []
        self._every: list[httpx2.AsyncHTTPTransport] = []

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        """Send a request on a free lane; it is free again when the response is closed."""
        lane = self._free.pop() if self._free else self._new()
        try:
            response = await lane.handle_async_request(request)
        except BaseException:
            self._free.append(lane)
            raise
        most = None if response.is_success else _MOST_OF_AN_ERROR
        response.stream = _Stream(response.stream, self._free, lane, most)
        return response

    async def aclose(self) -> None:
        """Close every connection."""
        lanes, self._every, self._free = self._every, [], []
        for lane in lanes:
            await lane.aclose()

    def _new(self) -> httpx2.AsyncHTTPTransport:
        lane = httpx2.AsyncHTTPTransport(verify=self._context, limits=self._limits)
        self._every.append(lane)
        return lane


@final
class _Stream(httpx2.AsyncByteStream):
    """A response's bytes; of an error only the beginning."""

    def __init__(
        self,
        inner: object,
        free: list[httpx2.AsyncHTTPTransport],
        lane: httpx2.AsyncHTTPTransport,
        most: int | None,
    ) -> None:
        if not isinstance(inner, httpx2.AsyncByteStream):
            raise TypeError("a transport for asyncio gives streams for asyncio")
        self._inner, self._most = inner, most
        self._free, self._lane = free, lane
        self._is_open = True

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self._inner.__aiter__() if self._most is None else self._beginning(self._most)

    async def aclose(self) -> None:
        if not self._is_open:
            return
        self._is_open = False
        try:
            await self._inner.aclose()
        finally:
            self._free.append(self._lane)

    async def _beginning(self, most: int) -> AsyncIterator[bytes]:
        async for piece in self._inner:
            yield piece[:most]
            most -= len(piece)
            if most <= 0:
                return
