"""A target's endpoints: which may be called now, in which order, and how one is called.

Where the environment names a proxy for a provider, its calls go through that proxy.

A target or endpoint that fails repeatedly isn't called for a while: its circuit breaker is open.

Where a target has several endpoints, a conversation stays at one, whose prompt cache holds it.
Which one follows from the names alone (weighted rendezvous hashing), so that all replicas agree
without sharing anything, and a change of the pool moves only as many conversations as it must.
Those without headroom under their rate limits come last.
"""

import asyncio
import hashlib
import logging
import math
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal, final
from urllib.parse import unquote_to_bytes

import httpx2

from prefill_router.endpoints import NO_KEY, limits_left
from prefill_router.errors import ConfigError
from prefill_router.targets import Endpoint, Provider, Target
from prefill_router_gateway.errors import BrokenResponseError
from prefill_router_gateway.proxy.client_connection import ClientConnection
from prefill_router_gateway.proxy.connections import ConnectionPool
from prefill_router_gateway.proxy.forward_request import ForwardRequest
from prefill_router_gateway.proxy.proxied_connections import ProxiedConnections, wants_proxy
from prefill_router_gateway.proxy.response_stream import ResponseStream
from prefill_router_gateway.records import Header
from prefill_router_gateway.settings import FailureSettings

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
    """One provider's endpoint.

    Args:
        provider: The provider.
        key: Its key.
        failures: Settings whose time limits, where set, override the provider's.

    Attributes:
        key: Its key; None where it needs none.
        first_token_seconds: The time limit for the first event of a stream.
        silence_seconds: The time limit between two pieces of a stream.
        answer_seconds: The time limit for the whole answer.

    Raises:
        ConfigError: The environment's proxies or certificates can't be used.
    """

    def __init__(self, provider: Provider, key: str, *, failures: FailureSettings) -> None:
        url = httpx2.URL(provider.base_url)
        connect = failures.connect_seconds or provider.connect_seconds
        self._calls: ConnectionPool | ProxiedConnections = _calls(url, connect_seconds=connect)
        self._is_anthropic = provider.dialect == "anthropic"
        self._paths = _paths(url, anthropic=self._is_anthropic)
        self.key = None if provider.api_key_env is None or key == NO_KEY else key
        self._plain = [
            (b"content-type", b"application/json"),  # first, since only POST requests get it
            (b"accept-encoding", b"identity"),  # compression delays streamed tokens
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
        """Send a request and wait for the status; a disconnect of the client ends the response.

        Args:
            call: The request to forward.
            body: The body for this target.
            client: The client.

        Raises:
            BrokenResponseError: There is no response.
            ClientGoneError: The client has disconnected.
        """
        path, theirs = self._path(call), self._headers(call)
        for fresh in (False, True):
            arrival = await self._calls.call(
                call.method, path, theirs, body, client=client, fresh=fresh
            )
            first, whole = self.first_token_seconds, self.answer_seconds
            waits = call.stream and first < whole
            arrival.limit(
                arrival.began + (first if waits else whole),
                "first_token_timeout" if waits else "answer_timeout",
            )
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

    def go_on(self, arrival: ResponseStream) -> None:
        """Restart the time limit for silence after a piece of a stream."""
        now = asyncio.get_running_loop().time()
        last = arrival.began + self.answer_seconds
        if now + self.silence_seconds < last:
            arrival.limit(now + self.silence_seconds, "silence")
        else:
            arrival.limit(last, "answer_timeout")

    async def close(self) -> None:
        """Close idle connections, now and later."""
        await self._calls.close()

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
            "the certificates set in the environment can't be read; check SSL_CERT_FILE and "
            "SSL_CERT_DIR"
        ) from None
    return ConnectionPool(url, connect_seconds=connect_seconds, context=context)


def _paths(url: httpx2.URL, *, anthropic: bool) -> Mapping[Endpoint, bytes]:
    """The path and query of each endpoint; Anthropic's base URL may lack its version."""
    path, mark, query = url.raw_path.partition(b"?")
    path = path.rstrip(b"/")
    if anthropic and not path.endswith(b"/v1"):
        path += b"/v1"
    return {endpoint: path + last + mark + query for endpoint, last in _PATHS.items()}


