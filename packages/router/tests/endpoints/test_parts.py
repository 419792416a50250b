"""The parts that answers are read with, on their own."""

import json
import math
from datetime import UTC, datetime
from email.utils import formatdate
from typing import Any

import pytest
from hypothesis import given, strategies as st

from prefill_router.endpoints import Usage, events
from prefill_router.endpoints.events import EventReader
from prefill_router.endpoints.json_object import MalformedError, parse_object
from prefill_router.endpoints.merged_object import MergedObject
from prefill_router.endpoints.rate_limit_headers import retry_after
from prefill_router.endpoints.reply_reader import ReplyReader
from prefill_router.endpoints.thinking import split_thinking
from prefill_router.endpoints.usage import read_usage
from prefill_router.targets import Dialect

NOW = 1_800_000_000.0


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({}, None),
        ({"retry-after": "2.5"}, 2.5),
        ({"retry-after": "-4"}, 0.0),
        ({"retry-after": "soon"}, None),
        ({"retry-after": "nan"}, None),
        ({"retry-after": "1e300"}, 86400.0),
        ({"retry-after": formatdate(NOW + 30, usegmt=True)}, 30.0),
        ({"retry-after": formatdate(NOW - 30, usegmt=True)}, 0.0),
        ({"retry-after": "Wed, 99 Foo 2026 00:00:00 GMT"}, None),
        ({"retry-after-ms": "1500", "retry-after": "9"}, 1.5),
        ({"retry-after-ms": "x", "retry-after": "9"}, 9.0),
        ({"x-ratelimit-reset-requests": "6m0s", "x-ratelimit-reset-tokens": "20ms"}, 360.0),
        (
            {
                "x-ratelimit-reset-requests": "6m0s",
                "x-ratelimit-remaining-requests": "5",
                "x-ratelimit-reset-tokens": "1h2m3.5s",
                "x-ratelimit-remaining-tokens": "0",
            },
            3723.5,
        ),
        ({"x-ratelimit-reset": str(int(NOW * 1000) + 5000)}, 5.0),
        ({"x-ratelimit-reset": str(int(NOW) + 7)}, 7.0),
        ({"x-ratelimit-reset": "11"}, 11.0),
        ({"x-ratelimit-reset": "whenever"}, None),
        (
            {
                "anthropic-ratelimit-requests-remaining": "0",
                "anthropic-ratelimit-requests-reset": datetime.fromtimestamp(
                    NOW + 8, UTC
                ).isoformat(),
            },
            8.0,
        ),
        ({"anthropic-ratelimit-requests-reset": "2026-01-01T00:00:00Z"}, None),
    ],
)
def test_when_to_ask_again(headers: dict[str, str], seconds: float | None) -> None:
    assert retry_after(headers, now=NOW) == (
        None if seconds is None else pytest.approx(seconds, abs=0.01)
    )


@pytest.mark.slow
@given(
    st.dictionaries(
        st.sampled_from(["retry-after", "retry-after-ms", "x-ratelimit-reset"]), st.text()
    )
)
def test_no_header_is_too_odd(headers: dict[str, str]) -> None:
    seconds = retry_after(headers, now=NOW)
    assert seconds is None or 0 <= seconds <= 86400


@pytest.mark.parametrize(
    ("text", "dialect", "split"),
    [
        ("<think>a</think>b", "openai", ("a", "b")),
        ("\n<think>\na\n</think>\n\nb\n", "vllm", ("a", "b\n")),
        ("<think></think>b", "vllm", ("", "b")),
        ("a</think>b", "vllm", ("a", "b")),
        ("a</think>b", "openai", None),
        ("<think>a", "vllm", ("a", "")),
        ("a <think>b</think>", "openai", None),
        ("b", "vllm", None),
        ("", "vllm", None),
        ("<think>a</think>b</think>c", "vllm", ("a", "b</think>c")),
    ],
)
def test_reasoning_inside_the_text(
    text: str, dialect: Dialect, split: tuple[str, str] | None
) -> None:
    parts = split_thinking(text, dialect)
    assert (None if parts is None else parts[:2]) == split
    if parts is not None:
        assert text[parts.start :] == parts.answer


