"""The page's routes: its files, served from memory, and its JSON API with all numbers.

The JSON is described in `shapes`; its numbers come from a `PageSource`.
"""

import asyncio
import hashlib
import json
import math
import time
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from importlib.resources import files
from typing import TYPE_CHECKING, Any, Protocol, final, runtime_checkable

from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route

from prefill_router import __version__
from prefill_router.errors import DataError, PrefillRouterError, StoreError
from prefill_router_gateway.errors import RefusalError
from prefill_router_gateway.guard import PAGE_HEADERS
from prefill_router_gateway.page import views
from prefill_router_gateway.page.shapes import (
    NONE,
    CurveView,
    DecisionDetail,
    Decisions,
    DriftView,
    FeatureDrift,
    LamSet,
    MinuteView,
    Overview,
    SavingsPanel,
    SharedView,
    Spend,
    Targets,
    Timeline,
    VersionsView,
    WhatIf,
)
from prefill_router_gateway.receipts import (
    RecentRequests,
    Recorded,
    Savings,
    read_receipts,
    recent,
    summary,
)
from prefill_router_gateway.records import OUTCOMES
from prefill_router_gateway.runtime import health_checks

if TYPE_CHECKING:
    from prefill_router_gateway.runtime import Gateway


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
_API_HEADERS = {"cache-control": "no-store", "x-content-type-options": "nosniff"}

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
        _route("decisions", lambda request: _read_decisions(source, request)),
        _route("decisions/{id}", lambda request: _read_decision(source, request)),
        _route("spend", lambda _: source.spend()),
        _route("savings", lambda _: source.savings()),
        _route("versions", lambda _: source.versions()),
        _route("curve", lambda _: source.curve()),
        _route(
            "whatif", lambda request: source.whatif(_parse_lam(request.query_params.get("lam")))
        ),
        _route("targets", lambda _: source.targets()),
        _route("drift", lambda _: source.drift()),
        _route("lam", lambda request: _set_lam(source, request), method="POST"),
    ]


def _route(path: str, answer: _Answer, *, method: str = "GET") -> Route:
    async def serve(request: Request) -> Response:
        try:
            return _json_response(await answer(request))
        except RefusalError as error:
            return _json_response(error.body(), status=error.status, headers=error.headers)
        except PrefillRouterError as error:
            down = RefusalError.unavailable(str(error))
            return _json_response(down.body(), status=down.status, headers=down.headers)

    return Route(f"{API}/{path}", serve, methods=[method])


def _json_response(
    value: Any, *, status: int = 200, headers: dict[str, str] | None = None
) -> Response:
    body = json.dumps(value, allow_nan=False, ensure_ascii=False, separators=(",", ":"))
    return Response(
        body,
        status_code=status,
        media_type="application/json",
        headers={**_API_HEADERS, **(headers or {})},
    )


async def _read_decisions(source: PageSource, request: Request) -> Any:
    parameters = request.query_params
    limit = parameters.get("limit", "50")
    if not (limit.isascii() and limit.isdigit() and len(limit) <= 4 and int(limit) > 0):
        raise RefusalError(f"limit must be a whole number from 1 to {_MOST_ROWS}", param="limit")
    after = parameters.get("after") or None
    outcome, part = parameters.get("outcome") or None, parameters.get("id") or None
    if outcome is not None and outcome not in OUTCOMES:
        raise RefusalError(f"outcome must be one of {list(OUTCOMES)}", param="outcome")
    return await source.decisions(
        after=after, limit=min(int(limit), _MOST_ROWS), outcome=outcome, part=part
    )


async def _read_decision(source: PageSource, request: Request) -> Any:
    detail = await source.decision(request.path_params["id"])
    if detail is None:
        raise RefusalError("no receipt has this decision id", status=404, code="no_such_decision")
    return detail


async def _set_lam(source: PageSource, request: Request) -> Any:
    if request.headers.get("content-type", "").split(";")[0].strip() != "application/json":
        raise RefusalError("the body's content-type must be application/json", status=415)
    try:
        value = json.loads(await _read_body(request))
    except (ValueError, RecursionError):
        raise RefusalError('the body isn\'t JSON; send {"lam": 0.5}') from None
    if not isinstance(value, dict) or set(value) != {"lam"}:
        raise RefusalError('the body must have one field: {"lam": 0.5}', param="lam")
    if not isinstance(value["lam"], int | float):
        raise RefusalError("lam must be a number from 0 to 1", param="lam")
    return await source.set_lam(_parse_lam(value["lam"]))


async def _read_body(request: Request) -> bytes:
    body = bytearray()
    try:
        async for piece in request.stream():
            body += piece
            if len(body) > _MOST_BYTES:
                raise RefusalError(f"the body has more than {_MOST_BYTES} bytes", status=413)
    except ClientDisconnect:
        raise RefusalError("the client disconnected within the body") from None
    return bytes(body)


