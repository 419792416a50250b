"""The page's routes: its files, and the JSON that they read (see `shapes`)."""

import json
import math
from collections.abc import Awaitable, Callable
from typing import Any

from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route

from prefill_router.errors import PrefillRouterError
from prefill_router.gateway.page.files import file_routes
from prefill_router.gateway.page.source import PageSource
from prefill_router.gateway.refusal import RefusalError
from prefill_router.gateway.words import OUTCOMES

API = "/page/api"
_MOST_ROWS = 200
_MOST_BYTES = 1024
_HEADERS = {"cache-control": "no-store", "x-content-type-options": "nosniff"}

_Answer = Callable[[Request], Awaitable[Any]]


def page_routes(source: PageSource) -> list[Route]:
    """The page at `/`, its files under `/page/`, and its numbers under `/page/api/`.

    Everything under `/page/api/` is for admins alone where keys are set; whoever wraps the routes
    checks that, and that no other site's page posts here.
    """
    return [
        *file_routes(),
        _route("overview", lambda _: source.overview()),
        _route("timeline", lambda _: source.timeline()),
        _route("decisions", lambda request: _decisions(source, request)),
        _route("decisions/{id}", lambda request: _decision(source, request)),
        _route("spend", lambda _: source.spend()),
        _route("curve", lambda _: source.curve()),
        _route("whatif", lambda request: source.whatif(_lam(request.query_params.get("lam")))),
        _route("targets", lambda _: source.targets()),
        _route("drift", lambda _: source.drift()),
        _route("lam", lambda request: _set_lam(source, request), method="POST"),
    ]


def _route(path: str, answer: _Answer, *, method: str = "GET") -> Route:
    async def serve(request: Request) -> Response:
        try:
            return _json(await answer(request))
        except RefusalError as error:
            return _json(error.body(), status=error.status, headers=error.headers)
        except PrefillRouterError as error:
            down = RefusalError(str(error), status=503, kind="server_error", code="unavailable")
            return _json(down.body(), status=503)

    return Route(f"{API}/{path}", serve, methods=[method])


def _json(value: Any, *, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    body = json.dumps(value, allow_nan=False, ensure_ascii=False, separators=(",", ":"))
    return Response(
        body,
        status_code=status,
        media_type="application/json",
        headers={**_HEADERS, **(headers or {})},
    )


async def _decisions(source: PageSource, request: Request) -> Any:
    asked = request.query_params
    limit = asked.get("limit", "50")
    if not (limit.isascii() and limit.isdigit() and len(limit) <= 4 and int(limit) > 0):
        raise RefusalError(f"limit is a whole number from 1 to {_MOST_ROWS}", param="limit")
    after = asked.get("after") or None
    outcome, part = asked.get("outcome") or None, asked.get("id") or None
    if outcome is not None and outcome not in OUTCOMES:
        raise RefusalError(f"outcome is one of {list(OUTCOMES)}", param="outcome")
    return await source.decisions(
        after=after, limit=min(int(limit), _MOST_ROWS), outcome=outcome, part=part
    )


async def _decision(source: PageSource, request: Request) -> Any:
    found = await source.decision(request.path_params["id"])
    if found is None:
        raise RefusalError(
            "no such decision among those that are kept", status=404, code="no_such_decision"
        )
    return found


async def _set_lam(source: PageSource, request: Request) -> Any:
    if request.headers.get("content-type", "").split(";")[0].strip() != "application/json":
        raise RefusalError("the body's content-type must be application/json", status=415)
    try:
        value = json.loads(await _body(request))
    except (ValueError, RecursionError):
        raise RefusalError('the body isn\'t JSON; send {"lam": 0.5}') from None
    if not isinstance(value, dict) or set(value) != {"lam"}:
        raise RefusalError('the body has one field: {"lam": 0.5}', param="lam")
    if not isinstance(value["lam"], int | float):
        raise RefusalError("lam is a number from 0 to 1", param="lam")
    return await source.set_lam(_lam(value["lam"]))


async def _body(request: Request) -> bytes:
    body = bytearray()
    try:
        async for piece in request.stream():
            body += piece
            if len(body) > _MOST_BYTES:
                raise RefusalError(f"the body has more than {_MOST_BYTES} bytes", status=413)
    except ClientDisconnect:
        raise RefusalError("the body broke off") from None
    return bytes(body)


def _lam(given: Any) -> float:
    try:
        value = math.nan if isinstance(given, bool) or given is None else float(given)
    except (TypeError, ValueError, OverflowError):
        value = math.nan
    if not 0 <= value <= 1:
        raise RefusalError("lam is a number from 0 to 1", param="lam")
    return value
