"""The application: every route, its OpenAPI description, and the guard in front of it.

The gateway's own endpoints are the dry run, outcomes, feedback, models, reload, health and metrics.
"""

import logging
from collections.abc import Awaitable, Callable
from functools import cache
from typing import Any

from fastapi import APIRouter, FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.responses import JSONResponse, Response
from starlette.routing import Match, Route

from prefill_router import __version__
from prefill_router.errors import DataError, PrefillRouterError, StoreError
from prefill_router_gateway.api.decisions import OutcomeBody, OutcomeReports, dry_run
from prefill_router_gateway.api.feedback import FeedbackBody, take_feedback
from prefill_router_gateway.api.models import describe_model, list_models
from prefill_router_gateway.api.openapi import (
    COMPACT,
    ERROR,
    PATHS,
    body_schema,
    operation,
    page_paths,
    plain_paths,
    preference_headers,
)
from prefill_router_gateway.api.passthrough_routes import passthrough_routes
from prefill_router_gateway.api.routed_calls import RoutedEndpoint
from prefill_router_gateway.errors import RefusalError
from prefill_router_gateway.guard import KEY, Guard, address_of, error_handlers
from prefill_router_gateway.page import PageNumbers, page_routes
from prefill_router_gateway.runtime import (
    Gateway,
    LoadedGateway,
    health_checks,
    read_gauges,
)
from prefill_router_gateway.telemetry import render_metrics, with_fields

_log = logging.getLogger(__name__)
_Handler = Callable[[Request, Any], Awaitable[Response]]
_DESCRIPTION = "An OpenAI-compatible server that sends each request to the target a router chooses."


def guarded_app(gateway: Gateway, loaded: LoadedGateway) -> Guard:
    """The whole application (ASGI).

    Args:
        gateway: The gateway; it is started before the first request arrives.
        loaded: The router, pool and settings that it starts with.
    """
    settings = loaded.settings
    guard = Guard(
        application(gateway),
        listen=settings.listen,
        limits=settings.limits,
        keys=loaded.keys,
        key_limits=gateway.key_limits,
        body_budget=gateway.body_budget,
        on_refusal=lambda refusal, address: _record_refusal(gateway, refusal, address),
    )
    if gateway.shared is not None:
        guard.admit_shared = gateway.shared.key_limits.admit
    gateway.on_reload.append(
        lambda new: guard.use(listen=settings.listen, limits=new.settings.limits, keys=new.keys)
    )
    return guard


def application(gateway: Gateway) -> FastAPI:
    """Every route, without the guard."""
    handlers: dict[Any, Any] = {**error_handlers(), RequestValidationError: _reply_invalid_body}
    handlers[RefusalError] = _count_refusals(gateway, handlers[RefusalError])
    app = FastAPI(
        title="prefill-router",
        version=__version__,
        description=_DESCRIPTION,
        docs_url=None,  # its page would load scripts from elsewhere
        redoc_url=None,
        redirect_slashes=False,
        exception_handlers=handlers,
    )
    forwarded = [
        Route(path, RoutedEndpoint(gateway, endpoint), methods=["POST"])
        for endpoint, path in PATHS.items()
    ]
    compact = RoutedEndpoint(gateway, "responses", COMPACT)
    forwarded.append(Route(PATHS["responses"] + COMPACT, compact, methods=["POST"]))
    app.router.routes.extend(forwarded + passthrough_routes(gateway))
    app.include_router(operations(gateway))
    app.router.routes.extend(page_routes(PageNumbers(gateway)))
    app.openapi = _extend_openapi(app.openapi)  # type: ignore[method-assign]
    return app


def _extend_openapi(openapi: Callable[[], dict[str, Any]]) -> Callable[[], dict[str, Any]]:
    """FastAPI's OpenAPI document, with the routes that FastAPI doesn't know added."""

    @cache
    def describe() -> dict[str, Any]:
        document = openapi()
        for endpoint, path in PATHS.items():
            document["paths"].setdefault(path, {"post": operation(endpoint)})
        document["paths"].update(plain_paths())
        document["paths"].update(page_paths())
        return document

    return describe


def _count_refusals(gateway: Gateway, reply: _Handler) -> _Handler:
    """Count and log requests that are refused after the guard has admitted them."""

    async def refuse(request: Request, error: Any) -> Response:
        _record_refusal(gateway, error, address_of(request.scope), path=_find_route_path(request))
        return await reply(request, error)

    return refuse


def _record_refusal(
    gateway: Gateway, error: RefusalError, address: str | None, **more: str
) -> None:
    gateway.metrics.count_refusal(error.status)
    fields = {**more, "status": error.status, "code": error.code, "address": address}
    _log.info("refused", extra=with_fields(fields))


def _find_route_path(request: Request) -> str:
    """The path pattern of a request's route, never the path sent; empty where there is none."""
    route = request.scope.get("route")
    if route is None:  # only FastAPI's own routes set it
        fit = (r for r in request.app.routes if r.matches(request.scope)[0] is Match.FULL)
        route = next(fit, None)
    return getattr(route, "path", "")


