"""What the OpenAPI document says of the forwarding endpoints: their bodies and replies.

Only what the gateway itself reads is described; every other field goes on to the target as it is.
"""

from typing import Any

from prefill_router.gateway.words import HEADER, SESSION_HEADER, Endpoint

PATHS: dict[Endpoint, str] = {
    "chat": "/v1/chat/completions",
    "completions": "/v1/completions",
    "responses": "/v1/responses",
    "embeddings": "/v1/embeddings",
    "messages": "/v1/messages",
}
"""The path of each call."""

_SUMMARIES: dict[Endpoint, str] = {
    "chat": "Chat completion, by the target that the router picks",
    "completions": "Text completion, by the target that the router picks",
    "responses": "Response, by the target that the router picks",
    "embeddings": "Embeddings, by the target that is named",
    "messages": "Message in Anthropic's protocol, by a target that speaks it",
}
_TEXT: dict[str, Any] = {"type": "string"}
_PARTS: dict[str, Any] = {
    "anyOf": [_TEXT, {"type": "array", "items": {"type": "object"}}, {"type": "null"}]
}
_TURN: dict[str, Any] = {
    "type": "object",
    "required": ["role"],
    "properties": {"role": _TEXT, "content": _PARTS},
}
_TURNS: dict[str, Any] = {"type": "array", "minItems": 1, "items": _TURN}
_COUNT: dict[str, Any] = {"type": "integer", "minimum": 1}
_COMMON: dict[str, Any] = {
    "model": {"type": "string", "examples": ["auto", "prefill-router:0.7"]},
    "stream": {"type": "boolean"},
}
_BODIES: dict[Endpoint, dict[str, Any]] = {
    "chat": {
        "required": ["model", "messages"],
        "properties": {
            **_COMMON,
            "messages": _TURNS,
            "max_tokens": _COUNT,
            "max_completion_tokens": _COUNT,
            "tools": {"type": "array", "items": {"type": "object"}},
            "response_format": {"type": "object"},
            "stream_options": {
                "type": "object",
                "properties": {"include_usage": {"type": "boolean"}},
            },
        },
    },
    "completions": {
        "required": ["model", "prompt"],
        "properties": {
            **_COMMON,
            "prompt": {"anyOf": [_TEXT, {"type": "array", "items": _TEXT, "minItems": 1}]},
            "max_tokens": _COUNT,
        },
    },
    "responses": {
        "required": ["model", "input"],
        "properties": {
            **_COMMON,
            "input": {"anyOf": [_TEXT, {"type": "array", "items": {"type": "object"}}]},
            "instructions": {"anyOf": [_TEXT, {"type": "null"}]},
            "max_output_tokens": _COUNT,
            "tools": {"type": "array", "items": {"type": "object"}},
            "previous_response_id": {"anyOf": [_TEXT, {"type": "null"}]},
        },
    },
    "embeddings": {
        "required": ["model", "input"],
        "properties": {
            "model": _TEXT,
            "input": {"anyOf": [_TEXT, {"type": "array", "items": _TEXT, "minItems": 1}]},
        },
    },
    "messages": {
        "required": ["model", "messages", "max_tokens"],
        "properties": {
            **_COMMON,
            "messages": _TURNS,
            "system": _PARTS,
            "max_tokens": _COUNT,
            "tools": {"type": "array", "items": {"type": "object"}},
        },
    },
}
_WISHES = {
    f"{HEADER}lam": "the trade-off, from 0, cheapest, to 1, most probably correct",
    f"{HEADER}max-cost": "targets whose estimated cost is above it don't answer, US dollars",
    f"{HEADER}allow": "targets that may answer, between commas",
    f"{HEADER}exclude": "targets that must not answer, between commas",
    f"{HEADER}scored": "what the encoder reads of the request",
    SESSION_HEADER: "names the conversation",
}
ERROR: dict[str, Any] = {
    "description": "An error, in the shape of the protocol that was asked",
    "content": {"application/json": {"schema": {"type": "object", "required": ["error"]}}},
}
"""The reply to what can't be answered."""


def operation(endpoint: Endpoint) -> dict[str, Any]:
    """The OpenAPI operation of a forwarding endpoint."""
    return {
        "operationId": endpoint,
        "summary": _SUMMARIES[endpoint],
        "tags": ["forwarded"],
        "parameters": [
            {"name": name, "in": "header", "required": False, "schema": _TEXT, "description": told}
            for name, told in _WISHES.items()
        ],
        "requestBody": {
            "required": True,
            "content": {"application/json": {"schema": body_schema(endpoint)}},
        },
        "responses": {
            "200": {
                "description": "The target's answer, byte for byte",
                "content": {
                    "application/json": {"schema": {"type": "object"}},
                    "text/event-stream": {"schema": _TEXT},
                },
            },
            "default": ERROR,
        },
    }


def body_schema(endpoint: Endpoint) -> dict[str, Any]:
    """The JSON schema of a request's body; fields that aren't named are allowed."""
    return {"type": "object", **_BODIES[endpoint], "additionalProperties": True}
