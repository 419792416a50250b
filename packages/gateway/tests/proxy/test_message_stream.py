"""A chat's stream, translated to that of messages."""

import json

import pytest

from packages.gateway.tests.api.bodies import (
    CHAT_EVENTS,
    call_piece,
    call_start,
    chunk,
    tool_call_events,
)
from packages.gateway.tests.scripted_target import DONE
from prefill_router_gateway.answer_text import AnswerText
from prefill_router_gateway.proxy.chat_answer import TranslatedStream
from prefill_router_gateway.proxy.message_writer import MessageWriter
from prefill_router_gateway.proxy.response_metadata import StreamObserver

STREAM = b"".join(
    [
        *CHAT_EVENTS,
        *tool_call_events(call_start("a"), call_piece('{"place": "Zü'), call_piece('rich"}')),
    ]
).replace(b"\n\n", b"\r\n\r\n", 2)


def stream_of(answer: AnswerText | None = None) -> TranslatedStream:
    writer = MessageWriter(answer=answer, input_tokens=5, target="t")
    observer = StreamObserver("chat", leave_out_usage=False)
    return TranslatedStream(observer, writer, input_tokens=5)


def translated(*pieces: bytes) -> bytes:
    stream = stream_of()
    return b"".join([*(stream.feed(piece) for piece in pieces), stream.close()])


@pytest.mark.slow
def test_a_stream_is_the_same_wherever_it_is_split() -> None:
    due = translated(STREAM)
    assert due.count(b"event: message_stop") == 1
    assert due.endswith(b'event: message_stop\ndata: {"type": "message_stop"}\n\n')
    for place in range(1, len(STREAM)):
        assert translated(STREAM[:place], STREAM[place:]) == due
    assert translated(*(bytes([byte]) for byte in STREAM)) == due


def test_the_text_of_a_stream_is_kept_to_learn_from() -> None:
    answer = AnswerText("messages")
    stream_of(answer).feed(b"".join([*CHAT_EVENTS, DONE]))
    kept = AnswerText("chat")
    direct = StreamObserver("chat", leave_out_usage=False, answer=kept)
    direct.feed(b"".join([*CHAT_EVENTS, DONE]))
    assert answer.text == kept.text != ""


def test_a_stream_without_its_end_marker_is_ended() -> None:
    whole_stream = b"".join([chunk(delta={"content": "4"}), chunk(finish_reason="stop")])
    assert b"message_stop" in translated(whole_stream)
    assert b"message_stop" in translated(whole_stream.rstrip())
    assert b"message_stop" not in translated(whole_stream[: len(whole_stream) // 2])


def test_arguments_may_be_an_object_in_place_of_its_text() -> None:
    call = {"index": 0, "id": "a", "function": {"name": "weather", "arguments": {"place": "Bern"}}}
    said = translated(*tool_call_events(call))
    (piece,) = (line for line in said.split(b"\n") if b"input_json_delta" in line)
    assert json.loads(json.loads(piece[5:])["delta"]["partial_json"]) == {"place": "Bern"}


def test_a_stream_of_reasoning_alone_is_a_text() -> None:
    pieces = [chunk(delta={"role": "assistant", "content": ""})]
    pieces += [chunk(delta={"reasoning_content": text}) for text in ("It is ", "six times seven.")]
    written = translated(*pieces, chunk(finish_reason="length"), DONE)
    found = [json.loads(line[6:]) for line in written.decode().split("\n") if line[:6] == "data: "]
    kinds = [one["type"] for one in found if one["type"] != "ping"]
    block = ["content_block_start", "content_block_delta", "content_block_stop"]
    assert kinds == ["message_start", *block, "message_delta", "message_stop"]
    (delta,) = (one["delta"] for one in found if one["type"] == "content_block_delta")
    assert delta == {"type": "text_delta", "text": "It is six times seven."}
    assert b"It is " not in translated(*pieces, *CHAT_EVENTS, DONE)