async def _reply_invalid_body(request: Request, error: Exception) -> Response:  # noqa: ARG001
    """The errors of an invalid body, without quoting it."""
    errors = error.errors() if isinstance(error, RequestValidationError) else []
    message = "; ".join(f"{'.'.join(map(str, e['loc'][1:])) or 'body'}: {e['msg']}" for e in errors)
    refusal = RefusalError(message or "the request can't be read", status=400)
    return JSONResponse(refusal.body(), status_code=refusal.status)


_REPLIES: dict[int | str, dict[str, Any]] = {"default": ERROR}


def operations(gateway: Gateway) -> APIRouter:
    """The gateway's own routes, without those of the page."""
    routes = APIRouter()
    _add_client_routes(routes, gateway)
    _add_reload_route(routes, gateway)
    _add_savings_route(routes, gateway)
    _add_health_routes(routes, gateway)
    _add_metrics_route(routes, gateway)
    return routes


def _add_client_routes(routes: APIRouter, gateway: Gateway) -> None:
    @routes.get("/v1/models", tags=["models"], summary="Targets, and model names that route")
    async def models(request: Request) -> JSONResponse:
        return JSONResponse(list_models(gateway, request))

    @routes.get("/v1/models/{name:path}", tags=["models"], responses=_REPLIES, summary="One model")
    async def model(request: Request, name: str) -> JSONResponse:
        return JSONResponse(describe_model(gateway, request, name))

    body = {"required": True, "content": {"application/json": {"schema": body_schema("chat")}}}

    @routes.post(
        "/v1/route",
        tags=["routing"],
        responses=_REPLIES,
        summary="The routing decision without the call",
        openapi_extra={"requestBody": body, "parameters": preference_headers()},
    )
    async def route(request: Request) -> JSONResponse:
        return await dry_run(gateway, request)

    reports = OutcomeReports(gateway)
    summary = "What came of a decision that others carried out"

    @routes.post("/v1/outcome", tags=["routing"], responses=_REPLIES, summary=summary)
    async def outcome(request: Request, body: OutcomeBody) -> JSONResponse:
        return await reports.take(request, body)

    @routes.post("/v1/feedback", tags=["routing"], responses=_REPLIES, summary="Score an answer")
    async def feedback(request: Request, body: FeedbackBody) -> JSONResponse:
        return await take_feedback(gateway, body, request.scope.get(KEY))


def _add_reload_route(routes: APIRouter, gateway: Gateway) -> None:
    @routes.post(
        "/admin/reload",
        tags=["operating"],
        responses=_REPLIES,
        summary="Reload router, pool, prices and settings",
    )
    async def reload() -> JSONResponse:
        try:
            loaded = await gateway.reload_all()
        except PrefillRouterError as error:
            raise RefusalError(
                f"nothing was changed: {error}", status=409, code="reload_failed"
            ) from None
        return JSONResponse(
            {
                "router": loaded.light.fingerprint,
                "prices_date": loaded.pool.prices_date,
                "warnings": loaded.warnings,
            }
        )


def _add_savings_route(routes: APIRouter, gateway: Gateway) -> None:
    @routes.get(
        "/v1/savings",
        tags=["operating"],
        responses=_REPLIES,
        summary="What routing saved, against one target alone",
    )
    async def savings(since: str = "7d", baseline: str | None = None) -> JSONResponse:
        try:
            report = await gateway.savings.since(gateway.settings.savings, since, baseline=baseline)
        except DataError as error:
            raise RefusalError(str(error)) from None
        except StoreError as error:
            raise RefusalError.unavailable(str(error)) from None
        return JSONResponse(report.to_dict())


def _add_health_routes(routes: APIRouter, gateway: Gateway) -> None:
    health = health_checks(gateway)

    @routes.get("/health", tags=["operating"], responses=_REPLIES, summary="Whether it is alive")
    async def alive() -> JSONResponse:
        report = health.alive()
        return JSONResponse(report.value, status_code=report.status)

    routes.head("/health", include_in_schema=False)(alive)

    @routes.get("/ready", tags=["operating"], responses=_REPLIES, summary="Whether it can answer")
    async def ready() -> JSONResponse:
        if not gateway.is_watched:
            gateway.share({"is_watched": True})
        report = health.ready()
        router: dict[str, Any] = {"verdict": gateway.live.loaded.light.verdict}
        if gateway.has_versions:
            router["serving"] = str(gateway.live.loaded.served)
        return JSONResponse({**report.value, "router": router}, status_code=report.status)

    routes.head("/ready", include_in_schema=False)(ready)


def _add_metrics_route(routes: APIRouter, gateway: Gateway) -> None:
    @routes.get("/metrics", tags=["operating"], summary="Metrics, for Prometheus")
    async def metrics(request: Request) -> Response:
        if gateway.other_workers is None:
            families = gateway.metrics.export(read_gauges(gateway))
        else:
            families = await gateway.other_workers.metrics()
        content, kind = render_metrics(families, request.headers.get("accept", ""))
        return Response(content, headers={"content-type": kind})