@pytest.mark.parametrize(
    ("reported", "counts"),
    [
        ({}, (None, None, None, None)),
        ({"prompt_tokens": 0, "completion_tokens": 0}, (0, None, 0, None)),
        ({"prompt_tokens": -5, "completion_tokens": 3.0}, (-5, None, 3, None)),
        ({"prompt_tokens": "12", "completion_tokens": 1.5}, (None, None, None, None)),
        ({"prompt_tokens": True, "completion_tokens": None}, (None, None, None, None)),
        ({"prompt_tokens": 10**30, "completion_tokens": [1]}, (None, None, None, None)),
        ({"prompt_tokens": float("nan"), "completion_tokens": float("-inf")}, (None,) * 4),
        ({"prompt_tokens": 1, "prompt_tokens_details": "x"}, (1, None, None, None)),
        ({"input_tokens": 3, "cache_creation_input_tokens": 4}, (7, None, None, None)),
        ({"input_tokens": 3, "input_tokens_details": {"cached_tokens": 2}}, (3, 2, None, None)),
        ({"prompt_tokens": 1, "completion_tokens": 2, "total_tokens": 9}, (1, None, 8, None)),
        ({"prompt_tokens": 1, "completion_tokens": 2, "total_tokens": 2}, (1, None, 2, None)),
        (
            {"prompt_tokens": 1, "completion_tokens": 2, "total_tokens": 9, "reasoning_tokens": 1},
            (1, None, 2, 1),
        ),
    ],
)
def test_counts(reported: dict[str, Any], counts: tuple[int | None, ...]) -> None:
    usage = read_usage(reported)
    infinite = [n for n, v in reported.items() if isinstance(v, float) and not math.isfinite(v)]
    assert usage.reported == {**reported, **dict.fromkeys(infinite)}
    assert counts == (
        usage.input_tokens,
        usage.cached_tokens,
        usage.output_tokens,
        usage.reasoning_tokens,
    )


