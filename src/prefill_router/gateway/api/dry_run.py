"""The routing decision without the call, `/v1/route`, for users with a gateway of their own."""

import json
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, final

from fastapi import Request
from starlette.responses import JSONResponse

from prefill_router.gateway.api.routed_calls import decide, read_incoming
from prefill_router.gateway.errors import RefusalError
from prefill_router.gateway.guard import KEY, LEAVE
from prefill_router.gateway.protocol import without_collecting
from prefill_router.gateway.records import Header, RequestOutcome, RoutingDecision
from prefill_router.gateway.runtime import Gateway, RequestRecord, Snapshot
from prefill_router.targets import Endpoint

_ENDPOINTS: Mapping[str, Endpoint] = {
    "messages": "chat",
    "prompt": "completions",
    "input": "responses",
}
_ANTHROPIC = b"anthropic-version"
"""The header that marks Anthropic's protocol, whose bodies look like chat completions."""


@final
@dataclass(frozen=True)
class DryRun:
    """A decision that was only recorded.

    Attributes:
        live: The snapshot that decided.
        choice: The decision.
        allowed: The targets that the client's key may use; None for all.
        headers: The gateway's own headers of the reply.
    """

    live: Snapshot
    choice: RoutingDecision
    allowed: frozenset[str] | None
    headers: Mapping[str, str]


async def dry_run(gateway: Gateway, request: Request) -> JSONResponse:
    """Decide about a request as if to forward it, and keep a receipt of the decision.

    The chosen target counts as the conversation's target from now on; nothing is spent.

    Raises:
        RefusalError: The request can't be read, no target may answer it, or a budget is spent.
    """
    body, endpoint = _whole(await request.body(), list(request.scope["headers"]))
    made = await decide_alone(gateway, request, endpoint, body)
    return JSONResponse(_shown(made.live, made.choice, made.allowed), headers=dict(made.headers))


async def decide_alone(
    gateway: Gateway,
    request: Request,
    endpoint: Endpoint,
    body: bytes,
    *,
    among: frozenset[str] | None = None,
) -> DryRun:
    """Decide about a request without the call, and keep a receipt.

    Args:
        gateway: The gateway.
        request: What the client sent; its headers count.
        endpoint: The endpoint that the body is for.
        body: The body to decide about.
        among: The only targets that may be chosen, for a decision apart from any conversation;
            None for all.

    Raises:
        RefusalError: As `dry_run`.
    """
    at, began = time.time(), time.perf_counter()
    headers, live = list(request.scope["headers"]), gateway.live
    with live.scope(gateway.traces, headers, at=at) as trace:
        incoming = read_incoming(
            endpoint,
            body,
            headers,
            key=request.scope.get(KEY),
            settings=live.settings,
            pool=live.loaded.pool,
            lam=gateway.lam_set,
            at=at,
            to_call=False,
        )
        if among is not None:
            given = incoming.question.allow
            allow = among if given is None else among & given
            apart = replace(incoming.question, in_tool_loop=False, tool_call_ids=(), session=None)
            incoming = replace(incoming, question=replace(apart, allow=allow))
        live = live.deciding(incoming.question)
        choice, waited = await decide(gateway, live, incoming)
        seconds = time.perf_counter() - began
        record = RequestRecord(
            live,
            incoming,
            choice,
            decision_seconds=seconds,
            forecast_seconds=waited,
            trace=trace,
            leave=request.scope.get(LEAVE),
        )
        outcome = RequestOutcome(
            kind="routed", target=None, status=200, attempts=(), total_seconds=seconds
        )
        await record.finished(outcome)
    own = {n.decode(): v.decode() for n, v in record.reply_headers(choice.target, ())}
    return DryRun(live, choice, incoming.question.key_targets, own)


def _shown(
    live: Snapshot, choice: RoutingDecision, allowed: frozenset[str] | None
) -> dict[str, Any]:
    """A decision as plain values, without the targets that the client's key may not use."""
    routed = live.loaded.light.pool.names
    names = routed if choice.target in routed else (choice.target,)
    shown = [name for name in names if allowed is None or name in allowed]
    known = {
        "id": choice.id,
        "target": choice.target,
        "model": live.models.get(choice.target, choice.target),
        "order": list(choice.order),
        "reason": choice.reason,
        "fallback": choice.fallback,
        "lam": choice.lam,
        "lam_asked": choice.lam_asked,
        "novelty": choice.novelty,
        "input_tokens": choice.input_tokens,
        "excluded": {name: why for name, why in choice.excluded.items() if name in shown},
    }
    rows = {
        name: {
            "correctness": choice.correctness.get(name),
            "estimated_cost": choice.estimated_cost.get(name),
        }
        for name in shown
    }
    return {**known, "targets": rows}


def _whole(body: bytes, headers: list[Header]) -> tuple[bytes, Endpoint]:
    """The body with a model's name, and the endpoint that its fields and headers imply."""
    try:
        with without_collecting(body):
            value = json.loads(body)
    except (ValueError, RecursionError):
        value = None
    if not isinstance(value, dict):
        return body, "chat"  # the reader of the body reports what is wrong
    found = next((call for field, call in _ENDPOINTS.items() if field in value), None)
    if found is None:
        raise RefusalError("the body has no messages, prompt or input; send one", param="messages")
    if found == "chat" and any(name == _ANTHROPIC for name, _ in headers):
        found = "messages"
    if "model" in value or "models" in value:
        return body, found
    return body.lstrip().replace(b"{", b'{"model":"auto",', 1), found
