"""The list of models, in the shape of the protocol that asks for it.

Both shapes have the names that route and the targets that the client's key may use. A name that
routes has the smallest context window of the targets among which the router chooses, so that an
agent shortens its conversation before any of them refuses it.
"""

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

from fastapi import Request

from prefill_router.targets import Target
from prefill_router_gateway.api.requested_targets import allowed_targets
from prefill_router_gateway.errors import RefusalError
from prefill_router_gateway.guard import KEY
from prefill_router_gateway.protocol import ANTHROPIC_VERSION, ROUTING_NAMES
from prefill_router_gateway.runtime import Gateway, Snapshot

_OWNER = "prefill-router"


def list_models(gateway: Gateway, request: Request) -> dict[str, Any]:
    """The list of models: OpenAI's, or one page of Anthropic's.

    Anthropic's shape is that of `GET /v1/models` in its API reference.
    """
    rows = list(_models_of(gateway, request))
    if not _speaks_anthropic(request):
        return {"object": "list", "data": rows}
    return {
        "data": [_in_anthropic_shape(row) for row in rows],
        "has_more": False,
        "first_id": rows[0]["id"],
        "last_id": rows[-1]["id"],
    }


def describe_model(gateway: Gateway, request: Request, name: str) -> dict[str, Any]:
    """One model of the list.

    Raises:
        RefusalError: There is none of this name, or the client's key may not use it.
    """
    for row in _models_of(gateway, request):
        if row["id"] == name:
            return _in_anthropic_shape(row) if _speaks_anthropic(request) else row
    raise RefusalError("no such model; see /v1/models", status=404, code="model_not_found")


def _speaks_anthropic(request: Request) -> bool:
    return ANTHROPIC_VERSION.decode() in request.headers


def _models_of(gateway: Gateway, request: Request) -> Iterator[dict[str, Any]]:
    live, key = gateway.live, request.scope.get(KEY)
    allowed = allowed_targets(key, live.loaded.pool)
    targets = [t for t in live.loaded.pool if allowed is None or t.name in allowed]
    choices = [t.context_tokens for t in targets if t.name in live.loaded.light.pool.names]
    window = min((tokens for tokens in choices if tokens is not None), default=None)
    for name in dict.fromkeys((*ROUTING_NAMES, *live.settings.routing.names)):
        if name not in live.loaded.pool.names:
            yield {**_model(name, _OWNER, gateway.began), "context_length": window}
    for name, own in live.loaded.pool.models.items():
        efforts = [t for t in targets if t.name in own]
        if efforts:
            yield _describe(gateway, live, efforts[0], name)
    for target in targets:
        yield _describe(gateway, live, target, target.name)


def _describe(gateway: Gateway, live: Snapshot, target: Target, name: str) -> dict[str, Any]:
    owner = live.loaded.pool.provider_of(target.name).name
    return {**_model(name, owner, gateway.began), **_capabilities(live, target)}


def _model(name: str, owner: str, created: float) -> dict[str, Any]:
    return {"id": name, "object": "model", "created": int(created), "owned_by": owner}


def _capabilities(live: Snapshot, target: Target) -> dict[str, Any]:
    return {
        "context_length": target.context_tokens,
        "accepts": list(target.accepts),
        "serves": list(live.loaded.pool.serves(target.name)),
        "input_price": target.input_price,
        "output_price": target.output_price,
    }


def _in_anthropic_shape(row: dict[str, Any]) -> dict[str, Any]:
    created = datetime.fromtimestamp(row["created"], UTC)
    return {
        "type": "model",
        "id": row["id"],
        "display_name": row["id"],
        "created_at": created.isoformat().replace("+00:00", "Z"),
        "lifecycle": "active",
        "max_input_tokens": row["context_length"],
    }
