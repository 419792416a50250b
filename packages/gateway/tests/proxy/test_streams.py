"""Streams are passed on byte for byte, and their usage and tool calls are read."""

import asyncio
import json
from collections.abc import Sequence
from typing import Any

import pytest

from packages.gateway.tests.scripted_target import (
    COUNTS,
    DONE,
    GOOD,
    STREAM,
    USAGE,
    Fake,
    Gateway,
    Script,
    ScriptedClient,
    chunked_reply,
    delta,
    event,
    gateway,
)

TOOLS = (
    b": OPENROUTER PROCESSING\n\n",
    delta(role="assistant", content=None),
    delta(reasoning_content='so "usage":{ is a word'),
    delta(tool_calls=[{"index": 0, "id": "call_1", "function": {"name": "f", "arguments": ""}}]),
    delta(tool_calls=[{"index": 0, "function": {"arguments": '{"id":'}}]),
    delta(tool_calls=[{"index": 1, "id": "call_2", "function": {"name": "g", "arguments": ""}}]),
    b'event: unknown\nid: 7\nretry: 10\ndata: {"odd":  1.50, "\\u00e4": null}\n\n',
    delta(finish="tool_calls"),
    event({"choices": [], "usage": None}),
    COUNTS,
    DONE,
)


def ask_target(
    *scripts: Script, body: bytes = STREAM, **call: Any
) -> tuple[ScriptedClient, Gateway, Fake]:
    async def ask() -> tuple[ScriptedClient, Gateway, Fake]:
        async with Fake(*scripts) as fake, gateway(fake, **call) as app:
            return await ScriptedClient(body).ask(app), app, fake

    return asyncio.run(ask())


def split_bytes(data: bytes, size: int) -> list[bytes]:
    return [data[at : at + size] for at in range(0, len(data), size)]


@pytest.mark.parametrize("size", [1, 2, 3, 7, 64, 100_000])
@pytest.mark.parametrize("newline", [b"\n", b"\r\n"])
def test_bytes_come_as_they_were_however_they_are_cut(size: int, newline: bytes) -> None:
    stream = b"".join(TOOLS).replace(b"\n", newline)
    client, app, _ = ask_target(chunked_reply(split_bytes(stream, size)))
    assert client.body == stream
    assert client.is_over
    outcome = app.outcome
    assert (outcome.kind, outcome.target, outcome.status) == ("answered", "a", 200)
    assert outcome.tool_calls == ("call_1", "call_2")
    assert outcome.response_id == "c-1"
    assert outcome.usage is not None
    assert (outcome.usage.input_tokens, outcome.usage.output_tokens) == (7, 3)
    assert not outcome.usage_is_estimated
    assert app.ends == [("a", "answered")]


@pytest.mark.parametrize("size", [1, 5, 100_000])
@pytest.mark.parametrize("newline", [b"\n", b"\r\n"])
def test_the_counts_that_nobody_asked_for_alone_are_left_out(size: int, newline: bytes) -> None:
    stream = b"".join(TOOLS).replace(b"\n", newline)
    expected = b"".join(e for e in TOOLS if e != COUNTS).replace(b"\n", newline)
    client, app, _ = ask_target(chunked_reply(split_bytes(stream, size)), usage_added=True)
    assert client.body == expected
    assert app.outcome.usage is not None
    assert app.outcome.usage.reported == USAGE


def test_counts_beside_a_choice_are_never_left_out() -> None:
    last = {"index": 0, "delta": {}, "finish_reason": "stop"}
    counts = event({"id": "c-1", "choices": [last], "usage": USAGE})
    stream = [delta("4"), counts, DONE]
    client, app, _ = ask_target(chunked_reply(stream), usage_added=True)
    assert client.body == b"".join(stream)
    assert app.outcome.usage is not None
    assert app.outcome.usage.output_tokens == 3


def test_headers_of_both_sides() -> None:
    client, _, fake = ask_target(chunked_reply(GOOD, headers="x-request-id: r-1\r\n"))
    assert client.headers["x-request-id"] == "r-1"
    assert client.headers["x-own"] == "a 0"
    assert client.headers["content-type"] == "text/event-stream; charset=utf-8"
    assert "transfer-encoding" not in client.headers
    path, headers, body = fake.requests[0]
    assert (path, body) == ("/v1/chat/completions", STREAM)
    assert headers["user-agent"] == "tests"
    assert headers["accept-encoding"] == "identity"
    assert "authorization" not in headers


