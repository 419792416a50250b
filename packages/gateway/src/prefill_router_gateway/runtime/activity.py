"""Readings of a running gateway: for gauges, health checks, and reports of savings."""

import asyncio
import threading
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final, final

from prefill_router.endpoints import BreakerState
from prefill_router.errors import StoreError
from prefill_router_gateway.receipts import (
    RequestSaving,
    Savings,
    read_costs,
    request_saving,
    savings_since,
    since_time,
)
from prefill_router_gateway.records import Receipt
from prefill_router_gateway.telemetry import (
    BudgetLeft,
    GaugeReadings,
    Health,
    HealthCheck,
    check_encoder,
    check_forecasts,
    check_process,
    check_receipts,
    check_shared,
    check_targets,
    check_versions,
    check_workers,
)

if TYPE_CHECKING:
    from prefill_router_gateway.runtime.gateway import Gateway


def breakers_of(gateway: "Gateway") -> dict[str, BreakerState]:
    """The state of every target's breaker."""
    return {name: gateway.breakers.state(name) for name in gateway.live.loaded.pool.names}


def _deployment_breakers(gateway: "Gateway") -> dict[str, BreakerState]:
    several = gateway.live.loaded.pool.several
    return {name: gateway.breakers.state(name) for names in several.values() for name in names}


def gauge_readings(gateway: "Gateway") -> GaugeReadings:
    """The readings for gauges; they work once the gateway has started."""
    return GaugeReadings(
        gateway=gateway,
        in_flight=lambda: gateway.under_way,
        streams=lambda: gateway.streams,
        held_bytes=lambda: gateway.body_budget.held,
        queue=lambda: gateway.live.forecaster.stats().waiting,
        fallback_share=lambda: gateway.fallbacks.report().share,
        lam=lambda: gateway.lam_left,
        breakers=lambda: breakers_of(gateway),
        deployment_breakers=lambda: _deployment_breakers(gateway),
        forecasts=lambda: _forecasts(gateway),
        receipts=lambda: _receipts(gateway),
        receipts_waiting=lambda: gateway.writer.stats().waiting,
        budgets=lambda: _budgets_left(gateway),
        shared=lambda: _shared(gateway),
        learning=lambda: gateway.savings.learning(),
        drift=lambda: gateway.drift.report(),
        router=lambda: _router(gateway),
        versions=lambda: _versions(gateway),
    )


def _forecasts(gateway: "Gateway") -> Mapping[str, float]:
    stats = gateway.live.forecaster.stats()
    return {
        "batches": stats.batches,
        "encoded": stats.encoded,
        "cache_hits": stats.cache_hits,
        "shared": stats.shared,
        "restarts": stats.restarts,
        "busy_seconds": stats.busy_seconds,
    }


def _receipts(gateway: "Gateway") -> Mapping[str, float]:
    stats = gateway.writer.stats()
    return {
        "kept": stats.kept,
        "lost": stats.lost,
        "deleted": stats.deleted,
        "failures": stats.failures,
        "samples": stats.samples,
        "samples_left_out": stats.samples_left_out,
    }


def _budgets_left(gateway: "Gateway") -> Sequence[BudgetLeft]:
    return [
        BudgetLeft(
            key=state.budget.key or "",
            per=state.budget.per,
            dollars=state.budget.dollars,
            left=state.left,
        )
        for state in gateway.budgets.states(time.time())
    ]


def _shared(gateway: "Gateway") -> Mapping[str, float]:
    shared = gateway.shared
    if shared is None:
        return {}
    return {"down": not shared.is_in_step, "replicas": shared.replicas, "losses": shared.failures}


def _router(gateway: "Gateway") -> Mapping[str, str]:
    light = gateway.live.loaded.light
    return {
        "fingerprint": light.fingerprint or "none",
        "policy": light.policy.kind,
        "encoder": ", ".join(light.encoders),
    }


def _versions(gateway: "Gateway") -> Mapping[str, float]:
    """The share of conversations of each version; without one the name is empty."""
    served = gateway.live.loaded.served
    shares = {served.current or "": 1 - served.share}
    return shares if served.candidate is None else {**shares, served.candidate: served.share}


