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


def response(chat: Any) -> dict[str, Any]:
    answer = read_answer(chat)
    assert answer is not None
    return response_of(answer, Usage(input_tokens=9, output_tokens=4), target="t")


def streamed(*pieces: bytes, answer: AnswerText | None = None) -> bytes:
    observer = StreamObserver("chat", leave_out_usage=False)
    writer = ResponseWriter(answer=answer, target="t")
    stream = TranslatedStream(observer, writer, input_tokens=5)
    return b"".join([*(stream.feed(piece) for piece in pieces), stream.close()])


def events(data: bytes) -> Iterator[dict[str, Any]]:
    for line in data.decode().split("\n"):
        if line.startswith("data: "):
            yield json.loads(line[6:])


def test_a_whole_answer() -> None:
    found = response(completion("42"))
    (item,) = found["output"]
    assert item["content"] == [
        {"type": "output_text", "text": "42", "annotations": [], "logprobs": []}
    ]
    assert (found["status"], found["model"], found["store"]) == (
        "completed",
        "their-own-name",
        False,
    )
    assert found["usage"]["total_tokens"] == 13
    (call,) = response(tool_completion("call_1"))["output"]
    assert (call["type"], call["call_id"], call["name"]) == ("function_call", "call_1", "weather")
    assert json.loads(call["arguments"]) == {"place": "Zürich"}


@pytest.mark.parametrize(
    ("finish", "reason"), [("length", "max_output_tokens"), ("content_filter", "content_filter")]
)
def test_an_answer_that_was_cut_is_incomplete(finish: str, reason: str) -> None:
    found = response(completion("4", finish=finish))
    assert (found["status"], found["incomplete_details"]) == ("incomplete", {"reason": reason})
    last = [*events(streamed(chunk(delta={"content": "4"}), chunk(finish_reason=finish), DONE))][-1]
    assert (last["type"], last["response"]["status"]) == ("response.incomplete", "incomplete")


def test_a_tool_of_a_namespace_has_its_own_name_again() -> None:
    function = {"name": "ns14--multi_agent_v1--close_agent", "arguments": "{}"}
    chat = completion(None, tool_calls=[{"id": "a", "type": "function", "function": function}])
    (call,) = response(chat)["output"]
    assert (call["namespace"], call["name"]) == ("multi_agent_v1", "close_agent")


@pytest.mark.parametrize("pieces", [TALK, CALLS, [*CHAT_EVENTS[:4], *CALLS]])
def test_a_stream_adds_up_to_its_last_event_and_is_numbered(pieces: list[bytes]) -> None:
    found = [*events(streamed(*pieces))]
    assert [event["sequence_number"] for event in found] == [*range(len(found))]
    kinds = [event["type"] for event in found]
    assert kinds[:2] == ["response.created", "response.in_progress"]
    assert kinds[-1] == "response.completed"
    output = found[-1]["response"]["output"]
    done = [event["item"] for event in found if event["type"] == "response.output_item.done"]
    assert output == done
    for place, item in enumerate(output):
        own = [e for e in found if e.get("item_id") == item["id"]]
        assert {e["output_index"] for e in own} == {place}
        written = "".join(e["delta"] for e in own if e["type"].endswith(".delta"))
        held = item["arguments"] if "arguments" in item else item["content"][0]["text"]
        assert written == held


@pytest.mark.slow
def test_a_stream_is_the_same_wherever_it_is_split() -> None:
    def plain(data: bytes) -> list[Any]:
        return [(e["type"], e.get("delta"), e.get("text")) for e in events(data)]

    whole = b"".join(TALK)
    for place in range(1, len(whole), 7):
        assert plain(streamed(whole[:place], whole[place:])) == plain(streamed(whole))


def test_a_stream_that_cannot_be_translated_ends_with_an_error() -> None:
    bad = tool_call_events(call_start("a"), call_piece("{nonsense"))
    last = [*events(streamed(*bad, DONE))][-1]
    assert last["type"] == "error"
    assert "aren't a JSON object" in last["message"]


def test_a_call_that_was_cut_is_incomplete() -> None:
    cut = [
        *tool_call_events(call_start("a"), call_piece('{"place": "Zü'))[:2],
        chunk(finish_reason="length"),
        DONE,
    ]
    last = [*events(streamed(*cut))][-1]
    assert (last["type"], last["response"]["output"][0]["status"]) == (
        "response.incomplete",
        "incomplete",
    )


def test_the_key_of_a_target_is_left_out_however_it_is_written() -> None:
    observer = StreamObserver("chat", leave_out_usage=False, secret="sk-hush-12345678")
    writer = ResponseWriter(answer=None, target="t")
    stream = TranslatedStream(observer, writer, input_tokens=5)
    told = chunk(delta={"content": "sk-hush-12345678"}).replace(b"sk-", b"sk\\u002d")
    assert b"12345678" not in stream.feed(told) + stream.feed(DONE)


def test_the_text_of_a_stream_is_kept_to_learn_from() -> None:
    answer, kept = AnswerText("responses"), AnswerText("chat")
    streamed(*TALK, answer=answer)
    direct = StreamObserver("chat", leave_out_usage=False, answer=kept)
    direct.feed(b"".join(TALK))
    assert answer.text == kept.text != ""


def test_reasoning_alone_is_the_text() -> None:
    reply = {"content": None, "reasoning_content": "Six times seven."}
    (item,) = response({"choices": [{"finish_reason": "stop", "message": reply}]})["output"]
    assert (item["type"], item["content"][0]["text"]) == ("message", "Six times seven.")
    pieces = [chunk(delta={"reasoning": text}) for text in ("Six ", "times seven.")]
    found = list(events(streamed(*pieces, chunk(finish_reason="stop"), DONE)))
    assert [one["sequence_number"] for one in found] == list(range(len(found)))
    (written,) = found[-1]["response"]["output"]
    assert (written["type"], written["content"]) == ("message", item["content"])
    deltas = [one["delta"] for one in found if one["type"].endswith("output_text.delta")]
    assert "".join(deltas) == "Six times seven."
