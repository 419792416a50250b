"""Answers of targets in the protocols that clients speak, as bytes."""

import json
from typing import Any

from packages.gateway.tests.scripted_target import DONE, event

TOOL = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "The weather at a place.",
        "parameters": {
            "type": "object",
            "properties": {"place": {"type": "string"}},
            "required": ["place"],
            "additionalProperties": False,
        },
        "strict": True,
    },
}
ARGUMENTS = '{"place": "Zürich"}'
PICTURE = "data:image/png;base64,iVBORw0KGgo="
USAGE = {
    "prompt_tokens": 9,
    "completion_tokens": 4,
    "total_tokens": 13,
    "prompt_tokens_details": {"cached_tokens": 2},
    "completion_tokens_details": {"reasoning_tokens": 1},
}


def completion(content: str | None = "42", *, finish: str = "stop", **message: Any) -> Any:
    """A chat completion."""
    turn = {"role": "assistant", "content": content, **message}
    return {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "created": 1_790_000_000,
        "model": "their-own-name",
        "choices": [{"index": 0, "message": turn, "finish_reason": finish, "logprobs": None}],
        "usage": USAGE,
        "a_field_of_tomorrow": {"é": [1, 2]},
    }


def tool_completion(name: str = "call_1") -> Any:
    """A chat completion that calls the tool."""
    function = {"name": "weather", "arguments": ARGUMENTS}
    calls = [{"id": name, "type": "function", "function": function}]
    return completion(None, finish="tool_calls", tool_calls=calls)


def chunk(**choice: Any) -> bytes:
    """An event of a chat, as servers write it; this package would write it otherwise."""
    fields = {"index": 0, "delta": {}, "finish_reason": None, **choice}
    value = {
        "id": "chatcmpl-2",
        "object": "chat.completion.chunk",
        "created": 1,
        "model": "their-own-name",
        "choices": [fields],
    }
    return b"data: " + json.dumps(value, ensure_ascii=False, indent=None).encode() + b"\n\n"


COUNTS = event(
    {
        "id": "chatcmpl-2",
        "object": "chat.completion.chunk",
        "created": 1,
        "model": "their-own-name",
        "choices": [],
        "usage": USAGE,
    }
)
CHAT_EVENTS = (
    b": a comment, as some proxies send\n\n",
    chunk(delta={"role": "assistant", "content": ""}),
    chunk(delta={"reasoning_content": "Zwei mal … "}),
    chunk(delta={"content": "vier"}, logprobs={"content": [{"token": "vier", "logprob": -0.1}]}),
    chunk(delta={"content": "zig 🎉"}, a_field_of_tomorrow=[1]),
    chunk(finish_reason="stop"),
)
"""A stream's events, up to its token counts."""


def _part(**call: Any) -> bytes:
    return chunk(delta={"tool_calls": [{"index": 0, **call}]})


TOOL_CALL_EVENTS = (
    _part(id="call_7", type="function", function={"name": "weather", "arguments": ""}),
    _part(function={"arguments": ARGUMENTS[:9]}),
    _part(function={"arguments": ARGUMENTS[9:]}),
    chunk(finish_reason="tool_calls"),
)
"""A stream's events that call the tool, up to its token counts."""


def response(name: str, text: str = "42", **more: Any) -> Any:
    """A response of the Responses API."""
    part = {"type": "output_text", "text": text, "annotations": []}
    message = {
        "id": "msg_1",
        "type": "message",
        "role": "assistant",
        "status": "completed",
        "content": [part],
    }
    return {
        "id": name,
        "object": "response",
        "created_at": 1_790_000_000,
        "status": "completed",
        "model": "their-own-name",
        "output": [message],
        "parallel_tool_calls": True,
        "tool_choice": "auto",
        "tools": [],
        "usage": {
            "input_tokens": 9,
            "input_tokens_details": {"cached_tokens": 0},
            "output_tokens": 4,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": 13,
        },
        **more,
    }


def _named(value: dict[str, Any]) -> bytes:
    return f"event: {value['type']}\n".encode() + event(value)


