"""What `/health` and `/ready` look at."""

from prefill_router.gateway.serving.gateway import Gateway
from prefill_router.gateway.serving.readings import breakers_of
from prefill_router.gateway.telemetry import (
    Health,
    check_encoder,
    check_process,
    check_receipts,
    check_targets,
)


def soundness(gateway: Gateway) -> Health:
    """Whether the gateway is alive, and ready."""
    return Health(
        alive={"event_loop": gateway.pulse.check},
        ready={
            "process": lambda: check_process(ending=gateway.is_ending),
            "event_loop": gateway.pulse.check,
            "encoder": lambda: check_encoder(
                gateway.live.forecaster.state, fallback=gateway.settings.routing.fallback
            ),
            "forecasts": lambda: gateway.fallbacks.check(),
            "receipts": lambda: check_receipts(
                healthy=gateway.writer.healthy, lost=gateway.writer.stats().lost
            ),
            "targets": lambda: check_targets(breakers_of(gateway)),
        },
    )
