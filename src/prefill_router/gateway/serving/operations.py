"""The gateway's own endpoints: the decision without the call, feedback, models, reload, health."""

import asyncio
import json
import time
from collections.abc import Mapping
from typing import Annotated, Any, final

from fastapi import APIRouter, Request
from pydantic import BaseModel, ConfigDict, Field
from starlette.responses import JSONResponse, Response

from prefill_router.errors import DataError, PrefillRouterError, StoreError
from prefill_router.gateway.choice import Choice
from prefill_router.gateway.guarding import KEY, ClientKey
from prefill_router.gateway.outcome import Outcome
from prefill_router.gateway.protocol import ROUTING_NAMES
from prefill_router.gateway.protocol.walking import without_collecting
from prefill_router.gateway.receipts import Feedback, Receipt, read_receipts
from prefill_router.gateway.refusal import RefusalError
from prefill_router.gateway.serving.answering import decide
from prefill_router.gateway.serving.gateway import Gateway
from prefill_router.gateway.serving.incoming import read_incoming
from prefill_router.gateway.serving.live import Live
from prefill_router.gateway.serving.recording import Recording
from prefill_router.gateway.serving.schema import ERROR, body_schema, wishes
from prefill_router.gateway.serving.soundness import soundness
from prefill_router.gateway.words import Endpoint
from prefill_router.targets import Target

_REPLIES: dict[int | str, dict[str, Any]] = {"default": ERROR}
_ENDPOINTS: Mapping[str, Endpoint] = {
    "messages": "chat",
    "prompt": "completions",
    "input": "responses",
}


@final
class FeedbackBody(BaseModel):
    """How good somebody found an answer.

    Attributes:
        id: The decision's, from the reply's headers.
        score: From 0, wrong, to 1, right.
        source: Who says so; of each source the latest score counts.
    """

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)
    id: Annotated[str, Field(min_length=1, max_length=200)]
    score: Annotated[float, Field(ge=0, le=1)]
    source: Annotated[str, Field(min_length=1, max_length=200)] = "user"


def operations(gateway: Gateway) -> APIRouter:
    """The routes, all but those that forward and those of the page."""
    routes = APIRouter()
    _of_clients(routes, gateway)
    _of_operators(routes, gateway)
    return routes


def _of_clients(routes: APIRouter, gateway: Gateway) -> None:
    @routes.get("/v1/models", tags=["models"], summary="Targets, and names that route")
    async def models(request: Request) -> JSONResponse:
        return JSONResponse({"object": "list", "data": _models(gateway, request.scope.get(KEY))})

    @routes.get(
        "/v1/models/{name:path}", tags=["models"], responses=_REPLIES, summary="One of them"
    )
    async def model(request: Request, name: str) -> JSONResponse:
        found = [row for row in _models(gateway, request.scope.get(KEY)) if row["id"] == name]
        if not found:
            raise RefusalError("no such model; see /v1/models", status=404, code="model_not_found")
        return JSONResponse(found[0])

    body = {"required": True, "content": {"application/json": {"schema": body_schema("chat")}}}

    @routes.post(
        "/v1/route",
        tags=["routing"],
        responses=_REPLIES,
        summary="The decision without the call",
        openapi_extra={"requestBody": body, "parameters": wishes()},
    )
    async def route(request: Request) -> JSONResponse:
        return await _routed(gateway, request)

    @routes.post(
        "/v1/feedback", tags=["routing"], responses=_REPLIES, summary="How good an answer was"
    )
    async def feedback(body: FeedbackBody) -> JSONResponse:
        try:
            said = Feedback(id=body.id, score=body.score, source=body.source, at=time.time())
        except DataError as error:
            raise RefusalError(str(error)) from None
        if not await _is_known(gateway, body.id):
            raise RefusalError(
                "no such decision; its id is in the reply's headers",
                status=404,
                code="unknown_decision",
                param="id",
            )
        kept = await gateway.writer.keep(said)
        return JSONResponse({"id": body.id, "kept": kept}, status_code=200 if kept else 503)


