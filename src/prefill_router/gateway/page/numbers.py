"""The page's numbers, from the gateway's memory and its receipts."""

import asyncio
import logging
import time
from typing import TYPE_CHECKING, final

from prefill_router import __version__
from prefill_router.errors import DataError, StoreError
from prefill_router.gateway.page import views
from prefill_router.gateway.page.decision_shapes import (
    NONE,
    DecisionDetail,
    Decisions,
    SavingsPanel,
    VersionsView,
)
from prefill_router.gateway.page.shapes import (
    CurveView,
    DriftView,
    FeatureDrift,
    LamSet,
    MinuteView,
    Overview,
    SharedView,
    Spend,
    Targets,
    Timeline,
    WhatIf,
)
from prefill_router.gateway.receipts import Recorded, read_receipts, recent, summary
from prefill_router.gateway.runtime import health_checks
from prefill_router.gateway.telemetry import RecentRequests

if TYPE_CHECKING:
    from prefill_router.gateway.runtime import Gateway


_log = logging.getLogger(__name__)
_HOUR, _DAY = 3600.0, 86_400.0
_KEPT_SECONDS = 2.0  # how long sums over receipts are cached, since several pages may request them
_NEEDED = 200
_MOST_READ = 500  # receipts; reading them takes a twentieth of a second
_MUCH_DRIFT = 0.25


