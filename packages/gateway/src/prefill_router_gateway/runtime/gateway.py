"""The gateway: the state that lasts as long as its process, and the current `Snapshot`."""

import asyncio
import logging
import os
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any, Protocol, final, runtime_checkable

from prefill_router.endpoints import NO_KEY, Breakers, Redaction, provider_keys
from prefill_router.errors import StoreError
from prefill_router.router import VersionRegistry
from prefill_router.targets import Pool
from prefill_router_gateway.decide import (
    Budgets,
    Decider,
    ResponseOwners,
    Sessions,
    SteadyClock,
    TargetSpeeds,
)
from prefill_router_gateway.forecast import DriftWatch, FallbackWatch
from prefill_router_gateway.guard import BodyBudget, KeyLimits, key_budgets
from prefill_router_gateway.protocol import to_client
from prefill_router_gateway.proxy import Forwarder, RateHeadroom
from prefill_router_gateway.receipts import ReceiptWriter, RecentRequests, open_learning, open_store
from prefill_router_gateway.runtime.configuration import GatewayPaths, LoadedGateway, load
from prefill_router_gateway.runtime.request_record import Recorders
from prefill_router_gateway.runtime.savings_reports import SavingsReports
from prefill_router_gateway.runtime.snapshot import Snapshot
from prefill_router_gateway.runtime.startup import (
    AnyForecaster,
    make_forecasters,
    static_changes,
    warm_start,
)
from prefill_router_gateway.runtime.versions import ServedVersions, VersionWatch
from prefill_router_gateway.settings import BudgetSettings, GatewaySettings, SharedSettings
from prefill_router_gateway.shared import SharedState
from prefill_router_gateway.telemetry import EventLoopLag, Metrics, PlainFamily, Traces

_log = logging.getLogger(__name__)


@runtime_checkable
class OtherWorkers(Protocol):
    """The other workers of the same port, reached through their supervisor."""

    async def reload(self) -> None:
        """Reload all workers, this one too; raises a `ConfigError` as `Gateway.reload`."""
        ...

    async def metrics(self) -> list[PlainFamily]:
        """The metrics of all workers, this one too."""
        ...

    def share(self, values: Mapping[str, Any]) -> None:
        """Let all workers learn these values."""
        ...