def _joined(own: bytes, theirs: bytes) -> bytes:
    """The query of a base URL, and the client's parameters that it doesn't set already."""
    said = {_name(part) for part in own.split(b"&")}
    further = (part for part in theirs.split(b"&") if _name(part) not in said)
    return b"&".join(filter(None, (own, *further)))


def _name(part: bytes) -> bytes:
    return unquote_to_bytes(part.partition(b"=")[0])


def _first_token(provider: Provider) -> float:
    """A provider's own limit; its default is for batch runs, too long for interactive use."""
    own = provider.first_token_seconds
    return _FIRST_TOKEN_SECONDS if own == _UNSET_SECONDS else own


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

    def observe(self, deployment: str, headers: Iterable[Header]) -> None:
        """Read what remains from the headers of a response."""
        said = {n.decode("latin-1"): v.decode("latin-1") for n, v in headers if b"ratelimit" in n}
        now = self._clock()
        for kind, left, reset in limits_left(said, now=time.time()) if said else ():
            until = now + (_UNSAID_SECONDS if reset is None else reset)
            self._left.setdefault(deployment, {})[kind] = (left, until)

    def refused(self, deployment: str, wait: float | None) -> None:
        """Note that a rate limit refused a call; it may be tried again after so many seconds."""
        until = self._clock() + (_UNSAID_SECONDS if wait is None else wait)
        self._left.setdefault(deployment, {})["refused"] = (0.0, until)

    def lacks(self, deployment: str, tokens: int) -> bool:
        """Whether a request of so many input tokens would pass a rate limit now."""
        limits, now = self._left.get(deployment), self._clock()
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
            (deployment.name, endpoint.priority, endpoint.weight)
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
                self._headroom.lacks(name, tokens),
                priority,
                _distance(conversation, name) / weight,
                name,
            )
            for name, priority, weight in self._endpoints
        )
        return [name for *_, name in ranked]


def _distance(conversation: str, deployment: str) -> float:
    """An exponential variate that is fixed for the two names: the least by weight is first."""
    text = f"{conversation}\0{deployment}".encode("utf-8", "surrogatepass")
    drawn = int.from_bytes(hashlib.sha256(text).digest()[:_HASH_BYTES], "big")
    return -math.log((drawn + 1) / (1 << 8 * _HASH_BYTES))


_log = logging.getLogger(__name__)

BreakerState = Literal["closed", "open", "half_open"]
"""Closed: calls are made. Open: none is made. Half open: one call is tried."""
_STATES: tuple[BreakerState, ...] = ("closed", "half_open", "open")
_OPENED = "%s failed %d times in a row: it gets no calls but one every %g seconds, to test it"


@final
@dataclass(slots=True)
class _Breaker:
    failures: int = 0
    opened_at: float | None = None
    tried_at: float | None = None
    opened: int = 0


