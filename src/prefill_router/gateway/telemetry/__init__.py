"""Telemetry: metrics, drift, logs, traces, health."""

from prefill_router.gateway.telemetry.drift import Drift, DriftWatch, stability_index
from prefill_router.gateway.telemetry.fallbacks import FallbackShare, FallbackWatch
from prefill_router.gateway.telemetry.health import (
    Check,
    Finding,
    Health,
    Pulse,
    Report,
    check_encoder,
    check_keys,
    check_process,
    check_receipts,
    check_targets,
)
from prefill_router.gateway.telemetry.logs import Log, log_request, logging_to, with_fields
from prefill_router.gateway.telemetry.metrics import Metrics
from prefill_router.gateway.telemetry.readings import BudgetLeft, Readings
from prefill_router.gateway.telemetry.traces import Trace, Traces

__all__ = [
    "BudgetLeft",
    "Check",
    "Drift",
    "DriftWatch",
    "FallbackShare",
    "FallbackWatch",
    "Finding",
    "Health",
    "Log",
    "Metrics",
    "Pulse",
    "Readings",
    "Report",
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
