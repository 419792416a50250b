"""The way to each target: its provider's connections, its paths, and the headers that it needs.

Where the environment names a proxy for a provider, its calls go by way of that, by httpx2.
"""

import asyncio
import urllib.request
from collections.abc import AsyncIterator, Mapping
from http.cookiejar import CookieJar, DefaultCookiePolicy
from typing import final
from urllib.parse import unquote_to_bytes

import httpx2

from prefill_router.client import NO_KEY, is_loopback
from prefill_router.errors import ConfigError
from prefill_router.gateway.proxy.call import (
    BrokenResponseError,
    ClientConnection,
    ForwardRequest,
    Header,
    ResponseStream,
)
from prefill_router.gateway.proxy.connections import ConnectionPool
from prefill_router.gateway.records import AttemptEnd
from prefill_router.gateway.settings import FailureSettings
from prefill_router.targets import Endpoint, Provider

_IDLE_SECONDS = 3.0  # as in `connections`


def wants_proxy(url: httpx2.URL) -> bool:
    """Whether the environment names a proxy for this URL (`HTTPS_PROXY`, `NO_PROXY`, ...).

    What this machine serves is never asked by way of one, which would read what is meant for it.
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
        url: The provider's.
        connect_seconds: A connection that takes longer has failed.

    Raises:
        ConfigError: The environment's proxies or certificates are unfit.
    """

    def __init__(self, url: httpx2.URL, *, connect_seconds: float) -> None:
        self._url = url
        try:
            self._client = httpx2.AsyncClient(
                limits=httpx2.Limits(
                    max_connections=None,
                    max_keepalive_connections=None,
                    keepalive_expiry=_IDLE_SECONDS,
                ),
                timeout=httpx2.Timeout(None, connect=connect_seconds),
                # what one client's answer sets would go with the next one's request
                cookies=CookieJar(DefaultCookiePolicy(allowed_domains=())),
            )
        except (ImportError, OSError, ValueError, httpx2.InvalidURL):  # which may quote a key
            raise ConfigError(
                "targets can't be asked by way of the proxies or certificates that the environment "
                "names; check HTTP_PROXY, HTTPS_PROXY, ALL_PROXY (http:// or https://) and "
                "SSL_CERT_FILE"
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
        """As `ConnectionPool.call`; what fails on the way is told by the arrival."""
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
        """Close what is idle, and the rest once the calls under way have ended."""
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
            arrival.fail(_end_of(error, started=bool(arrival.status)))
        except (ValueError, httpx2.StreamError, httpx2.InvalidURL):
            arrival.fail("malformed")

    def _over(self, task: "asyncio.Task[None]") -> None:
        self._calls.discard(task)
        if self._closed and not self._calls:
            self._closing = asyncio.get_running_loop().create_task(self._client.aclose())


async def _once(held: list[bytes]) -> AsyncIterator[bytes]:
    """A body that goes with its sending, since what was sent lives as long as the answer."""
    yield held.pop()


def _end_of(error: httpx2.HTTPError, *, started: bool) -> AttemptEnd:
    unreached = (httpx2.ConnectError, httpx2.ConnectTimeout, httpx2.ProxyError)
    return "connect" if isinstance(error, unreached) and not started else "broken_off"


_PATHS: dict[Endpoint, bytes] = {
    "chat": b"/chat/completions",
    "completions": b"/completions",
    "responses": b"/responses",
    "embeddings": b"/embeddings",
    "messages": b"/messages",
}
_FIRST_TOKEN_SECONDS = 60.0
_UNSET_SECONDS = Provider(name="unset", base_url="http://127.0.0.1").first_token_seconds
_VERSION = b"anthropic-version"
_DEFAULT_VERSION = b"2023-06-01"
_OURS = frozenset(
    (
        *(b"host", b"content-length", b"content-type", b"accept-encoding", b"connection"),
        *(b"transfer-encoding", b"authorization", b"x-api-key", b"expect"),
    )
)


@final
class ProviderEndpoint:
    """The way to one provider.

    Args:
        provider: Whom.
        key: Its key.
        failures: Its time limits, where they are set.

    Attributes:
        key: Its key; None where it needs none.
        first_token_seconds: Until the first event of a stream.
        silence_seconds: Between two pieces of a stream.
        answer_seconds: For the whole answer.

    Raises:
        ConfigError: The environment's proxies or certificates are unfit.
    """

    def __init__(self, provider: Provider, key: str, *, failures: FailureSettings) -> None:
        url = httpx2.URL(provider.base_url)
        connect = failures.connect_seconds or provider.connect_seconds
        self._calls: ConnectionPool | ProxiedConnections = _calls(url, connect_seconds=connect)
        self._is_anthropic = provider.dialect == "anthropic"
        self._paths = _paths(url, anthropic=self._is_anthropic)
        self.key = None if provider.api_key_env is None or key == NO_KEY else key
        self._plain = [
            (b"content-type", b"application/json"),  # first: only what has a body gets it
            (b"accept-encoding", b"identity"),  # compression holds tokens back
        ]
        self._bearer, self._own = list(self._plain), list(self._plain)
        if self.key is not None:
            self._bearer.append((b"authorization", b"Bearer " + self.key.encode()))
            self._own.append((b"x-api-key", self.key.encode()))
        self.first_token_seconds = failures.first_token_seconds or _first_token(provider)
        self.silence_seconds = failures.silence_seconds or provider.silence_seconds
        self.answer_seconds = failures.answer_seconds or provider.answer_seconds

    async def call(
        self, call: ForwardRequest, body: bytes, *, client: ClientConnection
    ) -> ResponseStream:
        """Send a request; its reply arrives, and ends early where the client leaves.

        Args:
            call: What is asked.
            body: What is sent.
            client: Who asks.

        Raises:
            BrokenResponseError: There is none.
            ClientGoneError: The client has left.
        """
        path, theirs = self._path(call), self._headers(call)
        for fresh in (False, True):
            arrival = await self._calls.call(
                call.method, path, theirs, body, client=client, fresh=fresh
            )
            self._limit(arrival, stream=call.stream)
            answers = False
            try:
                client.stop_with(arrival.leave)
                await arrival.head()
                answers = True
            except BrokenResponseError as error:
                if fresh or not error.unheard:
                    raise
            finally:
                if not answers:
                    client.stop_with(None)
                    arrival.close()
            if answers:
                break
        if self.key is not None:  # a target that quotes it in a header
            secret = self.key.encode()
            arrival.headers = [header for header in arrival.headers if secret not in header[1]]
        return arrival

    def go_on(self, arrival: ResponseStream) -> None:
        """A piece of a stream has come: from now on its next one is waited for."""
        now = asyncio.get_running_loop().time()
        last = arrival.began + self.answer_seconds
        if now + self.silence_seconds < last:
            arrival.limit(now + self.silence_seconds, "silence")
        else:
            arrival.limit(last, "answer_timeout")

    async def close(self) -> None:
        """Close what is idle, now and from now on."""
        await self._calls.close()

    def _limit(self, arrival: ResponseStream, *, stream: bool) -> None:
        if stream and self.first_token_seconds < self.answer_seconds:
            arrival.limit(arrival.began + self.first_token_seconds, "first_token_timeout")
        else:
            arrival.limit(arrival.began + self.answer_seconds, "answer_timeout")

    def _path(self, call: ForwardRequest) -> bytes:
        path = self._paths[call.endpoint]
        if not (call.below or call.query):
            return path
        path, _, own = path.partition(b"?")
        query = _joined(own, call.query)
        return path + call.below + (b"?" + query if query else b"")

    def _headers(self, call: ForwardRequest) -> list[Header]:
        native = self._is_anthropic and call.endpoint == "messages"
        theirs = [h for h in call.headers if h[0] not in _OURS and b"\n" not in h[1]]
        if native and all(name != _VERSION for name, _ in theirs):
            theirs.append((_VERSION, _DEFAULT_VERSION))
        own = self._own if native else self._bearer
        return [*(own if call.method == b"POST" else own[1:]), *theirs]


def _calls(url: httpx2.URL, *, connect_seconds: float) -> ConnectionPool | ProxiedConnections:
    if wants_proxy(url):
        return ProxiedConnections(url, connect_seconds=connect_seconds)
    if url.scheme != "https":
        return ConnectionPool(url, connect_seconds=connect_seconds, context=None)
    try:
        context = httpx2.create_ssl_context()
    except (OSError, ValueError):
        raise ConfigError(
            "the certificates that the environment names can't be read; check SSL_CERT_FILE and "
            "SSL_CERT_DIR"
        ) from None
    return ConnectionPool(url, connect_seconds=connect_seconds, context=context)


def _paths(url: httpx2.URL, *, anthropic: bool) -> Mapping[Endpoint, bytes]:
    """Each endpoint's path and query; Anthropic's base URL may come without its version."""
    path, mark, query = url.raw_path.partition(b"?")
    path = path.rstrip(b"/")
    if anthropic and not path.endswith(b"/v1"):
        path += b"/v1"
    return {endpoint: path + last + mark + query for endpoint, last in _PATHS.items()}


def _joined(own: bytes, theirs: bytes) -> bytes:
    """The query of a base URL, and the client's, but for what the former says already."""
    said = {_name(part) for part in own.split(b"&")}
    further = (part for part in theirs.split(b"&") if _name(part) not in said)
    return b"&".join(filter(None, (own, *further)))


def _name(part: bytes) -> bytes:
    return unquote_to_bytes(part.partition(b"=")[0])


def _first_token(provider: Provider) -> float:
    """A provider's own limit; its default is meant for runs that nobody waits for."""
    own = provider.first_token_seconds
    return _FIRST_TOKEN_SECONDS if own == _UNSET_SECONDS else own