def _parse_lam(number: Any) -> float:
    try:
        value = math.nan if isinstance(number, bool) or number is None else float(number)
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
PAGE_FILE_HEADERS = {
    **{name.decode(): value.decode() for name, value in PAGE_HEADERS},
    "permissions-policy": "camera=(), geolocation=(), microphone=()",
}
"""The page's security headers: it loads nothing from elsewhere and can't be framed.

Behind a `Guard` only `permissions-policy` is new."""


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
            **PAGE_FILE_HEADERS,
            # Browsers revalidate each time, so that an upgrade never mixes old and new modules.
            "cache-control": "no-cache",
            "etag": self.etag,
        }
        self._type = _TYPES[name.rpartition(".")[2]]

    async def serve(self, request: Request) -> Response:
        """Serve the file, or 304 to a client that has it."""
        if_none_match = request.headers.get("if-none-match")
        tags = [tag.strip().removeprefix("W/") for tag in (if_none_match or "").split(",")]
        if self.etag in tags or "*" in tags:
            return Response(status_code=304, headers=self._headers)
        return Response(self.body, media_type=self._type, headers=self._headers)


def read_page_files() -> tuple[PageFile, ...]:
    """Read all files of the page."""
    folder = files("prefill_router_gateway.page").joinpath("static")
    page_files = (item for item in folder.iterdir() if item.name.rpartition(".")[2] in _TYPES)
    return tuple(
        PageFile(item.name, item.read_bytes()) for item in sorted(page_files, key=lambda i: i.name)
    )


def file_routes() -> list[Route]:
    """The page at `/`, and the files that it loads at `/page/NAME`."""
    return [
        Route("/" if file.name == _HOME else f"/page/{file.name}", file.serve)
        for file in read_page_files()
    ]


_HOUR, _DAY = 3600.0, 86_400.0
_CACHE_SECONDS = 2.0  # how long sums over receipts are cached, since several pages may request them
_MOST_READ = 500  # receipts; reading them takes a twentieth of a second
_MUCH_DRIFT = 0.25