def test_the_outcome_is_known_before_the_last_byte_is_sent() -> None:
    bodies: list[bytes] = []
    client = ScriptedClient(STREAM)

    async def ask() -> None:
        async with Fake(chunked_reply([*GOOD[:-1], DONE])) as fake, gateway(fake) as app:
            app.on_outcome = lambda: bodies.append(client.body)
            await client.ask(app)

    asyncio.run(ask())
    (before,) = bodies
    assert DONE not in before
    assert client.body == b"".join(GOOD)


def test_without_counts_they_are_estimated() -> None:
    _, app, _ = ask_target(
        chunked_reply([delta("x" * 40), delta("y" * 21), delta(finish="stop"), DONE])
    )
    assert app.outcome.usage is not None
    assert app.outcome.usage_is_estimated
    assert app.outcome.usage.input_tokens == 5
    assert app.outcome.usage.output_tokens == 16


def test_an_end_without_its_mark_is_one_where_the_reason_was_told() -> None:
    client, app, _ = ask_target(chunked_reply(GOOD[:-1]))
    assert app.outcome.kind == "answered"
    assert client.body == b"".join(GOOD[:-1])


CUTS: dict[str, tuple[Sequence[bytes | None], bool]] = {
    "clean": ([delta("4")], True),
    "broken": ([delta("4")], False),
    "in a line": ([delta("4"), delta("2")[:20]], False),
    "in an event": ([delta("4"), delta("2")[:-1]], False),
}


@pytest.mark.parametrize("how", CUTS)
def test_a_stream_that_breaks_off_ends_with_an_error_event(how: str) -> None:
    pieces, end = CUTS[how]
    client, app, _ = ask_target(chunked_reply(pieces, end=end))
    assert client.is_over
    assert client.body.startswith(delta("4"))
    events = [e for e in client.body.split(b"\n\n") if e.strip()]
    for event_bytes in events:
        json.loads(event_bytes.strip().removeprefix(b"data: "))
    error = json.loads(events[-1].strip().removeprefix(b"data: "))["error"]
    assert error["code"] == "stream_cut"
    assert b"[DONE]" not in client.body
    assert (app.outcome.kind, app.outcome.status) == ("cut", 200)
    assert app.ends == [("a", "broken_off")]
    assert app.outcome.usage_is_estimated


RESPONSES = (
    {"type": "response.created", "response": {"id": "resp_1", "error": None}, "sequence_number": 0},
    {
        "type": "response.output_item.added",
        "item": {"type": "function_call", "call_id": "call_9", "arguments": ""},
        "sequence_number": 1,
    },
    {"type": "response.output_text.delta", "delta": "abcdefgh", "sequence_number": 2},
)
COMPLETED = {
    "type": "response.completed",
    "response": {
        "id": "resp_1",
        "error": None,
        "output": [{"type": "message", "content": [{"text": "abcdefgh"}]}],
        "usage": {"input_tokens": 3, "output_tokens": 2, "total_tokens": 5},
    },
    "sequence_number": 3,
}


def named_event(value: dict[str, Any]) -> bytes:
    return f"event: {value['type']}\n".encode() + event(value)


def test_streams_of_responses() -> None:
    stream = [named_event(e) for e in (*RESPONSES, COMPLETED)]
    client, app, fake = ask_target(chunked_reply(stream), endpoint="responses")
    assert client.body == b"".join(stream)
    assert fake.requests[0][0] == "/v1/responses"
    assert app.outcome.kind == "answered"
    assert app.outcome.response_id == "resp_1"
    assert app.outcome.tool_calls == ("call_9",)
    assert app.outcome.usage is not None
    assert app.outcome.usage.output_tokens == 2


