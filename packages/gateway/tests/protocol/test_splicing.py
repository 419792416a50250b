"""Bodies keep their bytes on the way to a target; any body is read or refused."""

import json
import random
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

from packages.gateway.tests.protocol.bodies import BODIES, pack
from prefill_router.targets import ENDPOINTS, Endpoint
from prefill_router_gateway.errors import RefusalError
from prefill_router_gateway.protocol import Envelope, read_envelope, scored_prompt
from prefill_router_gateway.records import SCORED

pytestmark = pytest.mark.slow

NAMED_FIELDS = ("model", "stream", "stream_options", "input", "prompt", "previous_response_id")
SPACE = st.text(" \t\r\n", max_size=2)
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=8,
)
FIELDS = st.dictionaries(TEXT.filter(lambda name: name not in NAMED_FIELDS), JSON, max_size=5)


@st.composite
def json_bytes(draw: st.DrawFn, value: Any) -> bytes:
    ascii_only = draw(st.booleans())
    text = json.dumps(value, ensure_ascii=ascii_only, indent=draw(st.sampled_from([None, 1])))
    return f"{draw(SPACE)}{text}{draw(SPACE)}".encode()


@st.composite
def bodies(draw: st.DrawFn) -> tuple[bytes, bytes, bytes]:
    """The bytes before the model's name, the name, and the bytes after it."""
    fields = list(draw(FIELDS).items())
    place = draw(st.integers(0, len(fields)))
    parts = [draw(json_bytes(k)) + b":" + draw(json_bytes(v)) for k, v in fields]
    name = json.dumps(draw(TEXT.filter(str.strip)), ensure_ascii=draw(st.booleans())).encode()
    key = draw(st.sampled_from([b'"model"', b'"mod\\u0065l"'])) + draw(SPACE).encode()
    before = b",".join([b"", *parts[:place]])[1:] + (b"," if place else b"")
    after = b",".join([b"", *parts[place:]]) if place < len(fields) else b""
    start = draw(SPACE).encode() + b"{" + before + key + b":" + draw(SPACE).encode()
    return start, name, draw(SPACE).encode() + after + b"}" + draw(SPACE).encode()


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(body=bodies(), model=TEXT, ask=st.booleans())
def test_only_the_name_of_the_model_changes(
    body: tuple[bytes, bytes, bytes], model: str, ask: bool
) -> None:
    before, name, after = body
    envelope = read_envelope("responses", before + name + after)
    assert envelope.model == json.loads(name)
    spliced = envelope.body_for(model, ask_usage=ask)
    assert spliced == before + json.dumps(model).encode() + after
    assert json.loads(spliced) == {**envelope.value, "model": model}


@st.composite
def options(draw: st.DrawFn) -> Any:
    others = draw(st.dictionaries(TEXT.filter(lambda n: n != "include_usage"), JSON, max_size=2))
    usage = draw(st.sampled_from([{}, {"include_usage": False}, {"include_usage": None}]))
    return draw(st.sampled_from([None, {**others, **usage}, {**usage, **others}]))


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(body=bodies(), more=options(), last=st.booleans(), model=TEXT, data=st.data())
def test_streams_come_to_ask_for_their_usage(
    body: tuple[bytes, bytes, bytes], more: Any, last: bool, model: str, data: st.DataObject
) -> None:
    before, name, after = body
    put = b'"stream":true,"stream_options":' + data.draw(json_bytes(more)) + b',"prompt":"x"'
    if last:
        closing = after.rindex(b"}")
        body_bytes = before + name + after[:closing] + b"," + put + after[closing:]
    else:
        opening = before.index(b"{") + 1
        body_bytes = before[:opening] + put + b"," + before[opening:] + name + after
    envelope = read_envelope("completions", body_bytes)
    assert envelope.can_ask_usage
    value = json.loads(envelope.body_for(model, ask_usage=True))
    expected = {**(more or {}), "include_usage": True}
    assert value == {**envelope.value, "model": model, "stream_options": expected}
    assert list(value) == list(envelope.value)
    plain = json.loads(envelope.body_for(model, ask_usage=False))
    assert plain == {**envelope.value, "model": model}


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (
            b'{"model": "a", "messages": [], "stream": true }',
            b'{"model": "b","stream_options":{"include_usage":true}, "messages": [], '
            b'"stream": true }',
        ),
        (
            '{"stream_options": null, "x": "ä😀", "stream": true, "model":"a",'
            '"messages": []}'.encode(),
            '{"stream_options": {"include_usage":true}, "x": "ä😀", "stream": true, "model":"b",'
            '"messages": []}'.encode(),
        ),
        (
            '{"x": "ä", "model": "ü", "messages":[], "stream_options": { "a": 1.50}, '
            '"stream":true}'.encode(),
            '{"x": "ä", "model": "b", "messages":[], "stream_options": {"include_usage":true, '
            '"a": 1.50}, "stream":true}'.encode(),
        ),
        (
            b'{"model":"a","messages":[],"stream":true,"stream_options":{"include_usage": true}}',
            b'{"model":"b","messages":[],"stream":true,"stream_options":{"include_usage": true}}',
        ),
        (b'{"model":"a","messages":[],"n":1.0}', b'{"model":"b","messages":[],"n":1.0}'),
    ],
)
def test_how_usage_is_asked_for(body: bytes, expected: bytes) -> None:
    assert read_envelope("chat", body).body_for("b", ask_usage=True) == expected


