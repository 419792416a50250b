"""Receipts for tests of metrics, logs and traces."""

from dataclasses import replace
from typing import Any

from prefill_router.endpoints import Usage
from prefill_router_gateway.records import (
    AttemptEnd,
    Receipt,
    RequestOutcome,
    RoutingDecision,
    TargetAttempt,
)
from prefill_router_gateway.telemetry import GaugeReadings, Metrics, render_metrics

AT = 1_780_000_000.0
CHOICE = RoutingDecision(
    id="pr_0123456789abcdef0123456789abcdef",
    order=("small", "large"),
    reason="policy",
    lam=0.5,
    lam_asked=0.5,
    correctness={"small": 0.6, "large": 0.9},
    estimated_cost={"small": 0.001, "large": 0.01},
    session="a-conversation",
)
USAGE = Usage(input_tokens=100, cached_tokens=40, output_tokens=50, reasoning_tokens=0)


def attempt(target: str, end: AttemptEnd = "answered", seconds: float = 1.0) -> TargetAttempt:
    return TargetAttempt(
        target=target, end=end, status=200 if end == "answered" else 503, seconds=seconds
    )


OUTCOME = RequestOutcome(
    kind="answered",
    target="small",
    status=200,
    attempts=(attempt("small"),),
    usage=USAGE,
    response_id="chatcmpl-1",
    first_byte_seconds=0.25,
    total_seconds=2.0,
)
RECEIPT = Receipt(
    choice=CHOICE,
    outcome=OUTCOME,
    at=AT,
    router="abc123",
    policy="lambda",
    endpoint="chat",
    requested="auto",
    stream=True,
    key="alice",
    scored="last_user",
    cost=0.002,
    cost_is_estimated=False,
    decision_seconds=0.03,
    forecast_seconds=0.02,
)


def receipt(
    *, choice: dict[str, Any] | None = None, outcome: dict[str, Any] | None = None
) -> Receipt:
    return replace(
        RECEIPT,
        choice=replace(CHOICE, **(choice or {})),
        outcome=replace(OUTCOME, **(outcome or {})),
    )


def render_text(
    metrics: Metrics, readings: GaugeReadings | None = None, *, accept: str = ""
) -> str:
    """The text for Prometheus, with gauges of these readings."""
    text, _ = render_metrics(metrics.export(readings or GaugeReadings()), accept)
    return text.decode()
