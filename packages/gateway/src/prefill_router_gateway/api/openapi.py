"""The OpenAPI descriptions of the routed endpoints, the passthrough calls and the page's API.

Only the fields that the gateway itself reads are described; every other field is forwarded to the
target unchanged.
"""

from typing import Any

from prefill_router.targets import Endpoint
from prefill_router_gateway.api.passthrough_routes import COUNTED, STORED
from prefill_router_gateway.records import HEADER, SESSION_HEADER

PATHS: dict[Endpoint, str] = {
    "chat": "/v1/chat/completions",
    "completions": "/v1/completions",
    "responses": "/v1/responses",
    "embeddings": "/v1/embeddings",
    "messages": "/v1/messages",
}
"""The path of each endpoint."""
COMPACT = "/compact"
"""What follows the path of Responses where a conversation is to be made shorter."""

_SUMMARIES: dict[Endpoint, str] = {
    "chat": "Chat completion, by the target that the router chooses",
    "completions": "Text completion, by the target that the router chooses",
    "responses": "Response, by the target that the router chooses",
    "embeddings": "Embeddings, by the named target",
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
_PREFERENCES = {
    f"{HEADER}lam": "the trade-off, from 0, cheapest, to 1, most probably correct",
    f"{HEADER}max-cost": "the most US dollars that an answer may cost in nine cases of ten",
    f"{HEADER}allow": "targets that may answer, separated by commas",
    f"{HEADER}exclude": "targets that must not answer, separated by commas",
    f"{HEADER}scored": "the part of the request that the encoder reads",
    f"{HEADER}learn": "whether it may be kept to learn from: yes or no",
    SESSION_HEADER: "the name of the conversation",
}
_OWN = {
    "target": "the target that answers; not in a stream that begins while targets are silent",
    "decision-id": "the decision's id, for explain and feedback",
    "reason": "why this target was chosen",
    "lam": "the trade-off, after budgets",
    "probability": "predicted probability of a correct answer",
    "estimated-cost": "estimated cost in US dollars",
    "decision-ms": "time that the decision took, in milliseconds",
    "retries": "failed calls before the one that was answered",
    "fallback": "why there was no forecast",
    "translated": "chat, where a target that serves no messages was asked by a chat",
    "asked": "what OpenRouter's routing fields in the body asked for, as JSON",
}
HEADERS: dict[str, Any] = {
    f"{HEADER}{name}": {"description": meaning, "schema": _TEXT} for name, meaning in _OWN.items()
}
"""The response headers that the gateway adds, each where its value is known."""
ERROR: dict[str, Any] = {
    "description": "An error, in the format of the protocol that was called",
    "content": {"application/json": {"schema": {"type": "object", "required": ["error"]}}},
}
"""The response to a request that can't be answered."""


def preference_headers() -> list[dict[str, Any]]:
    """The header parameters of every routed request."""
    return [
        {"name": name, "in": "header", "required": False, "schema": _TEXT, "description": meaning}
        for name, meaning in _PREFERENCES.items()
    ]


def page_paths() -> dict[str, Any]:
    """The paths of the page's API."""
    lam = {"type": "number", "minimum": 0, "maximum": 1}
    parameters_of = {
        "overview": [],
        "timeline": [],
        "decisions": [
            _parameter("limit", "query", {"type": "integer", "minimum": 1}),
            *(_parameter(name, "query", _TEXT) for name in ("after", "outcome", "id")),
        ],
        "decisions/{id}": [{"name": "id", "in": "path", "required": True, "schema": _TEXT}],
        "spend": [],
        "savings": [],
        "versions": [],
        "curve": [],
        "whatif": [{**_parameter("lam", "query", lam), "required": True}],
        "targets": [],
        "drift": [],
    }
    body = {"type": "object", "required": ["lam"], "properties": {"lam": lam}}
    paths = {
        f"/page/api/{path}": {"get": _page_operation(path, {"parameters": parameters})}
        for path, parameters in parameters_of.items()
    }
    content = {"application/json": {"schema": {**body, "additionalProperties": False}}}
    set_lam = _page_operation("lam", {"requestBody": {"required": True, "content": content}})
    return {**paths, "/page/api/lam": {"post": set_lam}}


def _page_operation(path: str, fields: dict[str, Any]) -> dict[str, Any]:
    good = {"description": "What the page shows", "content": {"application/json": {"schema": {}}}}
    return {
        "operationId": f"page {path}",
        "summary": f"The page's {path.split('/')[0]}",
        "tags": ["page"],
        **fields,
        "responses": {"200": good, "default": ERROR},
    }


def operation(endpoint: Endpoint) -> dict[str, Any]:
    """The OpenAPI operation of a forwarding endpoint."""
    return {
        "operationId": endpoint,
        "summary": _SUMMARIES[endpoint],
        "tags": ["forwarded"],
        "parameters": preference_headers(),
        "requestBody": {
            "required": True,
            "content": {"application/json": {"schema": body_schema(endpoint)}},
        },
        "responses": {
            "200": {
                "description": "The target's answer, byte for byte",
                "headers": HEADERS,
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


_PASSTHROUGH_SUMMARIES = {
    "retrieve": "A stored response, by the target that keeps it",
    "delete": "Deletes a stored response, at the target that keeps it",
    "input_items": "The input of a stored response, by the target that keeps it",
    "cancel": "Cancels a background response, at the target that keeps it",
}
_ANY: dict[str, Any] = {"type": "object"}
_QUERIES: dict[str, tuple[tuple[str, dict[str, Any]], ...]] = {
    "retrieve": (("stream", {"type": "boolean"}), ("starting_after", {"type": "integer"})),
    "input_items": (("after", _TEXT), ("limit", {"type": "integer"}), ("order", _TEXT)),
}
"""The query parameters of each call; others are forwarded to the target too."""
_TARGET = {f"{HEADER}target": {"description": _OWN["target"], "schema": _TEXT}}


def plain_paths() -> dict[str, Any]:
    """The paths of all passthrough calls."""
    about = {
        f"/v1/responses/{{id}}{below}": {
            method.lower(): _stored(name) for method, name in names.items()
        }
        for below, names in STORED.items()
    }
    counts = {path: {"post": _count(endpoint)} for path, (endpoint, _) in COUNTED.items()}
    summary = "Shortens a conversation, by the target that the router chooses"
    compact = {**operation("responses"), "operationId": "compact", "summary": summary}
    return {**about, **counts, PATHS["responses"] + COMPACT: {"post": compact}}


def _stored(name: str) -> dict[str, Any]:
    parameters = [
        {"name": "id", "in": "path", "required": True, "schema": _TEXT},
        *(_parameter(query, "query", schema) for query, schema in _QUERIES.get(name, ())),
        *(_parameter(f"{HEADER}{name}", "header", _TEXT) for name in ("allow", "exclude")),
    ]
    body = {"required": False, "content": {"application/json": {"schema": _ANY}}}
    return {
        "operationId": f"{name} response",
        "summary": _PASSTHROUGH_SUMMARIES[name],
        "tags": ["forwarded"],
        "parameters": parameters,
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
        "parameters": preference_headers(),
        "requestBody": {"required": True, "content": content},
        "responses": _replies(stream=False),
    }


def _parameter(name: str, place: str, schema: dict[str, Any]) -> dict[str, Any]:
    return {"name": name, "in": place, "required": False, "schema": schema}


def _replies(*, stream: bool) -> dict[str, Any]:
    content: dict[str, Any] = {"application/json": {"schema": _ANY}}
    if stream:
        content["text/event-stream"] = {"schema": _TEXT}
    answer = "The target's answer, byte for byte"
    return {
        "200": {"description": answer, "headers": _TARGET, "content": content},
        "default": ERROR,
    }