@final
class Breakers:
    """One breaker per target or deployment, by name; they survive a reload of the pool.

    Args:
        failures: The failures in a row that open a breaker.
        seconds: The seconds that it stays open before one call is tried.
        clock: A monotonic clock, in seconds.

    Attributes:
        seconds: The seconds that a breaker stays open.
        changed: Called with a target whose breaker opened or closed, where replicas share them.
        claim: Claims a trial call for this replica, where replicas share breakers.
    """

    def __init__(
        self, *, failures: int, seconds: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._most, self.seconds, self._clock = failures, seconds, clock
        self._breakers: dict[str, _Breaker] = {}
        self.changed: Callable[[str], object] = lambda _: None
        self.claim: Callable[[str], Awaitable[bool]] | None = None
        self._deployments: Mapping[str, Sequence[str]] = {}

    @property
    def opened(self) -> Mapping[str, int]:
        """How often each target's breaker has opened."""
        return {name: breaker.opened for name, breaker in self._breakers.items()}

    def set(self, *, failures: int, seconds: float) -> None:
        """Use other settings."""
        self._most, self.seconds = failures, seconds

    def use_deployments(self, deployments: Mapping[str, Sequence[str]]) -> None:
        """Tell the deployments of targets with several: a target's state is its best one's."""
        self._deployments = deployments

    def allow(self, target: str) -> bool:
        """Whether a target may be called now; a half-open breaker allows only the first call.

        The caller must then report the result: `succeeded`, `failed` or `released`.
        """
        breaker = self._breakers.get(target)
        if breaker is None or breaker.opened_at is None:
            return True
        now = self._clock()
        waits_for = breaker.opened_at if breaker.tried_at is None else breaker.tried_at
        if now - waits_for < self.seconds:
            return False
        breaker.tried_at = now
        return True

    async def claimed(self, target: str) -> bool:
        """Whether this replica may make the call that was allowed, since no other tries it."""
        breaker = self._breakers.get(target)
        if self.claim is None or breaker is None or breaker.tried_at is None:
            return True
        return await self.claim(target)

    def learn(self, target: str, opened: float | None) -> None:
        """Take over the state of a breaker from another replica.

        Args:
            target: The target.
            opened: The seconds since its breaker opened; None where it is closed.
        """
        breaker = self._breakers.setdefault(target, _Breaker())
        if opened is None:
            breaker.opened_at = breaker.tried_at = None
            breaker.failures = 0
            return
        if breaker.opened_at is None:
            _log.warning("another replica found that %s fails: it gets no calls", target)
        breaker.opened_at = self._clock() - opened
        breaker.failures = max(breaker.failures, self._most)

    def opened_for(self, target: str) -> float | None:
        """The seconds since a breaker opened; None where it is closed."""
        breaker = self._breakers.get(target)
        found = None if breaker is None else breaker.opened_at
        return None if found is None else self._clock() - found

    def state(self, target: str) -> BreakerState:
        """The state of one target's breaker."""
        if target in self._deployments:
            return min(map(self.state, self._deployments[target]), key=_STATES.index)
        breaker = self._breakers.get(target)
        if breaker is None or breaker.opened_at is None:
            return "closed"
        waited = self._clock() - breaker.opened_at >= self.seconds
        return "half_open" if waited else "open"

    def is_open(self, target: str) -> bool:
        """Whether a target's breaker is open."""
        return self.state(target) == "open"

    def retry_in(self, target: str) -> float | None:
        """Seconds until an open breaker allows one call; None where it is closed."""
        if target in self._deployments:
            waits = [self.retry_in(name) for name in self._deployments[target]]
            return None if None in waits else min(wait for wait in waits if wait is not None)
        breaker = self._breakers.get(target)
        if breaker is None or breaker.opened_at is None:
            return None
        return max(0.0, breaker.opened_at + self.seconds - self._clock())

    def failures(self, target: str) -> int:
        """The number of a target's failures in a row."""
        breaker = self._breakers.get(target)
        return 0 if breaker is None else breaker.failures

    def succeeded(self, target: str) -> None:
        """Record a success of a target: its breaker closes."""
        breaker = self._breakers.get(target)
        if breaker is not None and breaker.failures:
            self._close(target, breaker)
            breaker.failures = 0

    def began(self, target: str) -> None:
        """Record that an answer began: an open breaker closes, but the next failure reopens it."""
        breaker = self._breakers.get(target)
        if breaker is not None and breaker.opened_at is not None:
            self._close(target, breaker)
            breaker.failures = self._most - 1

    def failed(self, target: str) -> None:
        """Record a failure; enough in a row, or the failure of a trial call, open the breaker."""
        breaker = self._breakers.setdefault(target, _Breaker())
        breaker.failures += 1
        tried = breaker.tried_at is not None
        if breaker.failures >= self._most and (breaker.opened_at is None or tried):
            if breaker.opened_at is None:
                _log.warning(_OPENED, target, breaker.failures, self.seconds)
            breaker.opened_at, breaker.tried_at = self._clock(), None
            breaker.opened += 1
            self.changed(target)

    def released(self, target: str) -> None:
        """Record a call that ended without saying anything about the target; another may try."""
        breaker = self._breakers.get(target)
        if breaker is not None and breaker.tried_at is not None:
            breaker.tried_at = None
            self.changed(target)

    def _close(self, target: str, breaker: _Breaker) -> None:
        was_open = breaker.opened_at is not None
        breaker.opened_at = breaker.tried_at = None
        if was_open:
            _log.warning("%s answers again", target)
            self.changed(target)
