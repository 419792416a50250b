"""Telemetry: metrics, drift, logs, traces, health."""

from prefill_router.lazy_imports import optional_imports

with optional_imports("the gateway"):
    from prefill_router.gateway.telemetry.drift import Drift, DriftWatch, stability_index
    from prefill_router.gateway.telemetry.health import (
        EventLoopLag,
        FallbackShare,
        FallbackWatch,
        Health,
        HealthCheck,
        HealthFinding,
        HealthReport,
        check_encoder,
        check_keys,
        check_process,
        check_receipts,
        check_targets,
    )
    from prefill_router.gateway.telemetry.logs import (
        LogWriter,
        log_request,
        logging_to,
        with_fields,
    )
    from prefill_router.gateway.telemetry.metrics import BudgetLeft, GaugeReadings, Metrics
    from prefill_router.gateway.telemetry.traces import Trace, Traces

__all__ = [
    "BudgetLeft",
    "Drift",
    "DriftWatch",
    "EventLoopLag",
    "FallbackShare",
    "FallbackWatch",
    "GaugeReadings",
    "Health",
    "HealthCheck",
    "HealthFinding",
    "HealthReport",
    "LogWriter",
    "Metrics",
    "Trace",
    "Traces",
    "check_encoder",
    "check_keys",
    "check_process",
    "check_receipts",
    "check_targets",
    "log_request",
    "logging_to",
    "stability_index",
    "with_fields",
]
