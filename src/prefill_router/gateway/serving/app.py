"""The application: every route, its description, and the guard before it."""

import logging
from collections.abc import Awaitable, Callable
from functools import cache
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.responses import JSONResponse, Response
from starlette.routing import Match, Route

from prefill_router import __version__
from prefill_router.gateway.guarding import Guard, address_of, error_handlers
from prefill_router.gateway.page import page_routes
from prefill_router.gateway.refusal import RefusalError
from prefill_router.gateway.serving.answering import Answering
from prefill_router.gateway.serving.errands import plain_routes
from prefill_router.gateway.serving.gateway import Gateway
from prefill_router.gateway.serving.loading import Loaded
from prefill_router.gateway.serving.operations import operations
from prefill_router.gateway.serving.page_numbers import PageNumbers
from prefill_router.gateway.serving.schema import PATHS, operation, page_paths
from prefill_router.gateway.serving.schema_plain import plain_paths
from prefill_router.gateway.telemetry import with_fields

_log = logging.getLogger(__name__)
_Handler = Callable[[Request, Any], Awaitable[Response]]
_TOLD = "An OpenAI-compatible server that sends each request to the target a router picks."


def guarded_app(gateway: Gateway, loaded: Loaded) -> Guard:
    """The whole application (ASGI).

    Args:
        gateway: Started before the first request comes.
        loaded: What it begins with.
    """
    settings = loaded.settings
    guard = Guard(
        application(gateway),
        listen=settings.listen,
        limits=settings.limits,
        keys=loaded.keys,
        key_limits=gateway.key_limits,
        room=gateway.room,
        refused=lambda refusal, address: _refused(gateway, refusal, address),
    )
    gateway.on_reload.append(
        lambda new: guard.use(listen=settings.listen, limits=new.settings.limits, keys=new.keys)
    )
    return guard


def application(gateway: Gateway) -> FastAPI:
    """Every route, without the guard."""
    handlers: dict[Any, Any] = {**error_handlers(), RequestValidationError: _invalid}
    handlers[RefusalError] = _counted(gateway, handlers[RefusalError])
    app = FastAPI(
        title="prefill-router",
        version=__version__,
        description=_TOLD,
        docs_url=None,  # its page would be fetched from elsewhere
        redoc_url=None,
        redirect_slashes=False,
        exception_handlers=handlers,
    )
    forwarded = [
        Route(path, Answering(gateway, endpoint), methods=["POST"])
        for endpoint, path in PATHS.items()
    ]
    app.router.routes.extend(forwarded + plain_routes(gateway))
    app.include_router(operations(gateway))
    app.router.routes.extend(page_routes(PageNumbers(gateway)))
    app.openapi = _described(app.openapi)  # type: ignore[method-assign]
    return app


def _described(openapi: Callable[[], dict[str, Any]]) -> Callable[[], dict[str, Any]]:
    """FastAPI's own description, and that of the routes which it doesn't see."""

    @cache
    def describe() -> dict[str, Any]:
        document = openapi()
        for endpoint, path in PATHS.items():
            document["paths"].setdefault(path, {"post": operation(endpoint)})
        document["paths"].update(plain_paths())
        document["paths"].update(page_paths())
        return document

    return describe


def _counted(gateway: Gateway, reply: _Handler) -> _Handler:
    """Tell metrics and the log of what is refused once the guard has let it through."""

    async def refuse(request: Request, error: Any) -> Response:
        _refused(gateway, error, address_of(request.scope), path=_route(request))
        return await reply(request, error)

    return refuse


def _refused(gateway: Gateway, error: RefusalError, address: str | None, **more: str) -> None:
    gateway.metrics.refused(error.status)
    fields = {**more, "status": error.status, "code": error.code, "address": address}
    _log.info("refused", extra=with_fields(fields))


def _route(request: Request) -> str:
    """The path that a request's route has, never what was sent; empty where there is none."""
    found = request.scope.get("route")
    if found is None:  # only FastAPI's own leave theirs there
        fit = (r for r in request.app.routes if r.matches(request.scope)[0] is Match.FULL)
        found = next(fit, None)
    return getattr(found, "path", "")


async def _invalid(request: Request, error: Exception) -> Response:  # noqa: ARG001
    """What a body lacks, without quoting it."""
    found = error.errors() if isinstance(error, RequestValidationError) else []
    told = "; ".join(f"{'.'.join(map(str, e['loc'][1:])) or 'body'}: {e['msg']}" for e in found)
    refusal = RefusalError(told or "the request can't be read", status=400)
    return JSONResponse(refusal.body(), status_code=refusal.status)
