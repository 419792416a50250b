"""What `/v1/models` says: the names that route, and the targets with what they can do."""

from typing import Any

from prefill_router.gateway.guarding import ClientKey
from prefill_router.gateway.protocol import ROUTING_NAMES
from prefill_router.gateway.serving.gateway import Gateway
from prefill_router.gateway.serving.live import Live
from prefill_router.targets import Target


def models_of(gateway: Gateway, key: ClientKey | None) -> list[dict[str, Any]]:
    """The rows that a client sees: of the targets, those that its key may use."""
    live = gateway.live
    allowed = None if key is None else key.targets
    names = dict.fromkeys((*ROUTING_NAMES, *live.settings.routing.names))
    targets_come_first = (name for name in names if name not in live.loaded.pool.names)
    routing = [_model(name, "prefill-router", gateway.began) for name in targets_come_first]
    targets = [
        {
            **_model(t.name, live.loaded.pool.provider_of(t.name).name, gateway.began),
            **_can(live, t),
        }
        for t in live.loaded.pool
        if allowed is None or t.name in allowed
    ]
    return [*routing, *targets]


def _model(name: str, owner: str, created: float) -> dict[str, Any]:
    return {"id": name, "object": "model", "created": int(created), "owned_by": owner}


def _can(live: Live, target: Target) -> dict[str, Any]:
    return {
        "context_length": target.context_tokens,
        "accepts": list(target.accepts),
        "serves": list(live.loaded.pool.serves(target.name)),
        "input_price": target.input_price,
        "output_price": target.output_price,
    }
