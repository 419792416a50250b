"""Any answer of a chat becomes a message, or none."""

import copy
import json
from collections.abc import Iterator
from contextlib import suppress
from functools import reduce
from operator import getitem
from typing import Any

import pytest
from hypothesis import example, given, settings, strategies as st

from prefill_router_gateway.proxy.chat_answer import TranslatedStream, read_answer
from prefill_router_gateway.proxy.message_writer import MessageWriter, message_of
from prefill_router_gateway.proxy.response_metadata import StreamObserver

CALL = {"index": 0, "id": "call_1", "function": {"name": "weather", "arguments": "{}"}}
REPLY = {"content": "42", "refusal": None, "tool_calls": [CALL]}
CHAT = {"id": "c", "choices": [{"finish_reason": "stop", "message": REPLY, "delta": REPLY}]}
WORDS = ("index", "id", "function", "name", "arguments", "content", "tool_calls", "error", "{", "")
PLAIN_VALUES = (
    st.none() | st.booleans() | st.integers(0, 2) | st.sampled_from((*WORDS, "length", "stop"))
)
ODD_VALUES = st.recursive(
    PLAIN_VALUES,
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from(WORDS), inner),
    max_leaves=4,
)
Path = tuple[Any, ...]


def message(chat: Any) -> dict[str, Any] | None:
    """The message for a whole chat."""
    answer = read_answer(chat)
    return None if answer is None else message_of(answer, None, target="t")


def walk_paths(value: Any, to: Path = ()) -> Iterator[Path]:
    """The paths of all values inside a value."""
    members: Any = value.items() if isinstance(value, dict) else ()
    for name, inner in enumerate(value) if isinstance(value, list) else members:
        yield (*to, name)
        yield from walk_paths(inner, (*to, name))


def change_chat(changes: list[tuple[Path, Any]]) -> Any:
    """A copy of the chat with other values at some paths."""
    chat: Any = copy.deepcopy(CHAT)
    for (*way, last), value in changes:
        with suppress(KeyError, IndexError, TypeError):  # an earlier change removed the path
            reduce(getitem, way, chat)[last] = value
    return chat


CHANGES = st.lists(
    st.tuples(st.sampled_from([p for p in walk_paths(CHAT) if isinstance(p[-1], str)]), ODD_VALUES),
    max_size=2,
)


FINISH_PATH = ("choices", 0, "finish_reason")


@pytest.mark.slow
@example([(FINISH_PATH, "tool_calls"), (("choices", 0, "message", "tool_calls"), None)])
@given(CHANGES)
@settings(deadline=None)
def test_a_message_is_whole_or_none(changes: list[tuple[Path, Any]]) -> None:
    answer = message(change_chat(changes))
    if answer is not None:
        json.dumps(answer)
        kinds = [block["type"] for block in answer["content"]]
        assert answer["stop_reason"] != "tool_use" or "tool_use" in kinds


def test_arguments_may_be_an_object_in_place_of_its_text() -> None:
    arguments = {"place": "Zürich", "days": [1, 2]}
    for value in (arguments, json.dumps(arguments)):
        chat = change_chat(
            [(("choices", 0, "message", "tool_calls", 0, "function", "arguments"), value)]
        )
        answer = message(chat)
        assert answer is not None
        assert answer["content"][1]["input"] == arguments


def nest(depth: int) -> dict[str, Any]:
    value: dict[str, Any] = {}
    for _ in range(depth):
        value = {"a": value}
    return value


@pytest.mark.parametrize("arguments", [[], 5, True, nest(5000)], ids=["[]", "5", "true", "deep"])
def test_arguments_that_are_no_object_are_a_failure_of_the_target(arguments: Any) -> None:
    call = {"id": "a", "function": {"name": "weather", "arguments": arguments}}
    reply = {"content": "", "tool_calls": [call]}
    chat = {"choices": [{"finish_reason": "tool_calls", "message": reply}]}
    assert message(chat) is None


DELTA_PATH = ("choices", 0, "delta")


@pytest.mark.slow
@example([[((*DELTA_PATH, "tool_calls", 0, "index"), [])]], True)
@example([[((*DELTA_PATH, "tool_calls", 0, "function", "arguments"), "{")], []], True)
@given(st.lists(CHANGES, max_size=3), st.booleans())
@settings(deadline=None)
def test_a_stream_keeps_the_order_of_its_events(every: list[Any], has_end: bool) -> None:
    observer = StreamObserver("chat", leave_out_usage=False)
    writer = MessageWriter(answer=None, input_tokens=5, target="t")
    stream = TranslatedStream(observer, writer, input_tokens=5)
    chunks = [b"data: " + json.dumps(change_chat(changes)).encode() + b"\n\n" for changes in every]
    output = stream.feed(b"".join([*chunks, b"data: [DONE]\n\n" * has_end])) + stream.close()
    lines = output.decode().split("\n")
    kinds = [line[7:] for line in lines if line.startswith("event: ") and line != "event: ping"]
    is_open = False
    for place, kind in enumerate(kinds):
        is_last = place == len(kinds) - 1
        assert (place == 0) == (kind == "message_start") or (is_last and kind == "error")
        assert kind not in ("error", "message_stop") or is_last
        if kind.startswith("content_block"):
            assert is_open == (kind != "content_block_start")
            is_open = kind != "content_block_stop"
        else:
            assert kind == "error" or not is_open


@pytest.mark.parametrize("name", ["reasoning_content", "reasoning"])
def test_reasoning_alone_is_the_text_and_otherwise_left_out(name: str) -> None:
    reply = {"content": "", name: "Six times seven."}
    answer = message({"choices": [{"finish_reason": "stop", "message": reply}]})
    assert answer is not None
    assert answer["content"] == [{"type": "text", "text": "Six times seven."}]
    answer_with_text = message(
        {"choices": [{"finish_reason": "stop", "message": {**reply, "content": "42"}}]}
    )
    assert answer_with_text is not None
    assert answer_with_text["content"] == [{"type": "text", "text": "42"}]