def test_a_cut_stream_of_responses_ends_in_its_own_shape() -> None:
    client, app, _ = ask_target(
        chunked_reply([named_event(e) for e in RESPONSES]), endpoint="responses"
    )
    last = client.body.strip().rsplit(b"\n\n", 1)[1].strip()
    name, _, data = last.partition(b"\ndata: ")
    assert name == b"event: error"
    assert json.loads(data)["type"] == "error"
    assert json.loads(data)["sequence_number"] == 3
    assert app.outcome.kind == "cut"
    assert app.outcome.usage is not None
    assert app.outcome.usage.output_tokens == 2  # estimated from the eight bytes of the delta


def test_a_response_that_failed_is_no_answer_and_needs_no_second_error() -> None:
    failure = {
        "type": "response.failed",
        "response": {"id": "resp_1", "error": {"code": "server_error", "message": "no"}},
    }
    stream = [named_event(e) for e in (*RESPONSES, failure)]
    client, app, _ = ask_target(chunked_reply(stream), endpoint="responses")
    assert client.body == b"".join(stream)
    assert app.outcome.kind == "cut"
    assert app.ends == [("a", "server_error")]


MESSAGES = (
    {
        "type": "message_start",
        "message": {
            "id": "msg_1",
            "usage": {"input_tokens": 9, "cache_read_input_tokens": 4, "output_tokens": 1},
        },
    },
    {"type": "ping"},
    {"type": "content_block_start", "index": 0, "content_block": {"type": "tool_use", "id": "tu"}},
    {
        "type": "content_block_delta",
        "index": 0,
        "delta": {"type": "input_json_delta", "partial_json": "0123456789abcdefghij"},
    },
)
MESSAGE_END = (
    {"type": "message_delta", "delta": {"stop_reason": "tool_use"}, "usage": {"output_tokens": 6}},
    {"type": "message_stop"},
)


def test_streams_of_messages() -> None:
    stream = [named_event(e) for e in (*MESSAGES, *MESSAGE_END)]
    client, app, _ = ask_target(chunked_reply(stream), endpoint="messages")
    assert client.body == b"".join(stream)
    outcome = app.outcome
    assert (outcome.kind, outcome.response_id, outcome.tool_calls) == (
        "answered",
        "msg_1",
        ("tu",),
    )
    assert outcome.usage is not None
    assert (outcome.usage.input_tokens, outcome.usage.cached_tokens) == (13, 4)
    assert outcome.usage.output_tokens == 6


def test_a_cut_stream_of_messages_keeps_what_was_counted_and_estimates_the_rest() -> None:
    client, app, _ = ask_target(
        chunked_reply([named_event(e) for e in MESSAGES]), endpoint="messages"
    )
    last = client.body.strip().rsplit(b"\n\n", 1)[1].strip()
    assert last.startswith(b"event: error\ndata: ")
    assert json.loads(last.partition(b"data: ")[2])["type"] == "error"
    assert app.outcome.usage is not None
    assert (app.outcome.usage.input_tokens, app.outcome.usage.output_tokens) == (13, 5)
    assert app.outcome.usage_is_estimated


def test_an_error_within_a_stream_goes_on_as_it_is_and_counts_as_a_cut() -> None:
    error = event({"error": {"message": "oh", "type": "server_error", "code": "server_error"}})
    for end in (True, False):
        client, app, _ = ask_target(chunked_reply([delta("4"), error], end=end))
        assert client.body == delta("4") + error
        assert app.outcome.kind == "cut"
        assert app.ends == [("a", "server_error")]


def test_an_object_over_several_lines_is_read_too() -> None:
    spread = b'data: {"choices": [], "usage": {\ndata: "prompt_tokens": 7,\n'
    spread += b'data: "completion_tokens": 3}}\n\n'
    stream = [delta("4"), spread, DONE]
    client, app, _ = ask_target(chunked_reply(stream))
    assert client.body == b"".join(stream)
    assert app.outcome.usage is not None
    assert app.outcome.usage.output_tokens == 3
    assert not app.outcome.usage_is_estimated


def test_a_last_line_without_its_end_is_sent() -> None:
    stream = b"".join(GOOD).rstrip(b"\n")
    client, app, _ = ask_target(chunked_reply([stream]))
    assert client.body == stream
    assert app.outcome.kind == "answered"


def test_a_stream_without_framing_ends_with_its_connection() -> None:
    head = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\n"
    client, app, _ = ask_target([head, *GOOD])
    assert client.body == b"".join(GOOD)
    assert app.outcome.kind == "answered"
