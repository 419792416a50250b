"""What is read from an answer doesn't depend on who gave it, nor on how its bytes were cut."""

import itertools
from typing import get_args

import pytest
from hypothesis import given, settings, strategies as st

from packages.router.tests.endpoints.recorded import RECORDED, RecordedStream, in_one_piece
from packages.router.tests.fakes.loopback_endpoint import Script, answer, events, failure, plain
from prefill_router.endpoints import Reply, Usage
from prefill_router.endpoints.events import EventReader
from prefill_router.endpoints.reply_reader import ReplyReader
from prefill_router.targets import DIALECTS, Dialect

pytestmark = pytest.mark.slow

NAMES = tuple(RECORDED)


def dialect_of(name: str) -> Dialect:
    dialect = RECORDED[name].dialect or name
    assert dialect in get_args(Dialect)
    return dialect  # type: ignore[return-value]


def check(reply: Reply, recorded: RecordedStream) -> None:
    assert reply.text == "4"
    assert reply.reasoning == recorded.reasoning
    assert reply.finish_reason == "stop"
    assert reply.served_by == "served-1"
    usage = reply.usage
    assert (usage.input_tokens, usage.output_tokens) == (12, 5)
    assert (usage.cached_tokens, usage.reasoning_tokens) == (
        recorded.cached,
        recorded.reasoning_tokens,
    )
    for name, value in recorded.response.items():
        assert reply.response[name] == value


def test_every_dialect_has_a_recorded_stream() -> None:
    assert {dialect_of(name) for name in NAMES} == set(DIALECTS)


@pytest.mark.parametrize("name", NAMES)
def test_a_stream_is_read(name: str) -> None:
    recorded = RECORDED[name]
    reply = answer(Script(events(*recorded.chunks)), dialect=dialect_of(name))
    check(reply, recorded)
    assert reply.first_token_seconds is not None
    assert reply.first_answer_seconds is not None
    assert 0 < reply.first_token_seconds <= reply.first_answer_seconds <= reply.seconds
    assert reply.usage.reported == next(
        c.get("usage") or c["choices"][0].get("usage")
        for c in reversed(recorded.chunks)
        if c.get("usage") or (c["choices"] and c["choices"][0].get("usage"))
    )


@pytest.mark.parametrize("name", [n for n in NAMES if n in DIALECTS])
def test_a_reply_in_one_piece_is_read(name: str) -> None:
    recorded = RECORDED[name]
    reply = answer(plain(in_one_piece(recorded)), dialect=dialect_of(name))
    check(reply, RecordedStream([], recorded.reasoning, recorded.cached, recorded.reasoning_tokens))
    assert reply.first_token_seconds is None
    assert reply.first_answer_seconds is None
    assert reply.seconds > 0


@pytest.mark.parametrize("name", NAMES)
def test_a_stream_without_its_end_is_no_answer(name: str) -> None:
    cut = [c for c in RECORDED[name].chunks if not any(h["finish_reason"] for h in c["choices"])]
    error = failure(Script(events(*cut, done=False)), dialect=dialect_of(name))
    assert error.failure == "broken_off"


def read_reply(pieces: list[bytes], dialect: Dialect) -> Reply:
    reading, reader = ReplyReader(dialect), EventReader()
    for moment, piece in enumerate(pieces):
        for event in reader.feed(piece):
            reading.take(event, float(moment))
    for event in reader.close():
        reading.take(event, float(len(pieces)))
    return reading.reply(began=0.0, ended=float(len(pieces)))


@settings(max_examples=100, deadline=None)
@given(
    name=st.sampled_from(NAMES),
    cuts=st.lists(st.integers(0, 3000), max_size=12),
    end=st.sampled_from([b"\n", b"\r\n"]),
    noise=st.sampled_from([b"", b": a comment", b"event: message", b"id: 7", b"retry: 10"]),
)
def test_it_does_not_matter_where_the_bytes_are_cut(
    name: str, cuts: list[int], end: bytes, noise: bytes
) -> None:
    stream = b"".join(p for p in events(*RECORDED[name].chunks) if isinstance(p, bytes))
    stream = stream.replace(b"\n\n", b"\n" + (noise + b"\n" if noise else b"") + b"\n")
    stream = stream.replace(b"\n", end)
    places = [0, *sorted(min(c, len(stream)) for c in cuts), len(stream)]
    pieces = [stream[a:b] for a, b in itertools.pairwise(places)]
    check(read_reply(pieces, dialect_of(name)), RECORDED[name])


def test_the_contract_can_be_broken() -> None:
    wrong = Reply(text="4", finish_reason="stop", served_by="served-1", usage=Usage(input_tokens=1))
    with pytest.raises(AssertionError):
        check(wrong, RECORDED["anthropic"])
