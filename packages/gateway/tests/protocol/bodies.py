"""Bodies of all endpoints in the shapes that the SDKs send."""

import json
from typing import Any

from prefill_router.targets import Endpoint
from prefill_router_gateway.protocol import Envelope, read_envelope

TOOL = {
    "type": "function",
    "function": {
        "name": "weather",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
    },
}
IMAGE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,iVBORw0KGgo="}}

CHAT: dict[str, Any] = {
    "messages": [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "What is 17 * 23?"},
    ],
    "model": "auto",
    "temperature": 0.2,
}
CHAT_TOOLS: dict[str, Any] = {
    "model": "auto",
    "messages": [
        {"role": "developer", "content": [{"type": "text", "text": "Use tools."}]},
        {"role": "user", "content": "Is it raining in Bern or Basel?"},
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [
                {
                    "id": "call_1",
                    "type": "function",
                    "function": {"name": "weather", "arguments": '{"city":"Bern"}'},
                },
                {
                    "id": "call_2",
                    "type": "function",
                    "function": {"name": "weather", "arguments": '{"city":"Basel"}'},
                },
            ],
        },
        {"role": "tool", "tool_call_id": "call_1", "content": "rain"},
        {
            "role": "tool",
            "tool_call_id": "call_2",
            "content": [{"type": "text", "text": "sun"}],
        },
    ],
    "tools": [TOOL],
    "stream": True,
}
CHAT_PARTS: dict[str, Any] = {
    "model": "auto",
    "messages": [
        {
            "role": "user",
            "content": [
                {"type": "text", "text": "What is on this?"},
                IMAGE,
                {"type": "input_audio", "input_audio": {"data": "AAAA", "format": "wav"}},
                {"type": "file", "file": {"file_id": "file-1"}},
                {"type": "text", "text": "And on that?"},
            ],
        }
    ],
    "response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": {}}},
    "max_completion_tokens": 300,
}
COMPLETION: dict[str, Any] = {"model": "auto", "prompt": "Once upon", "max_tokens": 16}
EMBEDDING: dict[str, Any] = {"input": ["one", "two"], "model": "auto", "encoding_format": "base64"}
RESPONSE: dict[str, Any] = {
    "model": "auto",
    "instructions": "Be brief.",
    "input": [
        {"role": "user", "content": [{"type": "input_text", "text": "Is it raining?"}]},
        {
            "type": "message",
            "role": "assistant",
            "content": [{"type": "output_text", "text": "I'll look."}],
        },
        {"type": "reasoning", "id": "rs_1", "summary": []},
        {
            "type": "function_call",
            "call_id": "call_1",
            "name": "weather",
            "arguments": '{"city":"Bern"}',
        },
        {"type": "function_call_output", "call_id": "call_1", "output": "rain"},
    ],
    "previous_response_id": "resp_1",
    "prompt_cache_key": "thread-7",
    "max_output_tokens": 100,
    "text": {"format": {"type": "json_schema", "name": "x", "schema": {}}},
}
MESSAGES: dict[str, Any] = {
    "model": "auto",
    "max_tokens": 1024,
    "system": [{"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral"}}],
    "messages": [
        {"role": "user", "content": "Is it raining in Bern?"},
        {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": "Hm.", "signature": "x"},
                {"type": "text", "text": "I'll look."},
                {"type": "tool_use", "id": "toolu_1", "name": "weather", "input": {"c": "Bern"}},
            ],
        },
        {
            "role": "user",
            "content": [
                {
                    "type": "tool_result",
                    "tool_use_id": "toolu_1",
                    "content": [
                        {"type": "text", "text": "rain"},
                        {
                            "type": "image",
                            "source": {"type": "base64", "media_type": "image/png", "data": "iV"},
                        },
                    ],
                },
                {"type": "text", "text": "Quickly, please."},
            ],
        },
    ],
    "tools": [{"name": "weather", "input_schema": {"type": "object"}}],
    "metadata": {"user_id": "user_0a_account__session_1b2c3d4e-0000-4000-8000-000000000000"},
}

BODIES: list[tuple[Endpoint, dict[str, Any]]] = [
    ("chat", CHAT),
    ("chat", CHAT_TOOLS),
    ("chat", CHAT_PARTS),
    ("completions", COMPLETION),
    ("embeddings", EMBEDDING),
    ("responses", RESPONSE),
    ("messages", MESSAGES),
]


def pack(value: object) -> bytes:
    """Write JSON as the SDKs do: without spaces, in UTF-8."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()


def read_body(endpoint: Endpoint, value: Any) -> Envelope:
    return read_envelope(endpoint, pack(value))


def chat(*turns: dict[str, Any], **fields: Any) -> Envelope:
    return read_body("chat", {"model": "auto", "messages": list(turns), **fields})


def user(content: Any) -> dict[str, Any]:
    return {"role": "user", "content": content}