def response_events(name: str) -> list[bytes]:
    """The events of a response's stream."""
    first_state = response(name, status="in_progress", output=[], usage=None)
    (item,) = response(name)["output"]
    (part,) = item["content"]
    place = {"item_id": "msg_1", "output_index": 0, "content_index": 0}
    pieces = [
        {"type": "response.output_text.delta", "delta": piece, "logprobs": [], **place}
        for piece in ("4", "2")
    ]
    opening = {**item, "status": "in_progress", "content": []}
    values = [
        {"type": "response.created", "response": first_state},
        {"type": "response.output_item.added", "output_index": 0, "item": opening},
        {"type": "response.content_part.added", "part": {**part, "text": ""}, **place},
        *pieces,
        {"type": "response.output_text.done", "text": "42", "logprobs": [], **place},
        {"type": "response.content_part.done", "part": part, **place},
        {"type": "response.output_item.done", "output_index": 0, "item": item},
        {"type": "response.completed", "response": response(name)},
    ]
    return [_named({**value, "sequence_number": number}) for number, value in enumerate(values)]


def message(*content: Any, stop: str = "end_turn") -> Any:
    """A message of Anthropic's API."""
    return {
        "id": "msg_01",
        "type": "message",
        "role": "assistant",
        "model": "their-own-name",
        "content": list(content) or [{"type": "text", "text": "42"}],
        "stop_reason": stop,
        "stop_sequence": None,
        "usage": {"input_tokens": 12, "output_tokens": 5, "cache_read_input_tokens": 3},
    }


MESSAGE_EVENTS = [
    _named({"type": "message_start", "message": {**message(), "content": [], "stop_reason": None}}),
    _named(
        {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}}
    ),
    b'event: ping\ndata: {"type": "ping"}\n\n',
    *(
        _named(
            {
                "type": "content_block_delta",
                "index": 0,
                "delta": {"type": "text_delta", "text": text},
            }
        )
        for text in ("4", "2")
    ),
    _named({"type": "content_block_stop", "index": 0}),
    _named(
        {
            "type": "message_delta",
            "delta": {"stop_reason": "end_turn", "stop_sequence": None},
            "usage": {"output_tokens": 5},
        }
    ),
    _named({"type": "message_stop"}),
]


def tool_call_events(*deltas: Any, finish: str | None = "tool_calls") -> list[bytes]:
    """The events of a stream that calls tools."""
    events = [chunk(delta={"tool_calls": [delta]}) for delta in deltas]
    return [chunk(delta={"role": "assistant"}), *events, chunk(finish_reason=finish), COUNTS, DONE]


def call_start(name: str, arguments: str = "", index: int | None = 0, tool: str = "weather") -> Any:
    place = {} if index is None else {"index": index}
    function = {"name": tool, "arguments": arguments}
    return {**place, "id": name, "type": "function", "function": function}


def call_piece(arguments: str, index: int | None = 0) -> Any:
    place = {} if index is None else {"index": index}
    return {**place, "function": {"arguments": arguments}}


CLAUDE_CODE = {
    "model": "auto",
    "max_tokens": 32000,
    "temperature": 1,
    "stream": True,
    "metadata": {"user_id": '{"device_id":"0f","session_id":"6b1d2c3e-0000-4000-8000-00000000"}'},
    "system": [
        {"type": "text", "text": "You are Claude Code.", "cache_control": {"type": "ephemeral"}},
        {"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral", "ttl": "1h"}},
    ],
    "tools": [
        {
            "name": "Read",
            "description": "Reads a file.",
            "input_schema": {
                "$schema": "http://json-schema.org/draft-07/schema#",
                "type": "object",
                "properties": {"file_path": {"type": "string"}},
                "required": ["file_path"],
                "additionalProperties": False,
            },
        }
    ],
    "messages": [
        {
            "role": "user",
            "content": [
                {"type": "text", "text": "<system-reminder>Today is Monday.</system-reminder>"},
                {"type": "text", "text": "What is in a.txt?"},
            ],
        },
        {"role": "system", "content": "Tools: Read."},
        {
            "role": "assistant",
            "content": [
                {"type": "text", "text": "I'll read it."},
                {"type": "tool_use", "id": "toolu_1", "name": "Read", "input": {"file_path": "a"}},
            ],
        },
        {
            "role": "user",
            "content": [
                {
                    "tool_use_id": "toolu_1",
                    "type": "tool_result",
                    "content": "<tool_use_error>No such file.</tool_use_error>",
                    "is_error": True,
                    "cache_control": {"type": "ephemeral"},
                }
            ],
        },
    ],
}
