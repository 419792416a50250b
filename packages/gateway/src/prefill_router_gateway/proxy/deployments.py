"""A target's endpoints: in which order they are called, and how one is called.

Where the environment names a proxy for a provider, its calls go through that proxy.

Where a target has several endpoints, a conversation stays at one, whose prompt cache holds it.
Which one follows from the names alone (weighted rendezvous hashing), so that all replicas agree
without sharing anything, and a change of the pool moves only as many conversations as it must.
Those whose rate limits are used up come last.
"""

import hashlib
import math
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import partial
from typing import final
from urllib.parse import unquote_to_bytes

import httpx2

from prefill_router.endpoints import (
    NO_KEY,
    Callee,
    FailedCall,
    limits_left,
    trusted_certificates,
    wants_proxy,
)
from prefill_router.targets import Endpoint, Pool, Provider, Target
from prefill_router_gateway.errors import BrokenResponseError
from prefill_router_gateway.protocol import ANTHROPIC_VERSION
from prefill_router_gateway.proxy.client_connection import ClientConnection
from prefill_router_gateway.proxy.connections import ConnectionPool
from prefill_router_gateway.proxy.failures import FAILURE_WORDS, AttemptFailedError
from prefill_router_gateway.proxy.forward_request import ForwardRequest
from prefill_router_gateway.proxy.proxied_connections import ProxiedConnections
from prefill_router_gateway.proxy.response_stream import ResponseStream, TimeLimits
from prefill_router_gateway.records import Header
from prefill_router_gateway.settings import FailureSettings

_PATHS: dict[Endpoint, bytes] = {
    "chat": b"/chat/completions",
    "completions": b"/completions",
    "responses": b"/responses",
    "embeddings": b"/embeddings",
    "messages": b"/messages",
}
_UNSET = Provider(name="unset", base_url="http://127.0.0.1")
_LIMITS = TimeLimits(first=60.0, silence=_UNSET.silence_seconds, whole=_UNSET.answer_seconds)
_THINKING_LIMITS = replace(_LIMITS, first=600.0, silence=600.0)
_DEFAULT_VERSION = b"2023-06-01"
_OURS = frozenset(
    (
        *(b"host", b"content-length", b"content-type", b"accept-encoding", b"connection"),
        *(b"transfer-encoding", b"authorization", b"x-api-key", b"expect"),
    )
)


@final
class ProviderEndpoint:
    """One provider's endpoint.

    Args:
        provider: The provider.
        key: Its key.
        failures: Settings whose time limits, where set, override the provider's.

    Attributes:
        origin: The scheme, host and port of its server.
        key: Its key; None where it needs none.
        limits: The time limits of its answers.
        thinking_limits: The same for answers that begin with minutes of thinking.

    Raises:
        ConfigError: The environment's proxies or certificates can't be used.
    """

    def __init__(self, provider: Provider, key: str, *, failures: FailureSettings) -> None:
        url = httpx2.URL(provider.base_url)
        self.origin = f"{url.scheme}://{url.netloc.decode()}"
        connect = failures.connect_seconds or provider.connect_seconds
        self._calls: ConnectionPool | ProxiedConnections = _calls(url, connect_seconds=connect)
        self._is_anthropic = provider.dialect == "anthropic"
        self._paths = _paths(url, anthropic=self._is_anthropic)
        self.key = None if provider.api_key_env is None or key == NO_KEY else key
        self._callee = Callee(
            subject="its endpoint", address=provider.base_url, words=FAILURE_WORDS
        )
        self._plain = [
            (b"content-type", b"application/json"),  # first, since only POST requests get it
            (b"accept-encoding", b"identity"),  # compression delays streamed tokens
        ]
        self._bearer, self._own = list(self._plain), list(self._plain)
        if self.key is not None:
            self._bearer.append((b"authorization", b"Bearer " + self.key.encode()))
            self._own.append((b"x-api-key", self.key.encode()))
        own = {
            "first": failures.first_token_seconds or _own_limit(provider, "first_token_seconds"),
            "silence": failures.silence_seconds or _own_limit(provider, "silence_seconds"),
            "whole": failures.answer_seconds or _own_limit(provider, "answer_seconds"),
        }
        limits = {name: seconds for name, seconds in own.items() if seconds is not None}
        self.limits = replace(_LIMITS, **limits)
        self.thinking_limits = replace(_THINKING_LIMITS, **limits)

    async def call(
        self, call: ForwardRequest, body: bytes, *, client: ClientConnection, thinks: bool = False
    ) -> ResponseStream:
        """Send a request and wait for the status; a disconnect of the client ends the response.

        Args:
            call: The request to forward.
            body: The body for this target.
            client: The client.
            thinks: Whether the answer may begin with minutes of thinking.

        Raises:
            BrokenResponseError: There is no response.
            ClientGoneError: The client has disconnected.
        """
        path, theirs = self._path(call), self._headers(call)
        for fresh in (False, True):
            arrival = await self._calls.call(
                call.method, path, theirs, body, client=client, fresh=fresh
            )
            arrival.limits = self.thinking_limits if thinks else self.limits
            if call.stream:
                arrival.await_first()
            else:
                arrival.await_end()
            answers = False
            try:
                client.stop_with(partial(arrival.fail, "disconnected"))
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
        if self.key is not None:  # a target may quote it in a header
            secret = self.key.encode()
            arrival.headers = [header for header in arrival.headers if secret not in header[1]]
        return arrival

    def describe(self, failure: AttemptFailedError) -> str:
        """Why a call of this endpoint failed and what to do, without its query, key and message."""
        failed = FailedCall(
            kind=failure.end,
            cause=failure.cause,
            status=failure.status,
            location=failure.location,
            encoding=failure.encoding,
        )
        return self._callee.describe(failed, secrets=() if self.key is None else (self.key,))

    async def close(self) -> None:
        """Close idle connections, now and later."""
        await self._calls.close()

    def _path(self, call: ForwardRequest) -> bytes:
        path = self._paths[call.endpoint]
        if not (call.below or call.query):
            return path
        path, _, own = path.partition(b"?")
        query = _join_queries(own, call.query)
        return path + call.below + (b"?" + query if query else b"")

    def _headers(self, call: ForwardRequest) -> list[Header]:
        native = self._is_anthropic and call.endpoint == "messages"
        theirs = [h for h in call.headers if h[0] not in _OURS and b"\n" not in h[1]]
        if native and all(name != ANTHROPIC_VERSION for name, _ in theirs):
            theirs.append((ANTHROPIC_VERSION, _DEFAULT_VERSION))
        own = self._own if native else self._bearer
        return [*(own if call.method == b"POST" else own[1:]), *theirs]