def _encoder_state(gateway: "Gateway") -> str:
    """The state of the encoder, or of the candidate's if that one isn't ready."""
    states = [snapshot.forecaster.state for snapshot in gateway.live.each]
    return next((state for state in states if state not in ("ready", "absent")), states[0])


def health_checks(gateway: "Gateway") -> Health:
    """The checks of `/health` and `/ready`."""
    shared = gateway.shared
    further: dict[str, HealthCheck] = {}
    if shared is not None:
        further["shared"] = lambda: check_shared(
            is_in_step=shared.is_in_step, is_out_of_lease=shared.is_out_of_lease
        )
    if gateway.other_workers is not None:
        further["workers"] = lambda: check_workers(gateway.missing)
    if gateway.has_versions:
        further["versions"] = lambda: check_versions(
            serving=str(gateway.live.loaded.served), is_behind=bool(gateway.versions_problem)
        )
    return Health(
        alive={"event_loop": gateway.pulse.check},
        ready={
            "process": lambda: check_process(ending=gateway.is_ending),
            "event_loop": gateway.pulse.check,
            "encoder": lambda: check_encoder(
                _encoder_state(gateway), fallback=gateway.settings.routing.fallback
            ),
            "forecasts": lambda: check_forecasts(gateway.fallbacks.report()),
            "receipts": lambda: check_receipts(
                healthy=gateway.writer.healthy, lost=gateway.writer.stats().lost
            ),
            "targets": lambda: check_targets(breakers_of(gateway)),
            **further,
        },
    )


_LEAST_SECONDS, _TIMES, _MOST = 2.0, 20.0, 32
_LEARNING_SECONDS = 60.0
WEEK: Final = "7d"


@final
class SavingsReports:
    """Computes savings in a thread, one at a time, and keeps what took long for longer.

    Args:
        gateway: The gateway.
    """

    def __init__(self, gateway: "Gateway") -> None:
        self._gateway = gateway
        self._lock = asyncio.Lock()
        self._made: dict[tuple[str, str | None], tuple[float, Savings]] = {}
        self._learning: dict[str, float] = {}
        self._learning_at, self._reading = -_LEARNING_SECONDS, False

    async def since(self, since: str = WEEK, *, baseline: str | None = None) -> Savings:
        """The savings since a time, at most as old as 20 times what computing them took.

        Args:
            since: See `since_time`.
            baseline: The target to compare all with; None for the baseline of each receipt.

        Raises:
            DataError: As `since_time` and `savings_since`.
            StoreError: As `savings_since`.
        """
        start, settings = since_time(since), self._gateway.settings.savings
        async with self._lock:
            made = self._made.get((since, baseline))
            if made is not None and time.monotonic() < made[0]:
                return made[1]
            began = time.monotonic()
            url = self._gateway.readable_receipts()
            found = await asyncio.to_thread(
                savings_since, url, settings, since=start, named=baseline
            )
            now = time.monotonic()
            if len(self._made) >= _MOST:
                self._made.clear()
            until = now + max(_LEAST_SECONDS, _TIMES * (now - began))
            self._made[since, baseline] = until, found
            return found

    async def of_request(self, receipt: Receipt) -> RequestSaving | None:
        """What a request would have cost at the baseline; None if that isn't known."""
        try:
            url = self._gateway.readable_receipts()
            return await asyncio.to_thread(request_saving, url, receipt)
        except StoreError:
            return None

    def use(self) -> None:
        """Count for the metrics with the current settings."""
        settings = self._gateway.settings.savings
        self._gateway.metrics.use_encoder_prices(
            second=settings.encoder_second_dollars, thousand=settings.encoder_thousand_dollars
        )

    def learning(self) -> dict[str, float]:
        """Dollars spent on scores and side answers, by kind, as last read.

        A call reads them again in the background once a minute.
        """
        if not self._reading and time.monotonic() - self._learning_at > _LEARNING_SECONDS:
            self._reading = True
            threading.Thread(target=self._read_learning, daemon=True).start()
        return self._learning

    def _read_learning(self) -> None:
        self._learning_at = time.monotonic()
        try:
            found = read_costs(self._gateway.readable_receipts())
            self._learning = {one.kind: one.dollars or 0.0 for one in found}
        except StoreError:
            return
        finally:
            self._reading = False
