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


def build_stream(answer: AnswerText | None = None) -> TranslatedStream:
    writer = MessageWriter(answer=answer, input_tokens=5, target="t")
    observer = StreamObserver("chat", leave_out_usage=False)
    return TranslatedStream(observer, writer, input_tokens=5)


def translate(*pieces: bytes) -> bytes:
    stream = build_stream()
    return b"".join([*(stream.feed(piece) for piece in pieces), stream.close()])


@pytest.mark.slow
def test_a_stream_is_the_same_wherever_it_is_split() -> None:
    expected = translate(STREAM)
    assert expected.count(b"event: message_stop") == 1
    assert expected.endswith(b'event: message_stop\ndata: {"type": "message_stop"}\n\n')
    for place in range(1, len(STREAM)):
        assert translate(STREAM[:place], STREAM[place:]) == expected
    assert translate(*(bytes([byte]) for byte in STREAM)) == expected


def test_the_text_of_a_stream_is_kept_to_learn_from() -> None:
    answer = AnswerText("messages")
    build_stream(answer).feed(b"".join([*CHAT_EVENTS, DONE]))
    chat_answer = AnswerText("chat")
    direct = StreamObserver("chat", leave_out_usage=False, answer=chat_answer)
    direct.feed(b"".join([*CHAT_EVENTS, DONE]))
    assert answer.text == chat_answer.text != ""


def test_a_stream_without_its_end_marker_is_ended() -> None:
    stream = b"".join([chunk(delta={"content": "4"}), chunk(finish_reason="stop")])
    assert b"message_stop" in translate(stream)
    assert b"message_stop" in translate(stream.rstrip())
    assert b"message_stop" not in translate(stream[: len(stream) // 2])


def test_arguments_may_be_an_object_in_place_of_its_text() -> None:
    call = {"index": 0, "id": "a", "function": {"name": "weather", "arguments": {"place": "Bern"}}}
    output = translate(*tool_call_events(call))
    (piece,) = (line for line in output.split(b"\n") if b"input_json_delta" in line)
    assert json.loads(json.loads(piece[5:])["delta"]["partial_json"]) == {"place": "Bern"}


def test_a_stream_of_reasoning_alone_is_a_text() -> None:
    pieces = [chunk(delta={"role": "assistant", "content": ""})]
    pieces += [chunk(delta={"reasoning_content": text}) for text in ("It is ", "six times seven.")]
    output = translate(*pieces, chunk(finish_reason="length"), DONE)
    events = [json.loads(line[6:]) for line in output.decode().split("\n") if line[:6] == "data: "]
    kinds = [event["type"] for event in events if event["type"] != "ping"]
    block = ["content_block_start", "content_block_delta", "content_block_stop"]
    assert kinds == ["message_start", *block, "message_delta", "message_stop"]
    (delta,) = (event["delta"] for event in events if event["type"] == "content_block_delta")
    assert delta == {"type": "text_delta", "text": "It is six times seven."}
    assert b"It is " not in translate(*pieces, *CHAT_EVENTS, DONE)
