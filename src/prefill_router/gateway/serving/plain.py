"""Plain calls: they go to a target, and its answer back, as they are (ASGI).

They cost nothing and nothing of them is learned from, so that no receipt is kept: they are counted,
logged and traced.
"""

import logging
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import final

from starlette.types import Receive, Scope, Send

from prefill_router.gateway.forwarding import Call, Header
from prefill_router.gateway.guarding import KEY, ClientKey
from prefill_router.gateway.outcome import Attempt, Outcome
from prefill_router.gateway.serving.answering import check_streams, forward
from prefill_router.gateway.serving.begun import begun, headers_on
from prefill_router.gateway.serving.gateway import Gateway
from prefill_router.gateway.serving.incoming import query_of
from prefill_router.gateway.serving.live import Live
from prefill_router.gateway.serving.recording import target_header
from prefill_router.gateway.telemetry import Trace, with_fields
from prefill_router.gateway.words import Endpoint

_log = logging.getLogger(__name__)


@final
@dataclass(frozen=True, kw_only=True)
class Asked:
    """A plain request.

    Attributes:
        gateway: The gateway.
        live: What it goes on with.
        scope: Of ASGI.
        body: All of it.
        at: When it came, seconds since 1970.
    """

    gateway: Gateway
    live: Live
    scope: Scope
    body: bytes
    at: float

    @property
    def key(self) -> ClientKey | None:
        """The client's key."""
        found: ClientKey | None = self.scope.get(KEY)
        return found


@final
@dataclass(frozen=True, kw_only=True)
class Errand:
    """Where a plain request goes.

    Attributes:
        endpoint: By whose address.
        below: What follows its path, percent-encoded.
        order: The targets that may be asked, the first one first.
        bodies: The body for a target, by its name.
        stream: Whether a stream is asked for.
        lacking: The statuses by which a target says that it has no such call; the next is asked.
    """

    endpoint: Endpoint
    below: str
    order: tuple[str, ...]
    bodies: Callable[[str], bytes]
    stream: bool = False
    lacking: frozenset[int] = frozenset()


@final
class PlainCalls:
    """The plain calls of one path.

    Args:
        gateway: The gateway.
        names: What each method is called in metrics and the log.
        find: Finds where a request goes, or refuses it.
    """

    def __init__(
        self,
        gateway: Gateway,
        names: Mapping[str, str],
        find: Callable[[Asked], Awaitable[Errand]],
    ) -> None:
        self._gateway, self._names, self._find = gateway, names, find

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request; the guard has read its body."""
        at, gateway = time.time(), self._gateway
        body: bytes = (await receive()).get("body", b"")
        with begun(gateway, scope["headers"], at=at) as (live, trace):
            asked = Asked(gateway=gateway, live=live, scope=scope, body=body, at=at)
            errand = await self._find(asked)
            check_streams(gateway, stream=errand.stream)
            call = _call(asked, errand, _Telling(asked, self._names[scope["method"]], trace), trace)
            await forward(gateway, live, call, receive, send)


def _call(asked: Asked, errand: Errand, telling: "_Telling", trace: Trace | None) -> Call:
    return Call(
        endpoint=errand.endpoint,
        method=asked.scope["method"].encode(),
        below=errand.below.encode(),
        query=query_of(asked.scope),
        is_plain=True,
        lacking=errand.lacking,
        bodies=errand.bodies,
        order=errand.order,
        stream=errand.stream,
        headers=headers_on(asked.live, asked.scope["headers"], trace),
        reply_headers=_reply_headers,
        finished=telling.finished,
    )


@final
class _Telling:
    """Tells metrics, the log and the trace of a request that has ended."""

    def __init__(self, asked: Asked, name: str, trace: Trace | None) -> None:
        self._key = None if asked.key is None else asked.key.name
        self._gateway, self._name, self._trace = asked.gateway, name, trace

    async def finished(self, outcome: Outcome) -> None:
        self._gateway.metrics.passed(self._name, outcome)
        fields = {
            "call": self._name,
            "target": outcome.target,
            "outcome": outcome.kind,
            "status": outcome.status,
            "attempts": len(outcome.attempts),
            "seconds": round(outcome.total_seconds, 6),
            "key": self._key,
        }
        known = {name: value for name, value in fields.items() if value is not None}
        _log.info("plain call", extra=with_fields(known))
        if self._trace is not None:
            self._trace.end_passed(self._name, outcome, at=time.time())


def _reply_headers(target: str | None, attempts: tuple[Attempt, ...]) -> list[Header]:
    del attempts
    return [] if target is None else [target_header(target)]
