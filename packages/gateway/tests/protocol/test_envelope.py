"""What is read of requests, in the shapes that the SDKs send."""

import gc
import json
from typing import Any

import pytest

from packages.gateway.tests.protocol.bodies import (
    BODIES,
    MESSAGES,
    RESPONSE,
    chat,
    pack,
    read_body,
)
from prefill_router.data import Message
from prefill_router.targets import Endpoint
from prefill_router_gateway.errors import RefusalError
from prefill_router_gateway.protocol import read_envelope


@pytest.mark.parametrize(("endpoint", "value"), BODIES)
def test_a_body_is_read_as_json_reads_it(endpoint: Endpoint, value: dict[str, Any]) -> None:
    for body in (pack(value), json.dumps(value, indent=2).encode()):
        envelope = read_envelope(endpoint, body)
        assert envelope.value == value
        assert list(envelope.value) == list(value)
        assert (envelope.endpoint, envelope.model) == (endpoint, "auto")


def test_limits_of_the_answer() -> None:
    assert [read_body(*body).max_tokens for body in BODIES] == [
        None,
        None,
        300,
        16,
        None,
        100,
        1024,
    ]
    assert chat(max_tokens=5, max_completion_tokens=3).max_tokens == 3
    assert chat(max_tokens=5, max_completion_tokens=None).max_tokens == 5
    assert chat(max_tokens=-1).max_tokens is None
    assert chat(max_tokens=12.0).max_tokens == 12
    assert chat(max_tokens=10**400).max_tokens == 10**9


def test_streams_and_their_usage() -> None:
    assert not chat(stream=None).stream
    for options, usage_asked in (({}, False), ({"include_usage": None}, False), (None, False)):
        envelope = chat(stream=True, stream_options=options)
        assert (envelope.stream, envelope.usage_asked, envelope.can_ask_usage) == (
            True,
            usage_asked,
            True,
        )
    envelope = chat(stream=True, stream_options={"include_usage": True})
    assert (envelope.usage_asked, envelope.can_ask_usage) == (True, False)
    assert not chat(stream=False).can_ask_usage
    for endpoint, value in (("responses", RESPONSE), ("messages", MESSAGES)):
        assert not read_body(endpoint, {**value, "stream": True}).can_ask_usage


MALFORMED: list[tuple[Endpoint, bytes, str, str | None]] = [
    ("chat", b"", "isn't a JSON object", None),
    ("chat", b"\xff{}", "isn't UTF-8 at byte 0", None),
    ("chat", b"[]", "isn't a JSON object", None),
    ("chat", b'{"model": "a"', "Expecting ',' delimiter at line 1, column 14", None),
    ("chat", b'{"model": "a",}', "field's name in double quotes at line 1", None),
    ("chat", b'{"model" "a"}', "Expecting ':' delimiter", None),
    ("chat", b'{"model": }', "Expecting value", None),
    ("chat", b'{"model": "a"} x', "has more after its JSON object", None),
    ("chat", b'{"model": "a\n"}', "Invalid control character", None),
    ("chat", b'{"mod', "Unterminated string", None),
    ("chat", b'{"model": "a", "top_p": NaN}', "NaN or Infinity", None),
    ("chat", b'{"model": "a", "x": [-Infinity]}', "NaN or Infinity", None),
    ("chat", b'{"model": "a", "seed": ' + b"1" * 5000 + b"}", "too many digits", None),
    ("chat", b'{"model": "a", "model": "b"}', "has 'model' twice", None),
    ("chat", b'{"model": "a", "m\\u006fdel": "b"}', "has 'model' twice", None),
    ("chat", b'{"model": "\\ud800"}', "lone surrogate", None),
    ("chat", b'{"model": "a", "messages": [], "\\udc00": 1}', "lone surrogate", None),
    ("chat", b"{}", "has no model", "model"),
    ("chat", b'{"model": 3}', "model must be a text", "model"),
    ("chat", b'{"model": " "}', "name is empty", "model"),
    ("chat", b'{"model": "a"}', "messages must be a list", "messages"),
    ("chat", b'{"model": "a", "messages": [1]}', "messages[0] must be an object", "messages[0]"),
    ("chat", b'{"model": "a", "messages": [{}]}', "messages[0].role", "messages[0].role"),
    (
        "chat",
        b'{"model": "a", "messages": [{"role": "user", "content": {}}]}',
        "messages[0].content must be a text or a list",
        "messages[0].content",
    ),
    ("chat", b'{"model": "a", "stream": 1}', "stream must be true or false", "stream"),
    ("chat", b'{"model": "a", "stream_options": 1}', "must be an object", "stream_options"),
    (
        "chat",
        b'{"model": "a", "stream_options": {"include_usage": "yes"}}',
        "true or false",
        "stream_options.include_usage",
    ),
    (
        "chat",
        b'{"model":"a","messages":[],"stream":true,"stream_options":{"a":1,"a":2}}',
        "has 'a' twice",
        None,
    ),
    (
        "chat",
        b'{"model": "a", "messages": [], "max_tokens": "5"}',
        "max_tokens must be a whole number",
        "max_tokens",
    ),
    ("chat", b'{"model": "a", "messages": [], "max_tokens": 1e999}', "whole", "max_tokens"),
    ("chat", b'{"model": "a", "messages": [], "max_tokens": true}', "whole", "max_tokens"),
    ("messages", b'{"model": "a", "messages": "hi"}', "must be a list", "messages"),
    ("responses", b'{"model": "a", "input": 3}', "input must be a text or a list", "input"),
    ("responses", b'{"model": "a", "input": ["x"]}', "input[0] must be", "input[0]"),
    (
        "responses",
        b'{"model": "a", "previous_response_id": 1}',
        "must be a text",
        "previous_response_id",
    ),
    ("completions", b'{"model": "a", "prompt": {}}', "prompt must be", "prompt"),
    ("embeddings", b'{"model": "a", "input": 1}', "input must be", "input"),
]


