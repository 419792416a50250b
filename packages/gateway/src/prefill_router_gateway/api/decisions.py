"""Decisions that others carry out, for users with a gateway of their own.

`/v1/route` makes the decision without the call; `/v1/outcome` takes what came of it into its
receipt.
"""

import asyncio
import json
import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated, Any, final

from fastapi import Request
from pydantic import BaseModel, ConfigDict, Field
from starlette.responses import JSONResponse

from prefill_router.endpoints import ErrorBody, Usage, cost_of
from prefill_router.errors import StoreError
from prefill_router.targets import Endpoint, Target
from prefill_router_gateway.api.requested_targets import allowed_targets
from prefill_router_gateway.api.routed_calls import decide, read_incoming, routed_request
from prefill_router_gateway.errors import RefusalError
from prefill_router_gateway.guard import KEY, PLACE
from prefill_router_gateway.protocol import ANTHROPIC_VERSION, without_collecting
from prefill_router_gateway.proxy import stream_error_end
from prefill_router_gateway.receipts import report_outcome
from prefill_router_gateway.records import (
    Header,
    OutcomeKind,
    Receipt,
    RequestOutcome,
    RoutingDecision,
    TargetAttempt,
)
from prefill_router_gateway.runtime import Gateway, Snapshot, reply_headers, write_receipt
from prefill_router_gateway.telemetry import log_request

_ENDPOINTS: Mapping[str, Endpoint] = {
    "messages": "chat",
    "prompt": "completions",
    "input": "responses",
}
"""The header that marks Anthropic's protocol, whose bodies look like chat completions."""


async def dry_run(gateway: Gateway, request: Request) -> JSONResponse:
    """Decide about a request as if to forward it, and keep a receipt of the decision.

    The chosen target counts as the conversation's target from now on; nothing is spent.

    Raises:
        RefusalError: The request can't be read, no target may answer it, or a budget is spent.
    """
    headers = list(request.scope["headers"])
    body, endpoint = _complete_body(await request.body(), headers)
    at, began = time.time(), time.perf_counter()
    live = gateway.live
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
        live = live.deciding(incoming.question)
        choice, waited = await decide(gateway, live, incoming)
        seconds = time.perf_counter() - began
        routed = routed_request(live, incoming, choice, seconds=seconds, waited=waited)
        outcome = RequestOutcome(
            kind="routed", target=None, status=200, attempts=(), total_seconds=seconds
        )
        place = request.scope.get(PLACE)
        await write_receipt(gateway.recorders, live, routed, outcome, trace=trace, place=place)
    added = reply_headers(live, routed, choice.target, retries=0)
    own = {name.decode(): value.decode() for name, value in added}
    return JSONResponse(
        _describe_decision(live, choice, incoming.question.key_targets), headers=own
    )


def _describe_decision(
    live: Snapshot, choice: RoutingDecision, allowed: frozenset[str] | None
) -> dict[str, Any]:
    """A decision as plain values, without the targets that the client's key may not use."""
    routed = live.loaded.light.pool.names
    names = routed if choice.target in routed else (choice.target,)
    visible = [name for name in names if allowed is None or name in allowed]
    summary = {
        "id": choice.id,
        "target": choice.target,
        "model": live.bodies.models.get(choice.target, choice.target),
        "order": list(choice.order),
        "reason": choice.reason,
        "fallback": choice.fallback,
        "lam": choice.lam,
        "lam_asked": choice.lam_asked,
        "novelty": choice.novelty,
        "input_tokens": choice.input_tokens,
        "excluded": {name: why for name, why in choice.excluded.items() if name in visible},
    }
    rows = {
        name: {
            "correctness": choice.correctness.get(name),
            "estimated_cost": choice.estimated_cost.get(name),
        }
        for name in visible
    }
    return {**summary, "targets": rows}


def _complete_body(body: bytes, headers: list[Header]) -> tuple[bytes, Endpoint]:
    """The body with a model's name, and the endpoint that its fields and headers imply."""
    try:
        with without_collecting(body):
            value = json.loads(body)
    except (ValueError, RecursionError):
        value = None
    if not isinstance(value, dict):
        return body, "chat"  # the reader of the body reports what is wrong
    endpoint = next((call for field, call in _ENDPOINTS.items() if field in value), None)
    if endpoint is None:
        raise RefusalError("the body has no messages, prompt or input; send one", param="messages")
    if endpoint == "chat" and any(name == ANTHROPIC_VERSION for name, _ in headers):
        endpoint = "messages"
    if "model" in value or "models" in value:
        return body, endpoint
    return body.lstrip().replace(b"{", b'{"model":"auto",', 1), endpoint


_Seconds = Annotated[float, Field(ge=0, le=1e6)]
_Count = Annotated[int, Field(ge=0, le=10**12)]
_FAILED = 400


