"""What records the end of a request, and the details of a router that its receipt has."""

from typing import Any, Protocol, runtime_checkable

from prefill_router.gateway.decide import (
    RequestCosts,
    Sessions,
    TargetSpeeds,
)
from prefill_router.gateway.receipts import (
    AffinityRule,
    ReceiptWriter,
    affinity_rule_details,
    scale_details,
    version_details,
)
from prefill_router.gateway.runtime.configuration import LoadedGateway
from prefill_router.gateway.shared import SharedState
from prefill_router.gateway.telemetry import Metrics, RecentRequests


@runtime_checkable
class RequestRecorder(Protocol):
    """The parts of a gateway that record the end of a request and survive reloads.

    Attributes:
        metrics: The metrics for Prometheus.
        recent: The requests that ended most recently.
        sessions: What is remembered of conversations.
        speeds: How long the targets take.
        writer: Writes receipts.
        shared: What is shared with other replicas; None for a gateway by itself.
    """

    metrics: Metrics
    recent: RecentRequests
    sessions: Sessions
    speeds: TargetSpeeds
    writer: ReceiptWriter
    shared: SharedState | None


def receipt_details(loaded: LoadedGateway) -> tuple[dict[str, Any], dict[str, Any]]:
    """The details of every receipt, and of receipts with a session.

    They are the cost scale, the policy and the version; and also the session settings.
    """
    light = loaded.light
    details = {
        **scale_details(light.costs.scale, light.policy),
        **version_details(loaded.version, loaded.share, loaded.step),
    }
    return details, {**details, **affinity_rule_details(_keeping(loaded))}


def _keeping(loaded: LoadedGateway) -> AffinityRule:
    costs, sessions = RequestCosts(loaded.light.costs), loaded.settings.sessions
    names = loaded.light.pool.names
    return AffinityRule(
        seconds=sessions.seconds,
        cache_seconds=sessions.cache_seconds,
        margin=sessions.margin,
        ratio=dict(zip(names, costs.ratio.tolist(), strict=True)),
        saved=dict(zip(names, costs.saved.tolist(), strict=True)),
    )