@final
class PageNumbers:
    """The numbers of the page's API (a `PageSource`)."""

    def __init__(self, gateway: "Gateway") -> None:
        self._gateway = gateway
        self._health = health_checks(gateway)
        self._spend: tuple[float, Spend] | None = None
        self._latest: tuple[float, RecentRequests] | None = None
        self._spend_lock, self._receipts_lock = asyncio.Lock(), asyncio.Lock()
        self._failing_at, self._failures = 0.0, list[str]()

    async def overview(self) -> Overview:
        """The state of the gateway: that of `/ready`, or degraded by drift or failing targets."""
        gateway, report = self._gateway, self._health.ready()
        light = gateway.live.loaded.light
        checks = report.value["checks"]
        latest = await self._read_recent()
        state, worse = report.value["state"], [*self._describe_drift(), *self._find_failing(latest)]
        return Overview(
            state="degraded" if worse and state == "ready" else state,
            problems=[*(check["note"] for check in checks.values() if "note" in check), *worse],
            router=light.fingerprint or None,
            serving=str(gateway.live.loaded.served) if gateway.has_versions else None,
            policy=light.policy.kind if light.fingerprint else None,
            encoder=", ".join(light.encoders) or None,
            lam=gateway.lam_left,
            lam_set=gateway.lam,
            lam_configured=gateway.settings.routing.lam,
            lam_reason=gateway.live.loaded.lam_reason,
            requests_last_hour=latest.requests_last_hour(),
            fallback_share=gateway.fallbacks.report().share,
            shared=gateway.shared and views.pick(SharedView, {}, gateway.shared),
            uptime_seconds=time.time() - gateway.began,
            version=__version__,
        )

    async def _read_recent(self) -> RecentRequests:
        """The latest requests: this process's, or by their receipts those of all workers."""
        if self._gateway.other_workers is None:
            return self._gateway.recent
        async with self._receipts_lock:
            if self._latest is None or time.monotonic() - self._latest[0] > _CACHE_SECONDS:
                try:
                    receipts = await asyncio.to_thread(
                        recent, self._gateway.readable_receipts(), _MOST_READ
                    )
                except StoreError:
                    return self._gateway.recent
                latest = RecentRequests()
                latest.fill(
                    sorted(receipts, key=lambda receipt: receipt.at + receipt.outcome.total_seconds)
                )
                self._latest = (time.monotonic(), latest)
            return self._latest[1]

    def _describe_drift(self) -> list[str]:
        report = self._gateway.drift.report()
        if report is None or report.largest < _MUCH_DRIFT:
            return []
        moved = sum(value >= _MUCH_DRIFT for value in report.by_feature.values())
        return [
            f"requests have drifted from the router's train rows: {moved} of "
            f"{len(report.by_feature)} features have a drift above {_MUCH_DRIFT:g}, the largest "
            f"{report.largest:.2g}"
        ]

    def _find_failing(self, latest: RecentRequests) -> list[str]:
        """The targets that fail often, updated every two seconds."""
        now = time.monotonic()
        if now - self._failing_at > _CACHE_SECONDS:
            gateway = self._gateway
            _, ended = latest.last_hour()
            pool = gateway.live.loaded.pool
            rows = [views.health(pool, name, gateway.breakers, ended) for name in pool.names]
            self._failing_at, self._failures = now, views.failing(rows)
        return self._failures

    async def timeline(self) -> Timeline:
        """The last hour, minute by minute."""
        minutes = [
            views.pick(MinuteView, {"at": 60.0 * minute.number}, minute)
            for minute in (await self._read_recent()).minutes()
        ]
        return Timeline(until=60.0 * (time.time() // 60 + 1), minutes=minutes)

    async def decisions(
        self, *, after: str | None, limit: int, outcome: str | None = None, part: str | None = None
    ) -> Decisions:
        """The requests that ended most recently."""
        latest = await self._read_recent()
        receipts = latest.since(
            after,
            limit,
            selects=lambda receipt: (
                outcome in (None, receipt.outcome.kind) and (part or "") in receipt.choice.id
            ),
        )
        return Decisions(
            cursor=latest.cursor, decisions=[views.row(receipt) for receipt in receipts]
        )

    async def decision(self, id: str) -> DecisionDetail | None:  # noqa: A002
        """Everything about one decision; None if there is none with this id."""
        receipt = self._gateway.recent.find(id)
        if receipt is None:
            url = self._gateway.readable_receipts()
            receipts = await asyncio.to_thread(lambda: [*read_receipts(url, ids=[id])])
            receipt = receipts[0] if receipts else None
        if receipt is None:
            return None
        return views.detail(receipt, await self._gateway.savings.of_request(receipt))

    async def spend(self) -> Spend:
        """What was spent, and what remains of the budgets."""
        async with self._spend_lock:
            now = time.time()
            if self._spend is None or now - self._spend[0] > _CACHE_SECONDS:
                self._spend = (now, await self._sum_spend(now))
            return self._spend[1]

    async def _read_savings(self, since: str) -> Savings | None:
        """The savings since a time; None where they aren't known."""
        try:
            return await self._gateway.savings.since(self._gateway.settings.savings, since)
        except DataError:
            return None

    async def savings(self) -> SavingsPanel:
        """What routing saved in the last seven days."""
        try:
            savings = await self._gateway.savings.since(self._gateway.settings.savings)
        except DataError as error:
            return SavingsPanel(problem=str(error), savings=None)
        return SavingsPanel(problem=None, savings=views.savings(savings))

    async def versions(self) -> VersionsView:
        """The versions of the router, and their latest steps."""
        registry = self._gateway.registry
        if registry is None:
            return NONE
        state = await asyncio.to_thread(registry.state)
        return views.versions(state, str(self._gateway.live.loaded.served))

    async def _sum_spend(self, now: float) -> Spend:
        url = self._gateway.readable_receipts()
        hour, day = now - _HOUR, now - now % _DAY
        midnight = datetime.fromtimestamp(day, UTC).isoformat()
        hour_savings = await self._read_savings("1h")
        day_savings = await self._read_savings(midnight)
        return Spend(
            hour=views.spend(await asyncio.to_thread(summary, url, hour), hour_savings, hour),
            day=views.spend(await asyncio.to_thread(summary, url, day), day_savings, day),
            budgets=[views.budget(state, now) for state in self._gateway.budgets.states(now)],
        )

    async def curve(self) -> CurveView:
        """The accuracy-cost curve of the recent requests."""
        receipts = (await self._read_recent()).all()
        recorded = await asyncio.to_thread(Recorded.of, receipts)
        return await asyncio.to_thread(views.curve, recorded, receipts)

    async def whatif(self, lam: float) -> WhatIf:
        """What another lam would have changed; the setting stays as it is."""
        recorded = await asyncio.to_thread(Recorded.of, (await self._read_recent()).all())
        return await asyncio.to_thread(views.whatif, recorded, now=self._gateway.lam, then=lam)

    async def targets(self) -> Targets:
        """The state and performance of the targets."""
        gateway = self._gateway
        pool = gateway.live.loaded.pool
        since, receipts = (await self._read_recent()).last_hour()
        return Targets(
            prices_date=pool.prices_date,
            since=since,
            targets=[views.health(pool, name, gateway.breakers, receipts) for name in pool.names],
        )

    async def drift(self) -> DriftView:
        """How far the requests have moved from the train rows."""
        watch = self._gateway.drift
        report = watch.report()
        drifts = {} if report is None else report.by_feature
        return DriftView(
            watched=bool(watch.features),
            requests=watch.requests,
            needed=watch.least,
            mean=None if report is None else report.mean,
            features=[
                FeatureDrift(feature=name, psi=psi)
                for name, psi in sorted(drifts.items(), key=lambda pair: -pair[1])
            ],
        )

    async def set_lam(self, lam: float) -> LamSet:
        """Set the trade-off of requests that give none, until the gateway ends."""
        before = self._gateway.lam
        self._gateway.set_lam(lam)
        return LamSet(lam=lam, before=before)
