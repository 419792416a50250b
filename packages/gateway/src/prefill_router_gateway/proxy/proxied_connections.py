"""Calls a provider through a proxy that the environment names, with httpx2."""

import asyncio
from collections.abc import AsyncIterator
from http.cookiejar import CookieJar, DefaultCookiePolicy
from typing import final

import httpx2

from prefill_router.endpoints import connect_cause
from prefill_router.errors import ConfigError
from prefill_router_gateway.proxy.client_connection import ClientConnection
from prefill_router_gateway.proxy.connections import IDLE_SECONDS
from prefill_router_gateway.proxy.response_stream import ResponseStream
from prefill_router_gateway.records import Header


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
            cause = connect_cause(error, through_proxy=True) if never else None
            arrival.fail("connect" if never else "broken_off", cause=cause)
        except (ValueError, httpx2.StreamError, httpx2.InvalidURL):
            arrival.fail("malformed")

    def _over(self, task: "asyncio.Task[None]") -> None:
        self._calls.discard(task)
        if self._closed and not self._calls:
            self._closing = asyncio.get_running_loop().create_task(self._client.aclose())


async def _once(pieces: list[bytes]) -> AsyncIterator[bytes]:
    """A body that is released once sent, since the request lives as long as its response."""
    yield pieces.pop()