@final
class Gateway:
    """A gateway without its HTTP interface.

    Args:
        places: The files and options that it is loaded from.
        loaded: What was loaded from them.
        environment: The variables with the providers' keys; by default the process's.

    Attributes:
        began: When it was made, in seconds since 1970.
        receipts_url: The URL of the receipts, which a reload doesn't change.
        lam_set: The lam that was set on the page, for requests that give none; None if none was.
        metrics: The metrics for Prometheus.
        savings: What routing saved, against a baseline.
        drift: Measures the drift of requests from the router's train rows.
        fallbacks: Counts the last minute's decisions without a forecast.
        traces: Sends traces; None for none.
        pulse: Measures the lag of the event loop.
        key_limits: The state of each key's limits.
        shared: What it shares with other replicas; None for a gateway by itself.
        speeds: How long the targets take, where `routing.latency` is set.
        body_budget: The memory for request bodies.
        recent: The requests that ended most recently.
        is_watched: Whether `/ready` has been requested.
        is_ending: Whether it ends as soon as requests in flight have ended.
        under_way: The number of requests in flight.
        streams: The number of streams among them.
        on_reload: Functions that are called with what was reloaded.
        on_secrets: Functions that are called with all current and former keys before they are used.
        other_workers: The other workers of the same port; None where this process serves alone.
        missing: The number of workers that don't serve now.
        versions_problem: Why the latest step of the versions isn't applied; empty if it is.
        live: The snapshot that answers requests, once started.
        writer: Writes receipts, once started.
        recorders: Where the end of every request is recorded, once started.
    """

    live: Snapshot
    writer: ReceiptWriter
    recorders: Recorders

    def __init__(
        self,
        places: GatewayPaths,
        loaded: LoadedGateway,
        *,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        settings = loaded.settings
        self._places, self._first = places, loaded
        self._environment = os.environ if environment is None else environment
        self.began = time.time()
        self.receipts_url = settings.receipts.url
        self.lam_set: float | None = None
        self.breakers = Breakers(
            failures=settings.failures.breaker_failures, seconds=settings.failures.breaker_seconds
        )
        self.headroom, self.speeds = RateHeadroom(), TargetSpeeds()
        self.sessions = Sessions(settings.sessions)
        self.budgets = Budgets(_list_budgets(loaded), steady=SteadyClock())
        self.metrics = Metrics(loaded.pool.names)
        self.savings = SavingsReports(self.readable_receipts)
        self.under_way = self.streams = 0
        self.is_watched = self.is_ending = False
        self.other_workers: OtherWorkers | None = None
        self.missing, self.versions_problem = 0, ""
        self.on_reload: list[Callable[[LoadedGateway], None]] = []
        self.on_secrets: list[Callable[[Collection[str]], None]] = []
        self.drift = _make_drift_watch(loaded)
        self.fallbacks = FallbackWatch()
        self.traces = None if settings.traces is None else Traces(settings.traces)
        self.pulse = EventLoopLag()
        self.key_limits = KeyLimits()
        self.shared = None if settings.shared.url is None else self._make_shared(settings.shared)
        self.body_budget = BodyBudget(settings.limits.held_bytes)
        self.recent = RecentRequests()
        self._secrets: set[str] = set()  # former keys too, which late answers may still quote
        self._closing: set[asyncio.Task[None]] = set()
        self._beating: asyncio.Task[None] | None = None
        self._watching: asyncio.Task[None] | None = None
        self._reloading = asyncio.Lock()

    def _make_shared(self, settings: SharedSettings) -> SharedState:
        return SharedState(
            settings,
            budgets=self.budgets,
            sessions=self.sessions,
            breakers=self.breakers,
            key_limits=self.key_limits,
            take_lam=partial(self.set_lam, share=False),
        )

    @property
    def settings(self) -> GatewaySettings:
        """The current settings."""
        return self.live.settings

    @property
    def registry(self) -> VersionRegistry | None:
        """The versions of its router; None where it has none."""
        return self._places.registry

    @property
    def has_versions(self) -> bool:
        """Whether it serves the versions of a router."""
        return self._places.versions is not None

    @property
    def lam(self) -> float:
        """The trade-off of a request that gives none, before budgets."""
        return self.settings.routing.lam if self.lam_set is None else self.lam_set

    @property
    def lam_left(self) -> float:
        """The trade-off of a request that gives none, after the whole gateway's budgets."""
        states = self.budgets.states(time.time())
        return self.lam * min((s.factor for s in states if s.budget.key is None), default=1.0)

    def readable_receipts(self) -> str:
        """The URL of the receipts, for reading them.

        Raises:
            StoreError: The database is known to be unavailable; trying it would take seconds.
        """
        if not self.writer.healthy:
            raise StoreError("the receipts' database can't be reached now")
        return self.receipts_url

    async def start(self) -> None:
        """Open the receipts, read state from them, and start the encoder.

        Raises:
            ConfigError: The encoder can't be started.
            StoreError: The receipts can't be opened.
        """
        settings = self._first.settings
        await self._open_receipts(settings)
        await asyncio.to_thread(
            warm_start,
            self.receipts_url,
            settings,
            budgets=self.budgets,
            latest=self.recent,
            speeds=self.speeds,
            sessions=self.sessions,
        )
        if self.shared is not None:
            await self.shared.open()
        self.live = await self._make_snapshot(self._first, None)
        self.metrics.use_encoder_prices(settings.savings)
        self._use_pool(self._first.pool)
        self._beating = asyncio.create_task(self.pulse.run())
        self._watch_versions(settings)
        _log.info("ready, with %s", _describe_versions(self._first))

    async def _open_receipts(self, settings: GatewaySettings) -> None:
        open_database = open_learning if settings.learning.share else open_store
        store = await asyncio.to_thread(open_database, settings.receipts.url)
        self.writer = ReceiptWriter(
            store,
            wait_seconds=settings.receipts.wait_seconds,
            max_queue=settings.receipts.max_queue,
            keep_days=settings.receipts.keep_days,
            learning_days=settings.learning.keep_days,
        )
        self.recorders = Recorders(
            metrics=self.metrics,
            recent=self.recent,
            speeds=self.speeds,
            writer=self.writer,
            shared=self.shared,
        )

    def _watch_versions(self, settings: GatewaySettings) -> None:
        """Follow the versions, unless there are none or the supervisor of the workers does."""
        if self._places.registry is None or self.other_workers is not None:
            return
        watch = VersionWatch(
            self._places.registry,
            seconds=settings.routing.versions_seconds,
            served=lambda: self.live.loaded.served,
            reload=self.reload,
            on_problem=lambda problem: self.apply_shared({"versions_problem": problem}),
        )
        self._watching = asyncio.create_task(watch.run())

    def _use_pool(self, pool: Pool) -> None:
        """Let what outlives a pool know the deployments of this one."""
        self.breakers.use_pool(pool)
        self.headroom.use_pool(pool)

    def set_lam(self, lam: float, *, share: bool = True) -> None:
        """Set the trade-off of requests that give none, until the gateway ends.

        Args:
            lam: The trade-off.
            share: Whether to send it to other replicas or workers; False where it is from one.
        """
        if lam != self.lam:
            _log.warning("lam is %g from now on; it was %g", lam, self.lam)
        self.lam_set = lam
        if share and self.shared is not None:
            self.shared.set_lam(lam)
        elif share and self.other_workers is not None:
            self.other_workers.share({"lam_set": lam})

    async def reload(self, *, pinned: ServedVersions | None = None) -> LoadedGateway:
        """Load everything again for new requests; requests in flight keep the old snapshot.

        The address, receipts and traces stay the same; a warning is logged if their settings
        changed.

        Args:
            pinned: The versions to load; None for those that their state says.

        Raises:
            ConfigError: Something is invalid; nothing is changed.
        """
        async with self._reloading:
            places = replace(self._places, pinned=pinned)
            loaded = await asyncio.to_thread(load, places, environment=self._environment)
            lasting = static_changes(self._first.settings, loaded.settings)
            loaded = replace(loaded, warnings=(*loaded.warnings, *lasting))
            before = self.live
            self.live = await self._make_snapshot(loaded, before)
            loaded = self.live.loaded  # without a candidate whose encoder can't be started
            settings = loaded.settings
            self.breakers.set(
                failures=settings.failures.breaker_failures,
                seconds=settings.failures.breaker_seconds,
            )
            self._use_pool(loaded.pool)
            self.sessions.use(settings.sessions)
            self.budgets.use(_list_budgets(loaded))
            self.metrics.use_targets(loaded.pool.names)
            self.metrics.use_encoder_prices(settings.savings)
            if loaded.light.fingerprint != before.loaded.light.fingerprint:
                self.drift = _make_drift_watch(loaded)
            ending = asyncio.create_task(before.close(keep=self.live))
            self._closing.add(ending)
            ending.add_done_callback(self._closing.discard)
            for call in self.on_reload:
                call(loaded)
            for warning in loaded.warnings:
                _log.warning("%s", warning)
            _log.info("reloaded, with %s", _describe_versions(loaded))
            return loaded

    async def reload_all(self) -> LoadedGateway:
        """Reload in all workers; raises as `reload`."""
        if self.other_workers is None:
            return await self.reload()
        await self.other_workers.reload()
        return self.live.loaded

    def share(self, values: Mapping[str, Any]) -> None:
        """Set `lam_set` or `is_watched`, in all workers."""
        self.apply_shared(values)
        if self.other_workers is not None:
            self.other_workers.share(values)

    def apply_shared(self, values: Mapping[str, Any]) -> None:
        """Set what another worker or the supervisor shares."""
        self.lam_set = values.get("lam_set", self.lam_set)
        self.is_watched = values.get("is_watched", self.is_watched)
        self.missing = values.get("missing", self.missing)
        self.versions_problem = values.get("versions_problem", self.versions_problem)

    @contextmanager
    def count_in_flight(self, *, stream: bool) -> Iterator[None]:
        """Count a request as in flight, within a `with` block."""
        self.under_way += 1
        self.streams += stream
        try:
            yield
        finally:
            self.under_way -= 1
            self.streams -= stream

    def end_soon(self) -> float:
        """Stop being ready, and return for how many seconds to still accept requests.

        It is 0 if `/ready` has never been requested.
        """
        self.is_ending = True
        return self._first.settings.listen.unready_seconds if self.is_watched else 0.0

    async def close(self) -> None:
        """Close everything; queued receipts are written first."""
        if self._beating is not None:
            self._beating.cancel()
        if self._watching is not None:
            self._watching.cancel()
            await asyncio.wait([self._watching])
        if "live" in vars(self):
            await self.live.close(seconds=1.0)
        for task in list(self._closing):
            task.cancel()
            await asyncio.wait([task])
        if self.shared is not None:
            await self.shared.close()
        if "writer" in vars(self):
            left = await self.writer.close()
            if left:
                _log.error("%d receipts couldn't be written", left)
        if self.traces is not None:
            await asyncio.to_thread(self.traces.close)

    async def _make_snapshot(self, loaded: LoadedGateway, before: Snapshot | None) -> Snapshot:
        """Make a snapshot; all its parts are made before anything is replaced."""
        forwarder = Forwarder(
            loaded.pool,
            failures=loaded.settings.failures,
            breakers=self.breakers,
            passing=partial(to_client, reframed=True),
            environment=self._environment,
            headroom=self.headroom,
            keep_alive_seconds=loaded.settings.streams.keep_alive_seconds,
            watch_all=loaded.settings.routing.headroom,
        )
        keys = provider_keys(loaded.pool, self._environment)
        self._secrets |= {*keys.values(), *(secret for p in keys for secret in p.secrets)}
        self.writer.redaction = Redaction.of_keys(self._secrets)
        for hide in self.on_secrets:
            hide(self._secrets - {NO_KEY})
        keepers = ResponseOwners(loaded.pool, self.sessions)
        loaded, forecasters = await make_forecasters(loaded, self._places, before)

        def make(
            version: LoadedGateway, forecaster: AnyForecaster, candidate: Snapshot | None = None
        ) -> Snapshot:
            return Snapshot(
                version,
                forecaster=forecaster,
                forwarder=forwarder,
                decider=self._make_decider(version),
                keepers=keepers,
                baseline=loaded.baseline,
                candidate=candidate,
            )

        if loaded.candidate is None:
            return make(loaded, forecasters[0])
        return make(loaded, forecasters[0], make(loaded.candidate, forecasters[1]))

    def _make_decider(self, loaded: LoadedGateway) -> Decider:
        routing = loaded.settings.routing
        lacks_headroom = partial(_lacks_headroom, self.headroom, loaded.pool)
        return Decider(
            loaded.light,
            loaded.settings,
            sessions=self.sessions,
            budgets=self.budgets,
            breaker_open=self.breakers.is_open,
            limited=lacks_headroom if routing.headroom else None,
            speeds=None if routing.latency is None else self.speeds,
            pool=loaded.pool,
            warn=_log.warning,
        )


def _lacks_headroom(headroom: RateHeadroom, pool: Pool, target: str, tokens: int) -> bool:
    """Whether none of a target's endpoints has headroom."""
    return all(headroom.lacks(name, tokens) for name in pool.several.get(target, (target,)))


def _list_budgets(loaded: LoadedGateway) -> tuple[BudgetSettings, ...]:
    return (*loaded.settings.budgets, *key_budgets(loaded.keys or ()))


def _describe_versions(loaded: LoadedGateway) -> str:
    light = loaded.light
    router = f"the router {light.fingerprint}" if light.fingerprint else "no router yet"
    return router if loaded.version is None else f"{loaded.served}: {router}"


def _make_drift_watch(loaded: LoadedGateway) -> DriftWatch:
    shares = loaded.light.reference_shares
    values = [] if shares is None else shares.tolist()
    return DriftWatch([f"feature {n}" for n in range(1, 1 + len(values))], shares=values)
