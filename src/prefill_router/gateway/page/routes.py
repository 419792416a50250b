"""The page's routes: its files, served from memory, and its JSON API.

The JSON is described in `shapes` and `decision_shapes`; its numbers come from a `PageSource`.
"""

import hashlib
import json
import math
from collections.abc import Awaitable, Callable
from importlib.resources import files
from typing import Any, Protocol, final, runtime_checkable

from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route

from prefill_router.errors import PrefillRouterError
from prefill_router.gateway.errors import RefusalError
from prefill_router.gateway.page.decision_shapes import (
    DecisionDetail,
    Decisions,
    SavingsPanel,
    VersionsView,
)
from prefill_router.gateway.page.shapes import (
    CurveView,
    DriftView,
    LamSet,
    Overview,
    Spend,
    Targets,
    Timeline,
    WhatIf,
)
from prefill_router.gateway.types import OUTCOMES


@runtime_checkable
class PageSource(Protocol):
    """The source of the page's numbers; no method may block the event loop.

    A method that can't answer raises a `PrefillRouterError`, whose message the page shows; a
    `RefusalError` sets the status too.
    """

    async def overview(self) -> Overview:
        """The state of the gateway."""
        ...

    async def timeline(self) -> Timeline:
        """The last hour, minute by minute."""
        ...

    async def decisions(
        self, *, after: str | None, limit: int, outcome: str | None = None, part: str | None = None
    ) -> Decisions:
        """The requests that ended most recently.

        Args:
            after: The cursor of an earlier response, for the requests that ended since; None or
                an unknown cursor for the latest.
            limit: The most requests; the newest are returned.
            outcome: Only requests with this outcome.
            part: Only requests whose id contains this text.
        """
        ...

    async def decision(self, id: str) -> DecisionDetail | None:  # noqa: A002
        """Everything about one decision; None if there is none with this id."""
        ...

    async def spend(self) -> Spend:
        """What was spent, and what remains of the budgets."""
        ...

    async def savings(self) -> SavingsPanel:
        """What routing saved in the last seven days."""
        ...

    async def versions(self) -> VersionsView:
        """The versions of the router, and their latest steps."""
        ...

    async def curve(self) -> CurveView:
        """The accuracy-cost curve of the recorded traffic; at most about 200 points."""
        ...

    async def whatif(self, lam: float) -> WhatIf:
        """What another lam would have changed; the setting stays as it is."""
        ...

    async def targets(self) -> Targets:
        """The state and performance of the targets."""
        ...

    async def drift(self) -> DriftView:
        """How far the requests have moved from the train rows."""
        ...

    async def set_lam(self, lam: float) -> LamSet:
        """Set the trade-off of requests that give none, until the gateway ends."""
        ...


API = "/page/api"
_MOST_ROWS = 200
_MOST_BYTES = 1024
_HEADERS = {"cache-control": "no-store", "x-content-type-options": "nosniff"}

_Answer = Callable[[Request], Awaitable[Any]]


def page_routes(source: PageSource) -> list[Route]:
    """The page at `/`, its files under `/page/`, and its numbers under `/page/api/`.

    Where there are keys, everything under `/page/api/` needs an admin key. The caller's guard must
    check that, and that no other site's page posts here.
    """
    return [
        *file_routes(),
        _route("overview", lambda _: source.overview()),
        _route("timeline", lambda _: source.timeline()),
        _route("decisions", lambda request: _decisions(source, request)),
        _route("decisions/{id}", lambda request: _decision(source, request)),
        _route("spend", lambda _: source.spend()),
        _route("savings", lambda _: source.savings()),
        _route("versions", lambda _: source.versions()),
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
        raise RefusalError(f"limit must be a whole number from 1 to {_MOST_ROWS}", param="limit")
    after = asked.get("after") or None
    outcome, part = asked.get("outcome") or None, asked.get("id") or None
    if outcome is not None and outcome not in OUTCOMES:
        raise RefusalError(f"outcome must be one of {list(OUTCOMES)}", param="outcome")
    return await source.decisions(
        after=after, limit=min(int(limit), _MOST_ROWS), outcome=outcome, part=part
    )


async def _decision(source: PageSource, request: Request) -> Any:
    found = await source.decision(request.path_params["id"])
    if found is None:
        raise RefusalError("no receipt has this decision id", status=404, code="no_such_decision")
    return found


async def _set_lam(source: PageSource, request: Request) -> Any:
    if request.headers.get("content-type", "").split(";")[0].strip() != "application/json":
        raise RefusalError("the body's content-type must be application/json", status=415)
    try:
        value = json.loads(await _body(request))
    except (ValueError, RecursionError):
        raise RefusalError('the body isn\'t JSON; send {"lam": 0.5}') from None
    if not isinstance(value, dict) or set(value) != {"lam"}:
        raise RefusalError('the body must have one field: {"lam": 0.5}', param="lam")
    if not isinstance(value["lam"], int | float):
        raise RefusalError("lam must be a number from 0 to 1", param="lam")
    return await source.set_lam(_lam(value["lam"]))


async def _body(request: Request) -> bytes:
    body = bytearray()
    try:
        async for piece in request.stream():
            body += piece
            if len(body) > _MOST_BYTES:
                raise RefusalError(f"the body has more than {_MOST_BYTES} bytes", status=413)
    except ClientDisconnect:
        raise RefusalError("the client disconnected within the body") from None
    return bytes(body)


def _lam(given: Any) -> float:
    try:
        value = math.nan if isinstance(given, bool) or given is None else float(given)
    except (TypeError, ValueError, OverflowError):
        value = math.nan
    if not 0 <= value <= 1:
        raise RefusalError("lam must be a number from 0 to 1", param="lam")
    return value


_TYPES = {
    "html": "text/html; charset=utf-8",
    "css": "text/css; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "svg": "image/svg+xml",
}
_HOME = "index.html"
HEADERS = {
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
        "connect-src 'self'; frame-ancestors 'none'; base-uri 'none'; form-action 'none'"
    ),
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), geolocation=(), microphone=()",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
}
"""The page's security headers: it loads nothing from elsewhere and can't be framed."""


@final
class PageFile:
    """One file of the page.

    Args:
        name: Its file name.
        body: Its bytes.
    """

    def __init__(self, name: str, body: bytes) -> None:
        self.name, self.body = name, body
        self.etag = f'"{hashlib.sha256(body).hexdigest()[:32]}"'
        self._headers = {
            **HEADERS,
            # Browsers revalidate each time, so that an upgrade never mixes old and new modules.
            "cache-control": "no-cache",
            "etag": self.etag,
        }
        self._type = _TYPES[name.rpartition(".")[2]]

    async def serve(self, request: Request) -> Response:
        """Serve the file, or 304 to a client that has it."""
        if_none_match = request.headers.get("if-none-match")
        known = [tag.strip().removeprefix("W/") for tag in (if_none_match or "").split(",")]
        if self.etag in known or "*" in known:
            return Response(status_code=304, headers=self._headers)
        return Response(self.body, media_type=self._type, headers=self._headers)


def read_page_files() -> tuple[PageFile, ...]:
    """Read all files of the page."""
    folder = files("prefill_router.gateway.page").joinpath("static")
    known = (item for item in folder.iterdir() if item.name.rpartition(".")[2] in _TYPES)
    return tuple(
        PageFile(item.name, item.read_bytes()) for item in sorted(known, key=lambda i: i.name)
    )


def file_routes() -> list[Route]:
    """The page at `/`, and the files that it loads at `/page/NAME`."""
    return [
        Route("/" if file.name == _HOME else f"/page/{file.name}", file.serve)
        for file in read_page_files()
    ]