@final
class PageNumbers:
    """The numbers of the page's API (a `page.PageSource`)."""

    def __init__(self, gateway: "Gateway") -> None:
        self._gateway = gateway
        self._health = health_checks(gateway)
        self._spend: tuple[float, Spend] | None = None
        self._all: tuple[float, RecentRequests] | None = None
        self._summing, self._reading = asyncio.Lock(), asyncio.Lock()
        self._failing_at, self._often = 0.0, list[str]()

    async def overview(self) -> Overview:
        """The state of the gateway: that of `/ready`, or degraded by drift or failing targets."""
        gateway, report = self._gateway, self._health.ready()
        light = gateway.live.loaded.light
        checks = report.value["checks"]
        latest = await self._recent()
        state, worse = report.value["state"], [*self._drifted(), *self._failing(latest)]
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
            requests_last_hour=latest.requests_last_hour(),
            fallback_share=gateway.fallbacks.report().share,
            shared=gateway.shared and views.pick(SharedView, {}, gateway.shared),
            uptime_seconds=time.time() - gateway.began,
            version=__version__,
        )

    async def _recent(self) -> RecentRequests:
        """The latest requests: this process's, or by their receipts those of all workers."""
        if self._gateway.other_workers is None:
            return self._gateway.recent
        async with self._reading:
            if self._all is None or time.monotonic() - self._all[0] > _KEPT_SECONDS:
                try:
                    found = await asyncio.to_thread(recent, self._receipts_url(), _MOST_READ)
                except StoreError:
                    return self._gateway.recent
                every = RecentRequests()
                every.fill(sorted(found, key=lambda one: one.at + one.outcome.total_seconds))
                self._all = (time.monotonic(), every)
            return self._all[1]

    def _drifted(self) -> list[str]:
        report = self._gateway.drift.report()
        if report is None or report.largest < _MUCH_DRIFT:
            return []
        moved = sum(value >= _MUCH_DRIFT for value in report.by_feature.values())
        return [
            f"requests have drifted from the router's train rows: {moved} of "
            f"{len(report.by_feature)} features have a drift above {_MUCH_DRIFT:g}, the largest "
            f"{report.largest:.2g}"
        ]

    def _failing(self, latest: RecentRequests) -> list[str]:
        """The targets that fail often, updated every two seconds."""
        now = time.monotonic()
        if now - self._failing_at > _KEPT_SECONDS:
            gateway = self._gateway
            _, ended = latest.last_hour()
            pool = gateway.live.loaded.pool
            rows = [views.health(pool, name, gateway.breakers, ended) for name in pool.names]
            self._failing_at, self._often = now, views.failing(rows)
        return self._often

    async def timeline(self) -> Timeline:
        """The last hour, minute by minute."""
        minutes = [
            views.pick(MinuteView, {"at": 60.0 * minute.number}, minute)
            for minute in (await self._recent()).minutes()
        ]
        return Timeline(until=60.0 * (time.time() // 60 + 1), minutes=minutes)

    async def decisions(
        self, *, after: str | None, limit: int, outcome: str | None = None, part: str | None = None
    ) -> Decisions:
        """The requests that ended most recently."""
        latest = await self._recent()
        found = latest.since(
            after,
            limit,
            which=lambda receipt: (
                outcome in (None, receipt.outcome.kind) and (part or "") in receipt.choice.id
            ),
        )
        return Decisions(cursor=latest.cursor, decisions=[views.row(one) for one in found])

    async def decision(self, id: str) -> DecisionDetail | None:  # noqa: A002
        """Everything about one decision; None if there is none with this id."""
        receipt = self._gateway.recent.find(id)
        if receipt is None:
            url = self._receipts_url()
            found = await asyncio.to_thread(lambda: [*read_receipts(url, ids=[id])])
            receipt = found[0] if found else None
        if receipt is None:
            return None
        return views.detail(receipt, await self._gateway.savings.of_request(receipt))

    async def spend(self) -> Spend:
        """What was spent, and what remains of the budgets."""
        async with self._summing:
            now = time.time()
            if self._spend is None or now - self._spend[0] > _KEPT_SECONDS:
                self._spend = (now, await self._summed(now))
            return self._spend[1]

    async def savings(self) -> SavingsPanel:
        """What routing saved in the last seven days."""
        try:
            found = await self._gateway.savings.since()
        except DataError as error:
            return SavingsPanel(problem=str(error), savings=None)
        return SavingsPanel(problem=None, savings=views.savings(found))

    async def versions(self) -> VersionsView:
        """The versions of the router, and their latest steps."""
        registry = self._gateway.registry
        if registry is None:
            return NONE
        state = await asyncio.to_thread(registry.state)
        return views.versions(state, str(self._gateway.live.loaded.served))

    async def _summed(self, now: float) -> Spend:
        url = self._receipts_url()
        hour, day = now - _HOUR, now - now % _DAY
        return Spend(
            hour=views.spend(await asyncio.to_thread(summary, url, hour), hour),
            day=views.spend(await asyncio.to_thread(summary, url, day), day),
            budgets=[views.budget(state, now) for state in self._gateway.budgets.states(now)],
        )

    def _receipts_url(self) -> str:
        """The URL of the receipts.

        Raises:
            StoreError: The database is known to be unavailable; trying it would take seconds.
        """
        if not self._gateway.writer.healthy:
            raise StoreError("the receipts' database can't be reached now")
        return self._gateway.receipts_url

    async def curve(self) -> CurveView:
        """The accuracy-cost curve of the recent requests."""
        receipts = (await self._recent()).all()
        recorded = await asyncio.to_thread(Recorded.of, receipts)
        return await asyncio.to_thread(views.curve, recorded, receipts)

    async def whatif(self, lam: float) -> WhatIf:
        """What another lam would have changed; the setting stays as it is."""
        recorded = await asyncio.to_thread(Recorded.of, (await self._recent()).all())
        return await asyncio.to_thread(views.whatif, recorded, now=self._gateway.lam, then=lam)

    async def targets(self) -> Targets:
        """The state and performance of the targets."""
        gateway = self._gateway
        pool = gateway.live.loaded.pool
        since, ended = (await self._recent()).last_hour()
        return Targets(
            prices_date=pool.prices_date,
            since=since,
            targets=[views.health(pool, name, gateway.breakers, ended) for name in pool.names],
        )

    async def drift(self) -> DriftView:
        """How far the requests have moved from the train rows."""
        watch = self._gateway.drift
        report = watch.report()
        found = {} if report is None else report.by_feature
        return DriftView(
            watched=bool(watch.features),
            requests=watch.requests,
            needed=_NEEDED,
            mean=None if report is None else report.mean,
            features=[
                FeatureDrift(feature=name, psi=psi)
                for name, psi in sorted(found.items(), key=lambda pair: -pair[1])
            ],
        )

    async def set_lam(self, lam: float) -> LamSet:
        """Set the trade-off of requests that give none, until the gateway ends."""
        before = self._gateway.lam
        self._gateway.set_lam(lam)
        return LamSet(lam=lam, before=before)
