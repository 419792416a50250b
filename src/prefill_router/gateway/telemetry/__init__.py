"""Telemetry: metrics, drift, logs, traces, health."""

from prefill_router.gateway.telemetry.health import (
    EventLoopLag,
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
from prefill_router.gateway.telemetry.logs import LogWriter, log_request, logging_to, with_fields
from prefill_router.gateway.telemetry.metrics import (
    GAUGES,
    BudgetLeft,
    Gauge,
    GaugeReadings,
    Metrics,
)
from prefill_router.gateway.telemetry.recent import (
    Drift,
    DriftWatch,
    FallbackShare,
    FallbackWatch,
    RecentRequests,
    stability_index,
)
from prefill_router.gateway.telemetry.traces import Trace, Traces

__all__ = [
    "GAUGES",
    "BudgetLeft",
    "Drift",
    "DriftWatch",
    "EventLoopLag",
    "FallbackShare",
    "FallbackWatch",
    "Gauge",
    "GaugeReadings",
    "Health",
    "HealthCheck",
    "HealthFinding",
    "HealthReport",
    "LogWriter",
    "Metrics",
    "RecentRequests",
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