def _calls(url: httpx2.URL, *, connect_seconds: float) -> ConnectionPool | ProxiedConnections:
    if wants_proxy(str(url)):
        return ProxiedConnections(url, connect_seconds=connect_seconds)
    if url.scheme != "https":
        return ConnectionPool(url, connect_seconds=connect_seconds, context=None)
    return ConnectionPool(url, connect_seconds=connect_seconds, context=trusted_certificates())


def _paths(url: httpx2.URL, *, anthropic: bool) -> Mapping[Endpoint, bytes]:
    """The path and query of each endpoint; Anthropic's base URL may lack its version."""
    path, mark, query = url.raw_path.partition(b"?")
    path = path.rstrip(b"/")
    if anthropic and not path.endswith(b"/v1"):
        path += b"/v1"
    return {endpoint: path + last + mark + query for endpoint, last in _PATHS.items()}


def _join_queries(own: bytes, theirs: bytes) -> bytes:
    """The query of a base URL, and the client's parameters that it doesn't set already."""
    own_names = {_name(part) for part in own.split(b"&")}
    further = (part for part in theirs.split(b"&") if _name(part) not in own_names)
    return b"&".join(filter(None, (own, *further)))


def _name(part: bytes) -> bytes:
    return unquote_to_bytes(part.partition(b"=")[0])


def _own_limit(provider: Provider, limit: str) -> float | None:
    """A limit that the pool file sets; None for the default, which is for batch runs."""
    own: float = getattr(provider, limit)
    return None if own == getattr(_UNSET, limit) else own


_HASH_BYTES = 8
_UNSAID_SECONDS = 1.0  # the wait after a rate limit where the provider names none
_OF_INPUT = ("tokens", "input-tokens")


@final
class RateHeadroom:
    """What the providers say remains of their rate limits, by deployment; it outlives a pool.

    Args:
        clock: A monotonic clock, in seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._left: dict[str, dict[str, tuple[float, float]]] = {}  # what remains, until when
        self._shared: Mapping[str, str] = {}

    def use_pool(self, pool: Pool) -> None:
        """Use the deployments of this pool; all efforts of a model share their limits."""
        self._shared = pool.deployment_names

    def observe(self, deployment: str, headers: Iterable[Header]) -> None:
        """Read what remains from the headers of a response."""
        fields = {n.decode("latin-1"): v.decode("latin-1") for n, v in headers if b"ratelimit" in n}
        now = self._clock()
        for kind, left, reset in limits_left(fields, now=time.time()) if fields else ():
            until = now + (_UNSAID_SECONDS if reset is None else reset)
            self._limits(deployment)[kind] = (left, until)

    def refused(self, deployment: str, wait: float | None) -> None:
        """Note that a rate limit refused a call; it may be tried again after so many seconds."""
        until = self._clock() + (_UNSAID_SECONDS if wait is None else wait)
        self._limits(deployment)["refused"] = (0.0, until)

    def _limits(self, deployment: str) -> dict[str, tuple[float, float]]:
        return self._left.setdefault(self._shared.get(deployment, deployment), {})

    def lacks(self, deployment: str, tokens: int) -> bool:
        """Whether a request of so many input tokens would pass a rate limit now."""
        limits, now = self._left.get(self._shared.get(deployment, deployment)), self._clock()
        return limits is not None and any(
            left < (max(tokens, 1) if kind in _OF_INPUT else 1) and until > now
            for kind, (left, until) in limits.items()
        )


@final
class DeploymentOrder:
    """In which order the endpoints of a target are called.

    Args:
        target: A target with several endpoints.
        headroom: What remains of their rate limits.
    """

    def __init__(self, target: Target, headroom: RateHeadroom) -> None:
        self._endpoints = [
            (deployment, endpoint.priority, endpoint.weight)
            for deployment, endpoint in zip(target.deployments, target.endpoints, strict=True)
        ]
        self._headroom = headroom

    def __call__(self, conversation: str, tokens: int) -> list[str]:
        """Their names, the first to be called first.

        Args:
            conversation: The name of the conversation, or of the request if it has none.
            tokens: Estimated input tokens; deployments whose rate limits they pass come last.
        """
        ranked = sorted(
            (
                self._headroom.lacks(deployment.name, tokens),
                priority,
                _distance(conversation, deployment.base) / weight,
                deployment.name,
            )
            for deployment, priority, weight in self._endpoints
        )
        return [name for *_, name in ranked]


def _distance(conversation: str, deployment: str) -> float:
    """An exponential variate that is fixed for the two names: the least by weight is first."""
    text = f"{conversation}\0{deployment}".encode("utf-8", "surrogatepass")
    number = int.from_bytes(hashlib.sha256(text).digest()[:_HASH_BYTES], "big")
    return -math.log((number + 1) / (1 << 8 * _HASH_BYTES))