@final
class OutcomeBody(BaseModel):
    """What came of a decision.

    Attributes:
        id: The decision's id.
        target: The target that was called.
        seconds: The duration of the call.
        first_token_seconds: From the call to the first token of a stream; None for none.
        status: The HTTP status of the target's response.
        input_tokens: Tokens of the prompt, cached ones included.
        cached_tokens: The input tokens that came from a cache.
        output_tokens: Tokens of the answer, reasoning included.
        reasoning_tokens: The output tokens that were reasoning.
        cost: US dollars; None for the price of the tokens at the pool's prices.
    """

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)
    id: Annotated[str, Field(pattern="^[!-~]{1,200}$")]
    target: Annotated[str, Field(min_length=1, max_length=200)]
    seconds: _Seconds
    first_token_seconds: _Seconds | None = None
    status: Annotated[int, Field(ge=100, le=599)] = 200
    input_tokens: _Count | None = None
    cached_tokens: _Count | None = None
    output_tokens: _Count | None = None
    reasoning_tokens: _Count | None = None
    cost: Annotated[float, Field(ge=0, le=1e6)] | None = None

    def usage(self) -> Usage | None:
        """The token counts and the cost as a provider reports them; None where there are none."""
        names = ("input_tokens", "cached_tokens", "output_tokens", "reasoning_tokens")
        counts = {name: getattr(self, name) for name in names}
        reported = {} if self.cost is None else {"cost": self.cost}
        has_counts = reported or any(count is not None for count in counts.values())
        return Usage(**counts, reported=reported) if has_counts else None


def reported_receipt(before: Receipt, body: OutcomeBody, target: Target) -> Receipt:
    """The receipt of a request that was only decided, with its outcome.

    Args:
        before: The receipt of the decision.
        body: What came of it.
        target: The target that was called; it prices tokens whose cost isn't reported.
    """
    end = (
        "answered" if body.status < _FAILED else stream_error_end(ErrorBody(code=str(body.status)))
    )
    kind: OutcomeKind = end if end in ("answered", "refused") else "failed"
    usage = body.usage() if kind == "answered" else None
    decided, first = before.outcome.total_seconds, body.first_token_seconds
    cost = body.cost
    if cost is None and usage is not None:
        cost = cost_of(usage, target)
    outcome = RequestOutcome(
        kind=kind,
        target=None if kind == "failed" else target.name,
        status=body.status,
        attempts=(
            TargetAttempt(target=target.name, end=end, status=body.status, seconds=body.seconds),
        ),
        usage=usage,
        first_byte_seconds=None if first is None else decided + first,
        total_seconds=decided + body.seconds,
    )
    return replace(
        before,
        outcome=outcome,
        cost=cost if kind == "answered" else None,
        stream=before.stream or first is not None,
        details={**before.details, "reported": True},
    )


@final
class OutcomeReports:
    """Takes reports, one at a time, so that they never keep receipts waiting for long.

    Args:
        gateway: The gateway.
    """

    def __init__(self, gateway: Gateway) -> None:
        self._gateway, self._lock = gateway, asyncio.Lock()

    async def take(self, request: Request, body: OutcomeBody) -> JSONResponse:
        """Write an outcome, and count its cost in budgets.

        Raises:
            RefusalError: The target or the decision is unknown, it belongs to another key, it has
                an outcome already, or receipts can't be written now.
        """
        gateway, key = self._gateway, request.scope.get(KEY)
        live = gateway.live
        allowed = allowed_targets(key, live.loaded.pool)
        if body.target not in set(live.loaded.pool.names).intersection(allowed or [body.target]):
            raise RefusalError(
                "no such target; see /v1/models", code="invalid_value", param="target"
            )
        target = live.targets[body.target]
        try:
            async with self._lock:
                receipt = await asyncio.to_thread(
                    report_outcome,
                    gateway.receipts_url,
                    body.id,
                    lambda before: reported_receipt(before, body, target),
                    key=None if key is None or key.admin else key.name,
                )
        except StoreError:
            raise RefusalError.unavailable(
                "receipts can't be written now; try again later"
            ) from None
        if not isinstance(receipt, Receipt):
            raise _refusal(has_outcome=receipt == "known")
        await self._count(live, receipt)
        return JSONResponse({"id": body.id, "kept": True, "cost": receipt.cost})

    async def _count(self, live: Snapshot, receipt: Receipt) -> None:
        """Count what the gateway counts of its own calls: spending, conversations, speeds."""
        gateway = self._gateway
        live.decider.reserve(receipt.choice, key=receipt.key)  # the spending is the key's
        live.decider.record_outcome(
            receipt.choice, receipt.outcome, cost=receipt.cost, at=time.time(), stored=False
        )
        if live.settings.routing.latency is not None:
            gateway.speeds.observe(receipt)
        gateway.metrics.observe_report(receipt)
        gateway.recent.replace(receipt)
        log_request(receipt)
        if gateway.shared is not None:
            await gateway.shared.request_write()


def _refusal(*, has_outcome: bool) -> RefusalError:
    if has_outcome:
        return RefusalError(
            "the decision has an outcome already, which stays",
            status=409,
            code="outcome_known",
            param="id",
        )
    return RefusalError(
        "your key has no such decision; its id is in the response headers",
        status=404,
        code="unknown_decision",
        param="id",
    )
