"""Answers of chats as responses, whole and event by event."""

import json
from collections.abc import Iterator
from typing import Any

import pytest

from packages.gateway.tests.api.bodies import (
    CHAT_EVENTS,
    COUNTS,
    call_piece,
    call_start,
    chunk,
    completion,
    tool_call_events,
    tool_completion,
)
from packages.gateway.tests.scripted_target import DONE
from prefill_router.endpoints import Usage
from prefill_router_gateway.answer_text import AnswerText
from prefill_router_gateway.proxy.chat_answer import TranslatedStream, read_answer
from prefill_router_gateway.proxy.response_metadata import StreamObserver
from prefill_router_gateway.proxy.response_writer import ResponseWriter, response_of

TALK = [*CHAT_EVENTS, COUNTS, DONE]
CALLS = [
    *tool_call_events(call_start("a"), call_piece('{"place": "Zü'), call_piece('rich"}')),
    DONE,
]


def build_response(chat: Any) -> dict[str, Any]:
    answer = read_answer(chat)
    assert answer is not None
    return response_of(answer, Usage(input_tokens=9, output_tokens=4), target="t")


def translate(*pieces: bytes, answer: AnswerText | None = None) -> bytes:
    observer = StreamObserver("chat", leave_out_usage=False)
    writer = ResponseWriter(answer=answer, target="t")
    stream = TranslatedStream(observer, writer, input_tokens=5)
    return b"".join([*(stream.feed(piece) for piece in pieces), stream.close()])


def read_events(data: bytes) -> Iterator[dict[str, Any]]:
    for line in data.decode().split("\n"):
        if line.startswith("data: "):
            yield json.loads(line[6:])


def test_a_whole_answer() -> None:
    answer = build_response(completion("42"))
    (item,) = answer["output"]
    assert item["content"] == [
        {"type": "output_text", "text": "42", "annotations": [], "logprobs": []}
    ]
    assert (answer["status"], answer["model"], answer["store"]) == (
        "completed",
        "their-own-name",
        False,
    )
    assert answer["usage"]["total_tokens"] == 13
    (call,) = build_response(tool_completion("call_1"))["output"]
    assert (call["type"], call["call_id"], call["name"]) == ("function_call", "call_1", "weather")
    assert json.loads(call["arguments"]) == {"place": "Zürich"}


@pytest.mark.parametrize(
    ("finish", "reason"), [("length", "max_output_tokens"), ("content_filter", "content_filter")]
)
def test_an_answer_that_was_cut_is_incomplete(finish: str, reason: str) -> None:
    answer = build_response(completion("4", finish=finish))
    assert (answer["status"], answer["incomplete_details"]) == ("incomplete", {"reason": reason})
    last = [
        *read_events(translate(chunk(delta={"content": "4"}), chunk(finish_reason=finish), DONE))
    ][-1]
    assert (last["type"], last["response"]["status"]) == ("response.incomplete", "incomplete")


def test_a_tool_of_a_namespace_has_its_own_name_again() -> None:
    function = {"name": "ns14--multi_agent_v1--close_agent", "arguments": "{}"}
    chat = completion(None, tool_calls=[{"id": "a", "type": "function", "function": function}])
    (call,) = build_response(chat)["output"]
    assert (call["namespace"], call["name"]) == ("multi_agent_v1", "close_agent")


@pytest.mark.parametrize("pieces", [TALK, CALLS, [*CHAT_EVENTS[:4], *CALLS]])
def test_a_stream_adds_up_to_its_last_event_and_is_numbered(pieces: list[bytes]) -> None:
    events = [*read_events(translate(*pieces))]
    assert [event["sequence_number"] for event in events] == [*range(len(events))]
    kinds = [event["type"] for event in events]
    assert kinds[:2] == ["response.created", "response.in_progress"]
    assert kinds[-1] == "response.completed"
    output = events[-1]["response"]["output"]
    items = [event["item"] for event in events if event["type"] == "response.output_item.done"]
    assert output == items
    for place, item in enumerate(output):
        own = [e for e in events if e.get("item_id") == item["id"]]
        assert {e["output_index"] for e in own} == {place}
        text = "".join(e["delta"] for e in own if e["type"].endswith(".delta"))
        expected = item["arguments"] if "arguments" in item else item["content"][0]["text"]
        assert text == expected


@pytest.mark.slow
def test_a_stream_is_the_same_wherever_it_is_split() -> None:
    def plain(data: bytes) -> list[Any]:
        return [(e["type"], e.get("delta"), e.get("text")) for e in read_events(data)]

    stream = b"".join(TALK)
    for place in range(1, len(stream), 7):
        assert plain(translate(stream[:place], stream[place:])) == plain(translate(stream))


def test_a_stream_that_cannot_be_translated_ends_with_an_error() -> None:
    bad = tool_call_events(call_start("a"), call_piece("{nonsense"))
    last = [*read_events(translate(*bad, DONE))][-1]
    assert last["type"] == "error"
    assert "aren't a JSON object" in last["message"]


def test_a_call_that_was_cut_is_incomplete() -> None:
    pieces = [
        *tool_call_events(call_start("a"), call_piece('{"place": "Zü'))[:2],
        chunk(finish_reason="length"),
        DONE,
    ]
    last = [*read_events(translate(*pieces))][-1]
    assert (last["type"], last["response"]["output"][0]["status"]) == (
        "response.incomplete",
        "incomplete",
    )


def test_the_key_of_a_target_is_left_out_however_it_is_written() -> None:
    observer = StreamObserver("chat", leave_out_usage=False, secret="sk-hush-12345678")
    writer = ResponseWriter(answer=None, target="t")
    stream = TranslatedStream(observer, writer, input_tokens=5)
    chunk_with_key = chunk(delta={"content": "sk-hush-12345678"}).replace(b"sk-", b"sk\\u002d")
    assert b"12345678" not in stream.feed(chunk_with_key) + stream.feed(DONE)


def test_the_text_of_a_stream_is_kept_to_learn_from() -> None:
    answer, chat_answer = AnswerText("responses"), AnswerText("chat")
    translate(*TALK, answer=answer)
    direct = StreamObserver("chat", leave_out_usage=False, answer=chat_answer)
    direct.feed(b"".join(TALK))
    assert answer.text == chat_answer.text != ""


def test_reasoning_alone_is_the_text() -> None:
    reply = {"content": None, "reasoning_content": "Six times seven."}
    (item,) = build_response({"choices": [{"finish_reason": "stop", "message": reply}]})["output"]
    assert (item["type"], item["content"][0]["text"]) == ("message", "Six times seven.")
    pieces = [chunk(delta={"reasoning": text}) for text in ("Six ", "times seven.")]
    events = list(read_events(translate(*pieces, chunk(finish_reason="stop"), DONE)))
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    (message,) = events[-1]["response"]["output"]
    assert (message["type"], message["content"]) == ("message", item["content"])
    deltas = [event["delta"] for event in events if event["type"].endswith("output_text.delta")]
    assert "".join(deltas) == "Six times seven."