def test_pieces_are_joined() -> None:
    merged = MergedObject()
    first = {
        "index": 0,
        "id": "t1",
        "type": "function",
        "function": {"name": "f", "arguments": '{"a'},
    }
    merged.add_all({"tool_calls": [first], "refusal": "I ", "provider": "A", "nothing": None})
    again = {"index": 0, "type": "function", "function": {"arguments": '": 1}'}}
    other = {"index": 1, "id": "t2", "function": {"name": "g", "arguments": ""}}
    merged.add_all({"tool_calls": [other, again], "refusal": "won't", "provider": "B"})
    merged.add("logprobs", {"content": [{"token": "x"}]})
    merged.add("logprobs", {"content": [{"token": "y"}]})
    call = {"id": "t1", "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}}
    assert merged.plain() == {
        "tool_calls": [call | {"index": 0}, other],
        "refusal": "I won't",
        "provider": "B",
        "logprobs": {"content": [{"token": "x"}, {"token": "y"}]},
    }


def read_deltas(*deltas: dict[str, Any], **choice: Any) -> ReplyReader:
    reading = ReplyReader("openai")
    for moment, delta in enumerate(deltas):
        reading.take({"choices": [{"index": 0, "delta": delta, **choice}]}, float(moment))
    return reading


def test_tool_calls_and_refusals_are_kept() -> None:
    piece = {"index": 0, "function": {"name": "f", "arguments": "{}"}}
    reading = read_deltas({"tool_calls": [piece]}, {"refusal": "no"}, finish_reason="tool_calls")
    reply = reading.reply(began=0.0, ended=1.0)
    assert reply.text == ""
    assert reply.response == {"tool_calls": [piece], "refusal": "no"}
    assert reply.first_token_seconds == 0.0
    assert reply.first_answer_seconds is None


def test_tool_calls_of_a_plain_reply_need_no_index() -> None:
    reading = ReplyReader("vllm")
    calls = [{"id": str(i), "function": {"name": "f", "arguments": "{}"}} for i in range(2)]
    message = {"role": "assistant", "content": None, "tool_calls": calls}
    reading.take({"choices": [{"index": 0, "message": message, "finish_reason": "stop"}]}, 0.0)
    assert reading.reply(began=0.0, ended=1.0).response == {"tool_calls": calls}


def test_the_first_token_of_the_answer_comes_after_the_reasoning() -> None:
    texts = ["<think>", "x", "</think>", "\n\n", "4", "2"]
    reply = read_deltas(*({"content": text} for text in texts)).reply(began=0.0, ended=9.0)
    assert (reply.text, reply.reasoning) == ("42", "x")
    assert (reply.first_token_seconds, reply.first_answer_seconds) == (0.0, 4.0)


def test_other_choices_are_kept_apart() -> None:
    reading = ReplyReader("vllm")
    choices = [{"index": i, "delta": {"content": f"answer {i}"}} for i in (1, 0)]
    reading.take({"choices": choices}, 0.0)
    reply = reading.reply(began=0.0, ended=1.0)
    assert reply.text == "answer 0"
    assert reply.response == {"other_choices": [choices[0]]}


def test_characters_in_two_halves_are_joined_and_halves_replaced() -> None:
    reading = read_deltas({"content": "a\ud83d"}, {"content": "\ude00b\ud83dc"}, odd="\ud83d")
    reply = reading.reply(began=0.0, ended=1.0)
    assert reply.text == "a\U0001f600b\ufffdc"
    assert reply.response == {"odd": "\ufffd"}


def test_answers_without_end_are_refused() -> None:
    reading = ReplyReader("vllm")
    huge = {"choices": [{"index": 0, "delta": {"content": "x" * 2**24}}]}
    for _ in range(4):
        reading.take(huge, 0.0)
    with pytest.raises(MalformedError, match="without an end"):
        reading.take(huge, 0.0)
    reader = EventReader()
    assert list(reader.feed(b"x" * 2**24)) == []
    with pytest.raises(MalformedError, match="without an end"):
        list(reader.feed(b"x"))


@pytest.mark.parametrize("line", [b"data: a\n", b"data: {}}\n", b"data:\n", b"data: {\r\n: x\n"])
def test_an_event_of_many_lines_has_an_end(line: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(events, "_LONGEST", 1000)
    reader = EventReader()
    reader.feed(b"data: {\n")
    with pytest.raises(MalformedError, match="without an end"):
        reader.feed(line * 1001)
    reader = EventReader()
    for _ in range(1001):  # each event ends
        assert reader.feed(b'data: {"a":\ndata: 1}\n\n') == [{"a": 1}]


class CountedBytes(bytes):
    """Bytes that tell how many are copied when others are put before them."""

    copied = 0

    def __radd__(self, before: bytes) -> bytes:
        CountedBytes.copied += len(before)
        return before + bytes(self)


def test_a_long_line_in_small_pieces_is_put_together_once() -> None:
    reader, CountedBytes.copied = EventReader(), 0
    for piece in (b'data: {"a": "', *[b"x"] * 1000, b'"}\n'):
        values = reader.feed(CountedBytes(piece))
    assert values == [{"a": "x" * 1000}]
    assert CountedBytes.copied <= 1100


@pytest.mark.parametrize("levels", [101, 400, 5000])
def test_what_is_nested_deeply_is_malformed(levels: int) -> None:
    for opened, closed in (("[", "]"), ('{"a":', "}")):
        with pytest.raises(MalformedError):
            parse_object(f'{{"odd": {opened * levels}1{closed * levels}}}'.encode())
    flat = {"a": [[]] * 1000}
    assert parse_object(json.dumps(flat).encode()) == flat


def test_events_over_several_lines() -> None:
    reader = EventReader()
    content = b'data: {"a":\ndata: 1}\n\ndata:{"b":2}\ndata: {"c":{}}\n: x\n\ndata: [DONE]\n\n'
    assert list(reader.feed(content)) == [{"a": 1}, {"b": 2}, {"c": {}}]
    assert reader.is_done


def test_an_event_at_the_very_end() -> None:
    reader = EventReader()
    assert list(reader.feed(b'data: {"a": 1}')) == []
    assert list(reader.close()) == [{"a": 1}]


def test_usage_is_word_for_word() -> None:
    reported = {"prompt_tokens": 1, "odd": {"deep": [1, None]}}
    reading = ReplyReader("vllm")
    reading.take({"choices": [], "usage": reported}, 0.0)
    assert reading.reply(began=0.0, ended=0.0).usage == Usage(input_tokens=1, reported=reported)
