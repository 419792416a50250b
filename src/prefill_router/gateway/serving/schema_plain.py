"""What the OpenAPI document says of plain calls."""

from typing import Any

from prefill_router.gateway.serving.errands import COUNTED, STORED
from prefill_router.gateway.serving.schema import ERROR, body_schema, wishes
from prefill_router.gateway.words import HEADER, Endpoint

_SUMMARIES = {
    "retrieve": "A stored response, by the target that keeps it",
    "delete": "Deletes a stored response, at the target that keeps it",
    "input_items": "What a stored response was asked, by the target that keeps it",
    "cancel": "Cancels a response in the background, at the target that keeps it",
}
_TEXT: dict[str, Any] = {"type": "string"}
_ANY: dict[str, Any] = {"type": "object"}
_QUERIES: dict[str, tuple[tuple[str, dict[str, Any]], ...]] = {
    "retrieve": (("stream", {"type": "boolean"}), ("starting_after", {"type": "integer"})),
    "input_items": (("after", _TEXT), ("limit", {"type": "integer"}), ("order", _TEXT)),
}
"""What clients may add to an address; other words go on to the target too."""
_TARGET = {f"{HEADER}target": {"description": "who answers", "schema": _TEXT}}


def plain_paths() -> dict[str, Any]:
    """The paths of all plain calls."""
    about = {
        f"/v1/responses/{{id}}{below}": {
            method.lower(): _stored(name) for method, name in names.items()
        }
        for below, names in STORED.items()
    }
    counts = {path: {"post": _count(endpoint)} for path, (endpoint, _) in COUNTED.items()}
    return {**about, **counts}


def _stored(name: str) -> dict[str, Any]:
    named = [
        {"name": "id", "in": "path", "required": True, "schema": _TEXT},
        *(_parameter(query, "query", schema) for query, schema in _QUERIES.get(name, ())),
        *(_parameter(f"{HEADER}{wish}", "header", _TEXT) for wish in ("allow", "exclude")),
    ]
    body = {"required": False, "content": {"application/json": {"schema": _ANY}}}
    return {
        "operationId": f"{name} response",
        "summary": _SUMMARIES[name],
        "tags": ["forwarded"],
        "parameters": named,
        **({"requestBody": body} if name == "cancel" else {}),
        "responses": _replies(stream=name == "retrieve"),
    }


def _count(endpoint: Endpoint) -> dict[str, Any]:
    schema = body_schema(endpoint)
    needed = [field for field in schema["required"] if field != "max_tokens"]
    content = {"application/json": {"schema": {**schema, "required": needed}}}
    return {
        "operationId": f"count {endpoint}",
        "summary": "Counts a request's tokens, by the target that would answer it",
        "tags": ["forwarded"],
        "parameters": wishes(),
        "requestBody": {"required": True, "content": content},
        "responses": _replies(stream=False),
    }


def _parameter(name: str, place: str, schema: dict[str, Any]) -> dict[str, Any]:
    return {"name": name, "in": place, "required": False, "schema": schema}


def _replies(*, stream: bool) -> dict[str, Any]:
    content: dict[str, Any] = {"application/json": {"schema": _ANY}}
    if stream:
        content["text/event-stream"] = {"schema": _TEXT}
    told = "The target's answer, byte for byte"
    return {
        "200": {"description": told, "headers": _TARGET, "content": content},
        "default": ERROR,
    }
