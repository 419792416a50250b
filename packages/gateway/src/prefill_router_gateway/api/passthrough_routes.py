"""Calls that are forwarded without a routing decision, request and answer unchanged (ASGI).

They are calls about a stored response, and token counts. They cost nothing and nothing is learned
from them, so no receipt is kept; they are counted, logged and traced. Where no target that may
answer can count its tokens, since they serve chats alone, the gateway's own estimate is the answer.
"""

import logging
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from http import HTTPStatus
from typing import final
from urllib.parse import parse_qs, quote

from starlette.responses import JSONResponse
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from prefill_router.targets import Endpoint
from prefill_router_gateway.api.requested_targets import allowed_targets
from prefill_router_gateway.api.routed_calls import (
    check_streams,
    decide,
    query_of,
    read_incoming,
)
from prefill_router_gateway.errors import RefusalError
from prefill_router_gateway.guard import KEY, ClientKey
from prefill_router_gateway.protocol import read_preferences
from prefill_router_gateway.proxy import (
    LACKING,
    FixedBody,
    ForwardRequest,
    SplicedBody,
    await_to_end,
)
from prefill_router_gateway.records import HEADER, RequestOutcome, RoutingRequest
from prefill_router_gateway.runtime import Gateway, Snapshot, target_header
from prefill_router_gateway.telemetry import Metrics, Trace, with_fields

_log = logging.getLogger(__name__)


@final
@dataclass(frozen=True, kw_only=True)
class PassthroughRequest:
    """A request of a passthrough call.

    Attributes:
        live: The snapshot that it is answered with, whatever is reloaded meanwhile.
        scope: The ASGI scope.
        body: The whole body.
        at: When it arrived, in seconds since 1970.
        trace: Its span; None where it isn't traced.
    """

    live: Snapshot
    scope: Scope
    body: bytes
    at: float
    trace: Trace | None

    @property
    def key(self) -> ClientKey | None:
        """The client's key."""
        key: ClientKey | None = self.scope.get(KEY)
        return key

    def call(
        self,
        endpoint: Endpoint,
        below: bytes,
        order: tuple[str, ...],
        body: SplicedBody | FixedBody,
        *,
        stream: bool = False,
        lacking: frozenset[int] = frozenset(),
    ) -> ForwardRequest:
        """The request to forward; the arguments are fields of `ForwardRequest`."""
        return ForwardRequest(
            endpoint=endpoint,
            below=below,
            order=order,
            body=body,
            stream=stream,
            lacking=lacking,
            method=self.scope["method"].encode(),
            query=query_of(self.scope),
            is_plain=True,
            headers=self.live.headers_on(self.scope["headers"], self.trace),
        )


@final
@dataclass(frozen=True, kw_only=True)
class TokenEstimate:
    """The answer to a token count that no target can answer.

    Attributes:
        tokens: The estimated input tokens.
        target: The target that would answer the request.
        endpoint: The endpoint that it is for.
    """

    tokens: int
    target: str
    endpoint: Endpoint

    @property
    def outcome(self) -> RequestOutcome:
        """How the call ends."""
        return RequestOutcome(kind="answered", target=self.target, status=200, attempts=())

    def response(self) -> JSONResponse:
        """The count, with a header that marks it as an estimate."""
        headers = {HEADER + "estimated": "input_tokens"}
        headers |= {n.decode(): v.decode() for n, v in (target_header(self.target),)}
        kind = {"object": "response.input_tokens"} if self.endpoint == "responses" else {}
        return JSONResponse({**kind, "input_tokens": self.tokens}, headers=headers)


@final
class PassthroughEndpoint:
    """The passthrough calls of one path.

    Args:
        gateway: The gateway.
        names: The call's name in metrics and the log, by HTTP method.
        find: Finds the target of a request, or refuses it.
    """

    def __init__(
        self,
        gateway: Gateway,
        names: Mapping[str, str],
        find: Callable[[Gateway, PassthroughRequest], Awaitable[ForwardRequest | TokenEstimate]],
    ) -> None:
        self._gateway, self._names, self._find = gateway, names, find

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request; the guard has read its body."""
        at, gateway = time.time(), self._gateway
        body: bytes = (await receive()).get("body", b"")
        live = gateway.live
        with live.scope(gateway.traces, scope["headers"], at=at) as trace:
            request = PassthroughRequest(live=live, scope=scope, body=body, at=at, trace=trace)
            call = await self._find(gateway, request)
            name = self._names[scope["method"]]
            if isinstance(call, TokenEstimate):
                record_passthrough(gateway.metrics, name, request, call.outcome)
                await call.response()(scope, receive, send)
                return
            check_streams(gateway, stream=call.stream)
            with (
                gateway.count_in_flight(stream=call.stream),
                live.forwarder.call(call, receive, send) as forwarded,
            ):
                try:
                    await forwarded.find_answer()
                    call.body.release()
                    target = forwarded.target
                    own = [] if target is None else [target_header(target)]
                    await forwarded.send_until_end(own)
                finally:
                    record_passthrough(gateway.metrics, name, request, forwarded.outcome())
                    await await_to_end(forwarded.send_end())


def record_passthrough(
    metrics: Metrics, name: str, request: PassthroughRequest, outcome: RequestOutcome
) -> None:
    """Record how a call ended in metrics, the log and the trace.

    Args:
        metrics: The metrics for Prometheus.
        name: The call's name in metrics and the log.
        request: The request.
        outcome: How it ended.
    """
    metrics.count_passthrough(name, outcome)
    fields = {
        "call": name,
        "target": outcome.target,
        "deployment": outcome.deployment,
        "outcome": outcome.kind,
        "status": outcome.status,
        "attempts": len(outcome.attempts),
        "seconds": round(outcome.total_seconds, 6),
        "key": None if request.key is None else request.key.name,
    }
    present = {name: value for name, value in fields.items() if value is not None}
    _log.info("plain call", extra=with_fields(present))
    if request.trace is not None:
        request.trace.end_passed(name, outcome, at=time.time())


STORED: Mapping[str, Mapping[str, str]] = {
    "": {"GET": "retrieve", "DELETE": "delete"},
    "/input_items": {"GET": "input_items"},
    "/cancel": {"POST": "cancel"},
}
"""The calls about a stored response, by the path after its id and by HTTP method."""
COUNTED: Mapping[str, tuple[Endpoint, str]] = {
    "/v1/messages/count_tokens": ("messages", "/count_tokens"),
    "/v1/responses/input_tokens": ("responses", "/input_tokens"),
}
"""The token counts, by path: the endpoint that they are for, and the path after the endpoint's."""