def _of_operators(routes: APIRouter, gateway: Gateway) -> None:
    @routes.post(
        "/admin/reload",
        tags=["operating"],
        responses=_REPLIES,
        summary="Read router, pool, prices and settings again",
    )
    async def reload() -> JSONResponse:
        try:
            loaded = await gateway.reload()
        except PrefillRouterError as error:
            raise RefusalError(
                f"all stays as it was: {error}", status=409, code="reload_failed"
            ) from None
        return JSONResponse(
            {"router": loaded.light.fingerprint, "prices_date": loaded.pool.prices_date}
        )

    health = soundness(gateway)

    @routes.get("/health", tags=["operating"], responses=_REPLIES, summary="Whether it is alive")
    async def alive() -> JSONResponse:
        report = health.alive()
        return JSONResponse(report.value, status_code=report.status)

    routes.head("/health", include_in_schema=False)(alive)

    @routes.get("/ready", tags=["operating"], responses=_REPLIES, summary="Whether it answers")
    async def ready() -> JSONResponse:
        report = health.ready()
        return JSONResponse(report.value, status_code=report.status)

    routes.head("/ready", include_in_schema=False)(ready)

    @routes.get("/metrics", tags=["operating"], summary="Metrics, for Prometheus")
    async def metrics(request: Request) -> Response:
        content, kind = gateway.metrics.render(request.headers.get("accept", ""))
        return Response(content, headers={"content-type": kind})


async def _is_known(gateway: Gateway, decision: str) -> bool:
    """Whether there is a receipt of a decision; taken for granted while none can be read."""
    if gateway.recent.find(decision) is not None:
        return True
    try:
        return bool(await asyncio.to_thread(_receipts_of, gateway.receipts_url, decision))
    except StoreError:
        return True


def _receipts_of(url: str, decision: str) -> list[Receipt]:
    return list(read_receipts(url, ids=[decision]))


async def _routed(gateway: Gateway, request: Request) -> JSONResponse:
    at, began = time.time(), time.perf_counter()
    body, endpoint = _whole(await request.body())
    live = gateway.enter()
    try:
        incoming = read_incoming(
            endpoint,
            body,
            list(request.scope["headers"]),
            key=request.scope.get(KEY),
            settings=live.settings,
            pool=live.loaded.pool,
            lam=gateway.lam_set,
            at=at,
            to_call=False,
        )
        decided = await decide(gateway, live, incoming)
        seconds = time.perf_counter() - began
        choice = decided.choice
        recording = Recording(
            gateway,
            live,
            incoming,
            choice,
            decision_seconds=seconds,
            forecast_seconds=decided.waited,
        )
        outcome = Outcome(
            kind="routed", target=None, status=200, attempts=(), total_seconds=seconds
        )
        await recording.finished(outcome)
    finally:
        live.leave()
    headers = {n.decode(): v.decode() for n, v in recording.reply_headers(choice.target, ())}
    told = _told(live, choice, incoming.question.key_targets)
    return JSONResponse(told, headers=headers)


def _told(live: Live, choice: Choice, allowed: frozenset[str] | None) -> dict[str, Any]:
    """A decision as plain values; of targets that the client's key may not use it tells nothing."""
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


def _whole(body: bytes) -> tuple[bytes, Endpoint]:
    """A body with a model's name, and the call that it would be."""
    try:
        with without_collecting(body):
            value = json.loads(body)
    except (ValueError, RecursionError):
        raise RefusalError("the body isn't JSON; send that of a chat completion") from None
    if not isinstance(value, dict):
        raise RefusalError("the body isn't a JSON object; send that of a chat completion")
    found = next((call for field, call in _ENDPOINTS.items() if field in value), None)
    if found is None:
        raise RefusalError("the body has no messages, prompt or input; send one", param="messages")
    if "model" in value:
        return body, found
    return body.lstrip().replace(b"{", b'{"model":"auto",', 1), found


def _models(gateway: Gateway, key: ClientKey | None) -> list[dict[str, Any]]:
    live = gateway.live
    allowed = None if key is None else key.targets
    names = (*ROUTING_NAMES, *live.settings.routing.names)
    routing = [_model(name, "prefill-router", gateway.began) for name in names]
    targets = [
        {
            **_model(t.name, live.loaded.pool.provider_of(t.name).name, gateway.began),
            **_can(live, t),
        }
        for t in live.loaded.pool
        if allowed is None or t.name in allowed
    ]
    return [*routing, *targets]


def _model(name: str, owner: str, created: float) -> dict[str, Any]:
    return {"id": name, "object": "model", "created": int(created), "owned_by": owner}


def _can(live: Live, target: Target) -> dict[str, Any]:
    return {
        "context_length": target.context_tokens,
        "accepts": list(target.accepts),
        "serves": list(live.loaded.pool.serves(target.name)),
        "input_price": target.input_price,
        "output_price": target.output_price,
    }