def test_several_targets_get_the_same_body() -> None:
    envelope = read_envelope("chat", b'{"model":"auto","messages":[],"top_k":1e1}')
    for model in ("a", 'odd "name"', "ä", "a"):
        spliced = envelope.body_for(model, ask_usage=True)
        assert spliced == b'{"model":%s,"messages":[],"top_k":1e1}' % json.dumps(model).encode()


def use_all(envelope: Envelope) -> None:
    """Use every property of a request."""
    spliced = envelope.body_for("chosen", ask_usage=False)
    assert json.loads(spliced) == {**envelope.value, "model": "chosen"}
    if envelope.can_ask_usage:
        value = json.loads(envelope.body_for("chosen", ask_usage=True))
        assert value["stream_options"]["include_usage"] is True
    for scored in SCORED:
        prompt = scored_prompt(envelope, scored)
        assert prompt is None or prompt
    assert envelope.text_bytes >= 0
    assert envelope.in_tool_loop or not envelope.tool_call_ids
    assert envelope.turns[: len(envelope.key_turns)] == envelope.key_turns
    assert "".join(turn.content for turn in envelope.turns).encode() is not None
    assert isinstance(envelope.needs, frozenset)
    assert isinstance(envelope.session_hint, str | None)
    assert isinstance(envelope.previous_response_id, str | None)


def try_to_read(endpoint: Endpoint, body: bytes) -> bool:
    try:
        envelope = read_envelope(endpoint, body)
    except RefusalError as refusal:
        assert refusal.status == 400  # noqa: PT017
        return False
    use_all(envelope)
    return True


def damage(body: bytes, rng: random.Random) -> bytes:
    """Change, remove, double or add some bytes of a body."""
    mutable = bytearray(body)
    for _ in range(rng.randint(1, 3)):
        start = rng.randrange(len(mutable))
        stop = min(len(mutable), start + rng.randint(1, 12))
        put = rng.choice(
            [b"", bytes(mutable[start:stop]) * 2, rng.randbytes(2), rng.choice(list(ODD_BYTES))]
        )
        mutable[start:stop] = put
        if not mutable:
            break
    return bytes(mutable)


ODD_BYTES = (
    b"{",
    b"}",
    b"[",
    b'"',
    b",",
    b"\\ud800",
    b"\\",
    b"NaN",
    b"\x00",
    b"\xf0\x9f",
    b"1e999",
)
ODD_VALUES = (None, True, -1, 0.5, 10**30, "", "text", "tool_result", [], {}, [[]], [None], [{}])


def swap_value(value: Any, rng: random.Random) -> Any:
    """The value with one of its parts, at any depth, replaced by an odd value."""
    if isinstance(value, dict | list) and value and rng.random() < 0.85:
        keys = list(value) if isinstance(value, dict) else list(range(len(value)))
        key = rng.choice(keys)
        copy: Any = dict(value) if isinstance(value, dict) else list(value)
        copy[key] = swap_value(value[key], rng)
        return copy
    return rng.choice(ODD_VALUES)


def test_bent_bodies_are_read_or_refused() -> None:
    rng = random.Random(5)
    examples = [(endpoint, pack(value)) for endpoint, value in BODIES]
    read_count = 0
    for _ in range(2000):
        endpoint, body = rng.choice(examples)
        read_count += try_to_read(endpoint, damage(body, rng))
    assert 100 < read_count < 1900  # else nothing is tried


def test_bodies_of_odd_values_are_read_or_refused() -> None:
    rng = random.Random(6)
    read_count = 0
    for _ in range(2000):
        _, value = rng.choice(BODIES)
        value = swap_value(swap_value(value, rng), rng)
        read_count += try_to_read(rng.choice(ENDPOINTS), pack(value))
    assert 100 < read_count < 1900


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(endpoint=st.sampled_from(ENDPOINTS), body=st.binary(max_size=60) | JSON.map(pack))
def test_anything_is_read_or_refused(endpoint: Endpoint, body: bytes) -> None:
    try_to_read(endpoint, body)


def test_further_fields_come_behind_the_model_unless_the_client_sent_them() -> None:
    body = b'{"model": "auto", "seed": 1, "messages": [{"role": "user", "content": "x"}]}'
    further = {"reasoning_effort": b'"high"', "seed": b"7"}
    spliced = read_envelope("chat", body).body_for("m", ask_usage=False, further=further)
    assert spliced == body.replace(b'"auto"', b'"m","reasoning_effort":"high"')
