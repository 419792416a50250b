"""Readings of a running gateway, for gauges and health checks."""

import time
from collections.abc import Mapping, Sequence

from prefill_router.endpoints import BreakerState
from prefill_router_gateway.runtime.gateway import Gateway
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


def breakers_of(gateway: Gateway) -> dict[str, BreakerState]:
    """The state of every target's breaker."""
    return {name: gateway.breakers.state(name) for name in gateway.live.loaded.pool.names}


def _deployment_breakers(gateway: Gateway) -> dict[str, BreakerState]:
    several = gateway.live.loaded.pool.several
    return {name: gateway.breakers.state(name) for names in several.values() for name in names}


def read_gauges(gateway: Gateway) -> GaugeReadings:
    """What the gauges show now; the gateway has started."""
    forecaster = gateway.live.forecaster
    return GaugeReadings(
        in_flight=gateway.under_way,
        streams=gateway.streams,
        held_bytes=gateway.body_budget.held_bytes,
        queue=forecaster.stats().waiting,
        fallback_share=gateway.fallbacks.report().share,
        lam=gateway.lam_left,
        breakers=breakers_of(gateway),
        deployment_breakers=_deployment_breakers(gateway),
        forecasts=_forecasts(gateway),
        receipts=_receipts(gateway),
        receipts_waiting=gateway.writer.stats().waiting,
        budgets=_budgets_left(gateway),
        shared=_shared(gateway),
        learning=gateway.savings.learning(),
        drift=gateway.drift.report(),
        router=_router(gateway),
        versions=_versions(gateway),
    )


def _forecasts(gateway: Gateway) -> Mapping[str, float]:
    stats = gateway.live.forecaster.stats()
    return {
        "batches": stats.batches,
        "encoded": stats.encoded,
        "cache_hits": stats.cache_hits,
        "shared": stats.shared,
        "restarts": stats.restarts,
        "busy_seconds": stats.busy_seconds,
    }


def _receipts(gateway: Gateway) -> Mapping[str, float]:
    stats = gateway.writer.stats()
    return {
        "kept": stats.written,
        "lost": stats.lost,
        "deleted": stats.deleted,
        "failures": stats.failures,
        "samples": stats.samples,
        "samples_left_out": stats.samples_left_out,
    }


def _budgets_left(gateway: Gateway) -> Sequence[BudgetLeft]:
    return [
        BudgetLeft(
            key=state.budget.key or "",
            per=state.budget.per,
            dollars=state.budget.dollars,
            left=state.left,
        )
        for state in gateway.budgets.states(time.time())
    ]


def _shared(gateway: Gateway) -> Mapping[str, float]:
    shared = gateway.shared
    if shared is None:
        return {}
    return {"down": not shared.is_in_step, "replicas": shared.replicas, "losses": shared.failures}


def _router(gateway: Gateway) -> Mapping[str, str]:
    light = gateway.live.loaded.light
    return {
        "fingerprint": light.fingerprint or "none",
        "policy": light.policy.kind,
        "encoder": ", ".join(light.encoders),
    }


def _versions(gateway: Gateway) -> Mapping[str, float]:
    """The share of conversations of each version; without one the name is empty."""
    served = gateway.live.loaded.served
    shares = {served.current or "": 1 - served.share}
    return shares if served.candidate is None else {**shares, served.candidate: served.share}


def _encoder_state(gateway: Gateway) -> str:
    """The state of the encoder, or of the candidate's if that one isn't ready."""
    states = [snapshot.forecaster.state for snapshot in gateway.live.each]
    return next((state for state in states if state not in ("ready", "absent")), states[0])


def health_checks(gateway: Gateway) -> Health:
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
