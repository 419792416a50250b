"""The gateway's own endpoints: the decision without the call, feedback, models, reload, health."""

import asyncio
import time
from typing import Annotated, Any, final

from fastapi import APIRouter, Request
from pydantic import BaseModel, ConfigDict, Field
from starlette.responses import JSONResponse, Response

from prefill_router.errors import DataError, PrefillRouterError, StoreError
from prefill_router.gateway.guarding import KEY, ClientKey
from prefill_router.gateway.receipts import Feedback, is_recorded
from prefill_router.gateway.refusal import RefusalError
from prefill_router.gateway.serving.alone import decide_alone
from prefill_router.gateway.serving.gateway import Gateway
from prefill_router.gateway.serving.models import models_of
from prefill_router.gateway.serving.schema import ERROR, body_schema, wishes
from prefill_router.gateway.serving.soundness import soundness

_REPLIES: dict[int | str, dict[str, Any]] = {"default": ERROR}


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
        return JSONResponse({"object": "list", "data": models_of(gateway, request.scope.get(KEY))})

    @routes.get(
        "/v1/models/{name:path}", tags=["models"], responses=_REPLIES, summary="One of them"
    )
    async def model(request: Request, name: str) -> JSONResponse:
        found = [row for row in models_of(gateway, request.scope.get(KEY)) if row["id"] == name]
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
        return await decide_alone(gateway, request)

    @routes.post(
        "/v1/feedback", tags=["routing"], responses=_REPLIES, summary="How good an answer was"
    )
    async def feedback(request: Request, body: FeedbackBody) -> JSONResponse:
        try:
            said = Feedback(id=body.id, score=body.score, source=body.source, at=time.time())
        except DataError as error:
            raise RefusalError(str(error)) from None
        if not await _may_be_told(gateway, body.id, request.scope.get(KEY)):
            raise RefusalError(
                "no such decision of yours; its id is in the reply's headers",
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
            {
                "router": loaded.light.fingerprint,
                "prices_date": loaded.pool.prices_date,
                "warnings": loaded.warnings,
            }
        )

    health = soundness(gateway)

    @routes.get("/health", tags=["operating"], responses=_REPLIES, summary="Whether it is alive")
    async def alive() -> JSONResponse:
        report = health.alive()
        return JSONResponse(report.value, status_code=report.status)

    routes.head("/health", include_in_schema=False)(alive)

    @routes.get("/ready", tags=["operating"], responses=_REPLIES, summary="Whether it answers")
    async def ready() -> JSONResponse:
        gateway.is_watched = True
        report = health.ready()
        router = {"verdict": gateway.live.loaded.light.verdict}
        return JSONResponse({**report.value, "router": router}, status_code=report.status)

    routes.head("/ready", include_in_schema=False)(ready)

    @routes.get("/metrics", tags=["operating"], summary="Metrics, for Prometheus")
    async def metrics(request: Request) -> Response:
        content, kind = gateway.metrics.render(request.headers.get("accept", ""))
        return Response(content, headers={"content-type": kind})


async def _may_be_told(gateway: Gateway, decision: str, key: ClientKey | None) -> bool:
    """Whether there is a receipt of a decision, and who asks may score it.

    A key's holder may score what was decided for that key, an admin everything. What is another
    key's is looked for as long as what never was, so that nobody learns of it.

    Raises:
        RefusalError: That can't be read now; without keys, or of an admin, it is taken for granted.
    """
    owner = None if key is None or key.admin else key.name
    recent = gateway.recent.find(decision)
    if recent is not None and owner in (None, recent.key):
        return True
    try:
        if not gateway.writer.healthy:
            raise StoreError("the receipts' database is away")
        return await asyncio.to_thread(is_recorded, gateway.receipts_url, decision, key=owner)
    except StoreError:
        if owner is None:
            return True
        raise RefusalError(
            "receipts can't be read now, so whose decision this is isn't known; send it again",
            status=503,
            kind="server_error",
            code="unavailable",
            headers={"retry-after": "5"},
        ) from None