def passthrough_routes(gateway: Gateway) -> list[Route]:
    """The routes of all passthrough calls."""
    counts = [
        Route(
            path,
            PassthroughEndpoint(
                gateway,
                {"POST": "count_tokens"},
                partial(_forward_count, endpoint=endpoint, below=below),
            ),
            methods=["POST"],
        )
        for path, (endpoint, below) in COUNTED.items()
    ]
    about = [
        Route(
            f"/v1/responses/{{id}}{below}",
            PassthroughEndpoint(gateway, names, partial(_forward_stored, below=below)),
            methods=list(names),
        )
        for below, names in STORED.items()
    ]
    return counts + about


async def _forward_stored(
    gateway: Gateway, request: PassthroughRequest, *, below: str
) -> ForwardRequest:
    """Forward to the target that keeps the response named in the path.

    Raises:
        RefusalError: 404, no target is known to keep it for this key.
    """
    scope = request.scope
    name: str = scope["path_params"]["id"]
    if not name.strip("."):  # dots would change the target's path
        raise RefusalError("the path names no response", status=404, code="unknown_response")
    question = _question(request, name)
    if gateway.shared is not None:
        await gateway.shared.prepare(question)
    query = parse_qs(scope["query_string"].decode("latin-1"))
    body = request.body if scope["method"] == "POST" else b""
    keeper = request.live.keepers.keeper(name, question)
    unknown = keeper in request.live.loaded.pool.several  # which of its endpoints keeps it
    return request.call(
        "responses",
        f"/{quote(name, safe='')}{below}".encode(),
        (keeper,),
        FixedBody(body),
        lacking=frozenset((HTTPStatus.NOT_FOUND,)) if unknown else frozenset(),
        stream=query.get("stream") == ["true"],
    )


async def _forward_count(
    gateway: Gateway, request: PassthroughRequest, *, endpoint: Endpoint, below: str
) -> ForwardRequest | TokenEstimate:
    """Forward to the target that would answer the request, or the next that can count tokens.

    A request that only chats could answer is counted by the gateway, as its decision would.

    Raises:
        RefusalError: As for the request itself.
    """
    live = request.live
    incoming = read_incoming(
        endpoint,
        request.body,
        request.scope["headers"],
        key=request.key,
        settings=live.settings,
        pool=live.loaded.pool,
        lam=gateway.lam_set,
        at=request.at,
    )
    question = replace(incoming.question, untranslatable=None)  # a chat can't be counted
    counted = replace(incoming, question=question)
    try:
        choice, _ = await decide(gateway, live, counted, counted=False)
    except RefusalError:
        if incoming.question.untranslatable is None:
            raise
        choice, _ = await decide(gateway, live, incoming, counted=False)
        return TokenEstimate(tokens=choice.input_tokens, target=choice.target, endpoint=endpoint)
    body = SplicedBody(incoming.splicer, endpoint=endpoint, rules=live.bodies, ask_usage=False)
    return request.call(
        endpoint,
        below.encode(),
        choice.order,
        body,
        lacking=LACKING,
    )


def _question(request: PassthroughRequest, response: str) -> RoutingRequest:
    """The routing request of a call about a stored response: its key, and the allowed targets."""
    key = request.key
    pool = request.live.loaded.pool
    allowed = allowed_targets(key, pool)
    names = [n for n in pool.names if allowed is None or n in allowed]
    preferences = read_preferences(request.scope["headers"], names)
    return RoutingRequest(
        endpoint="responses",
        at=request.at,
        max_tokens=0,  # nothing is written
        allow=preferences.allow,
        exclude=preferences.exclude,
        previous_response_id=response,
        key=None if key is None else key.name,
        key_targets=allowed,
    )