@pytest.mark.parametrize(("endpoint", "body", "problem", "param"), MALFORMED)
def test_malformed_bodies(endpoint: Endpoint, body: bytes, problem: str, param: str | None) -> None:
    with pytest.raises(RefusalError) as raised:
        read_envelope(endpoint, body)
    assert problem in str(raised.value)
    assert (raised.value.status, raised.value.param) == (400, param)


@pytest.mark.parametrize("inner", [b"[", b'{"a":'])
def test_a_body_that_is_nested_too_deeply(inner: bytes) -> None:
    body = b'{"model": "a", "messages": ' + inner * 200_000
    with pytest.raises(RefusalError, match="nested too deeply"):
        read_envelope("chat", body)


def test_whole_characters_may_be_written_as_two_halves() -> None:
    body = b'{"model":"auto","messages":[{"role":"user","content":"\\ud83d\\ude00 \\\\ud800"}]}'
    envelope = read_envelope("chat", body)
    assert envelope.turns == (Message("user", "😀 \\ud800"),)


def test_errors_quote_no_content() -> None:
    secret = "open sesame"
    for body in (
        b'{"model": "a", "messages": "%s"}',
        b'{"model": "a", "messages": [{"role": "user", "content": "%s", }]}',
        b'{"model": "a", "messages": [{"role": "user", "content": "%s \\q"}]}',
        b'{"model": "a", "messages": [], "max_tokens": "%s"}',
    ):
        with pytest.raises(RefusalError) as raised:
            read_envelope("chat", body % secret.encode())
        assert secret not in str(raised.value.body())


def test_no_garbage_is_looked_for_while_a_long_body_is_read() -> None:
    phases: list[str] = []
    body = b'{"model":"auto","messages":[],"more":[' + b"[]," * 100_000 + b"[]]}"
    gc.callbacks.append(lambda phase, _: phases.append(phase))
    try:
        read_envelope("chat", body)
        assert phases.count("start") <= 2  # once before, once after
        assert gc.isenabled()
        with pytest.raises(RefusalError):
            read_envelope("chat", body[:-1])
        assert gc.isenabled()
    finally:
        gc.callbacks.pop()


def test_a_body_has_only_so_many_fields() -> None:
    fields = ",".join(f'"x{n}":1' for n in range(1000))
    with pytest.raises(RefusalError, match="more than 1000 fields"):
        read_envelope("chat", f'{{"model":"auto","messages":[],{fields}}}'.encode())
