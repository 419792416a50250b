"""What is read of requests, in the shapes that the SDKs send."""

import gc
import json
import sys
from typing import Any

import pytest
from gateway_bodies import (
    BODIES,
    CHAT,
    CHAT_PARTS,
    CHAT_TOOLS,
    COMPLETION,
    EMBEDDING,
    IMAGE,
    MESSAGES,
    RESPONSE,
    TOOL,
    packed,
)

from prefill_router.data import Message
from prefill_router.gateway.protocol import Envelope, read_envelope, scored_prompt
from prefill_router.gateway.refusal import RefusalError
from prefill_router.gateway.words import SCORED, Scored
from prefill_router.targets import Ability, Endpoint


def read(endpoint: Endpoint, value: Any) -> Envelope:
    return read_envelope(endpoint, packed(value))


def chat(*turns: dict[str, Any], **fields: Any) -> Envelope:
    return read("chat", {"model": "auto", "messages": list(turns), **fields})


def user(content: Any) -> dict[str, Any]:
    return {"role": "user", "content": content}


@pytest.mark.parametrize(("endpoint", "value"), BODIES)
def test_a_body_is_read_as_json_reads_it(endpoint: Endpoint, value: dict[str, Any]) -> None:
    for body in (packed(value), json.dumps(value, indent=2).encode()):
        envelope = read_envelope(endpoint, body)
        assert envelope.value == value
        assert list(envelope.value) == list(value)
        assert (envelope.endpoint, envelope.model) == (endpoint, "auto")


def test_turns_of_a_chat() -> None:
    assert read("chat", CHAT).turns == (
        Message("system", "Be brief."),
        Message("user", "What is 17 * 23?"),
    )
    assert read("chat", CHAT_TOOLS).turns == (
        Message("system", "Use tools."),
        Message("user", "Is it raining in Bern or Basel?"),
        Message("assistant", 'weather {"city":"Bern"}\nweather {"city":"Basel"}'),
        Message("tool", "rain"),
        Message("tool", "sun"),
    )
    assert read("chat", CHAT_PARTS).turns == (Message("user", "What is on this?\nAnd on that?"),)


def test_odd_turns_of_a_chat() -> None:
    called = {"role": "assistant", "content": "Yes.", "function_call": {"name": "f"}}
    custom = {"id": "c", "type": "custom", "custom": {"name": "g", "input": "x y"}}
    turns = [
        called,
        {"role": "assistant", "tool_calls": [custom, {"type": "odd"}, 3]},
        {"role": "assistant", "content": [{"type": "refusal", "refusal": "No."}]},
        {"role": "function", "name": "f", "content": "7"},
        {"role": "critic", "content": ["plain", 4, None, {"type": "new"}]},
    ]
    assert chat(*turns).turns == (
        Message("assistant", "Yes.\nf"),
        Message("assistant", "g x y"),
        Message("assistant", "No."),
        Message("tool", "7"),
        Message("user", "plain"),
    )


def test_turns_of_responses() -> None:
    assert read("responses", RESPONSE).turns == (
        Message("system", "Be brief."),
        Message("user", "Is it raining?"),
        Message("assistant", "I'll look."),
        Message("assistant", 'weather {"city":"Bern"}'),
        Message("tool", "rain"),
    )
    assert read("responses", {"model": "auto", "input": "hi"}).turns == (Message("user", "hi"),)
    assert read("responses", {"model": "auto", "prompt": {"id": "pmpt_1"}}).turns == ()


def test_turns_of_messages() -> None:
    assert read("messages", MESSAGES).turns == (
        Message("system", "Be brief."),
        Message("user", "Is it raining in Bern?"),
        Message("assistant", 'I\'ll look.\nweather {"c": "Bern"}'),
        Message("tool", "rain"),
        Message("user", "Quickly, please."),
    )


def test_documents_of_messages_have_their_text() -> None:
    sources = [
        {"type": "text", "media_type": "text/plain", "data": "A deed."},
        {"type": "content", "content": [{"type": "text", "text": "A will."}]},
        {"type": "base64", "media_type": "application/pdf", "data": "JVBERi0="},
    ]
    parts = [{"type": "document", "source": source} for source in sources]
    envelope = read("messages", {"model": "auto", "messages": [user(parts)]})
    assert envelope.turns == (Message("user", "A deed.\nA will."),)
    assert envelope.needs == {"files"}


def test_contents_within_contents_have_an_end() -> None:
    deep: Any = [{"type": "text", "text": "bottom"}]
    for _ in range(200):
        deep = [{"type": "tool_result", "content": deep}, {"type": "image"}]
    envelope = chat(user(deep))
    assert envelope.turns == (Message("user", ""),)
    assert envelope.needs == {"tools", "images"}


def test_text_bytes_count_all_text_and_the_tools() -> None:
    assert read("chat", CHAT).text_bytes == len("Be brief.What is 17 * 23?")
    assert chat(user("ä€😀")).text_bytes == 9
    alone, image = chat(user("hi")), chat(user([{"type": "text", "text": "hi"}, IMAGE]))
    assert image.text_bytes == alone.text_bytes == 2
    assert chat(user("hi"), tools=[TOOL]).text_bytes == 2 + len(packed([TOOL]))
    odd = {**TOOL, "description": "für €"}
    assert chat(user("ä"), tools=[odd]).text_bytes == 2 + len(packed([odd]))


def test_token_ids_count_as_text_that_cannot_be_read() -> None:
    for prompt, size in (([1, 2, 3], 12), ([[1, 2], [3]], 12), (["ab", "c"], 3), (None, 0)):
        envelope = read("completions", {"model": "auto", "prompt": prompt})
        assert envelope.text_bytes == size
        assert scored_prompt(envelope, "last_user") is None


@pytest.mark.parametrize(
    ("fields", "needs"),
    [
        ({}, set()),
        ({"tools": []}, set()),
        ({"tool_choice": "none"}, set()),
        ({"tools": [TOOL], "tool_choice": "none"}, {"tools"}),
        ({"tool_choice": "auto"}, {"tools"}),
        ({"functions": [{"name": "f"}]}, {"tools"}),
        ({"function_call": {"name": "f"}}, {"tools"}),
        ({"response_format": {"type": "json_object"}}, set()),
        ({"response_format": {"type": "json_schema"}}, {"json_schema"}),
        ({"modalities": ["text", "audio"]}, {"audio"}),
    ],
)
def test_needs_of_a_chat(fields: dict[str, Any], needs: set[Ability]) -> None:
    assert chat(user("hi"), **fields).needs == needs


def test_needs_of_every_endpoint() -> None:
    needs = [read(endpoint, value).needs for endpoint, value in BODIES]
    assert needs == [
        set(),
        {"tools"},
        {"images", "audio", "files", "json_schema"},
        set(),
        set(),
        {"tools", "json_schema"},
        {"tools", "images"},
    ]
    pictures = [{"type": "input_image", "image_url": "data:,"}]
    seen = {"type": "function_call_output", "call_id": "c", "output": pictures}
    assert read("responses", {"model": "auto", "input": [seen]}).needs == {"tools", "images"}
    screen = {"type": "computer_call_output", "output": {"type": "computer_screenshot"}}
    assert read("responses", {"model": "auto", "input": [screen]}).needs == {"tools", "images"}
    schema = {"output_config": {"format": {"type": "json_schema"}}}
    turns = {"model": "auto", "messages": [user("hi")]}
    assert read("messages", {**turns, **schema}).needs == {"json_schema"}


def test_a_loop_of_tools_is_known_by_its_end() -> None:
    assert read("chat", CHAT_TOOLS).tool_call_ids == ("call_1", "call_2")
    assert read("responses", RESPONSE).tool_call_ids == ("call_1",)
    assert read("messages", MESSAGES).tool_call_ids == ("toolu_1",)
    for endpoint, value in BODIES:
        looping = value in (CHAT_TOOLS, RESPONSE, MESSAGES)
        assert read(endpoint, value).in_tool_loop is looping
    over = {**CHAT_TOOLS, "messages": [*CHAT_TOOLS["messages"], user("Thanks.")]}
    assert not read("chat", over).in_tool_loop
    assert read("chat", over).tool_call_ids == ()
    unnamed = chat(user("hi"), {"role": "function", "name": "f", "content": "7"})
    assert (unnamed.in_tool_loop, unnamed.tool_call_ids) == (True, ())
    assert not chat().in_tool_loop
    assert not read("messages", {"model": "auto", "messages": []}).in_tool_loop


def test_limits_of_the_answer() -> None:
    assert [read(*body).max_tokens for body in BODIES] == [None, None, 300, 16, None, 100, 1024]
    assert chat(max_tokens=5, max_completion_tokens=3).max_tokens == 3
    assert chat(max_tokens=5, max_completion_tokens=None).max_tokens == 5
    assert chat(max_tokens=-1).max_tokens is None
    assert chat(max_tokens=12.0).max_tokens == 12
    assert chat(max_tokens=10**400).max_tokens == 10**9


def test_streams_and_their_usage() -> None:
    assert not chat(stream=None).stream
    for options, asked in (({}, False), ({"include_usage": None}, False), (None, False)):
        envelope = chat(stream=True, stream_options=options)
        assert (envelope.stream, envelope.usage_asked, envelope.can_ask_usage) == (
            True,
            asked,
            True,
        )
    envelope = chat(stream=True, stream_options={"include_usage": True})
    assert (envelope.usage_asked, envelope.can_ask_usage) == (True, False)
    assert not chat(stream=False).can_ask_usage
    for endpoint, value in (("responses", RESPONSE), ("messages", MESSAGES)):
        assert not read(endpoint, {**value, "stream": True}).can_ask_usage


def test_conversations_are_named_by_what_stays() -> None:
    first = chat({"role": "system", "content": "s"}, user("hi"))
    later = chat(
        {"role": "system", "content": "s"},
        user("hi"),
        {"role": "assistant", "content": "hello"},
        user("more"),
    )
    assert later.key_turns == first.key_turns == first.turns
    assert chat({"role": "system", "content": "s"}).key_turns == ()


@pytest.mark.parametrize(
    ("endpoint", "fields", "hint"),
    [
        ("chat", {}, None),
        ("chat", {"user": "ada", "safety_identifier": "ada"}, None),
        ("chat", {"prompt_cache_key": "k"}, "k"),
        ("chat", {"prompt_cache_key": 7}, None),
        ("chat", {"prompt_cache_key": " "}, None),
        ("chat", {"metadata": {"session_id": "s"}, "prompt_cache_key": "k"}, "s"),
        ("chat", {"metadata": {"user_id": "x_session_0123456789"}}, None),
        ("messages", {"metadata": {"user_id": "user_0a1b"}}, None),
        ("messages", {"metadata": {"user_id": "user_0a_session_0123-45678"}}, "0123-45678"),
        (
            "messages",
            {"metadata": {"user_id": '{"device_id":"d","session_id":"0123-45678"}'}},
            "0123-45678",
        ),
        ("responses", {"conversation": "conv_1"}, "conv_1"),
        ("responses", {"conversation": {"id": "conv_1"}}, "conv_1"),
        ("chat", {"conversation": "conv_1"}, None),
    ],
)
def test_hints_of_sessions(endpoint: Endpoint, fields: dict[str, Any], hint: str | None) -> None:
    body = {"model": "auto", "messages": [user("hi")], "input": "hi", **fields}
    assert read(endpoint, body).session_hint == hint


def test_stored_responses() -> None:
    assert read("responses", RESPONSE).previous_response_id == "resp_1"
    assert read("responses", {"model": "auto", "input": "hi"}).previous_response_id is None
    assert chat(previous_response_id="resp_1").previous_response_id is None


@pytest.mark.parametrize("scored", SCORED)
def test_a_lone_text_is_scored_as_text(scored: Scored) -> None:
    assert scored_prompt(chat(user("hi")), scored) == "hi"
    assert scored_prompt(read("completions", COMPLETION), scored) == "Once upon"
    assert scored_prompt(read("embeddings", {**EMBEDDING, "input": ["a"]}), scored) == "a"
    assert scored_prompt(read("embeddings", EMBEDDING), scored) is None
    assert scored_prompt(chat(user([IMAGE])), scored) is None
    assert scored_prompt(chat(user(" \n")), scored) is None
    assert scored_prompt(chat(), scored) is None


def test_what_is_scored_of_a_conversation() -> None:
    system, first = Message("system", "Be brief."), Message("user", "Is it raining in Bern?")
    last = Message("user", "Quickly, please.")
    envelope = read("messages", MESSAGES)
    assert scored_prompt(envelope, "last_user") == last.content
    assert scored_prompt(envelope, "last_user_with_system") == (system, last)
    whole = scored_prompt(envelope, "conversation_with_system")
    assert isinstance(whole, tuple)
    assert (whole[:2], whole[-1]) == ((system, first), last)
    assert scored_prompt(envelope, "conversation") == whole[1:]


def test_only_a_system_prompt() -> None:
    envelope = chat({"role": "system", "content": "Tell a joke."})
    assert scored_prompt(envelope, "last_user_with_system") is None
    assert scored_prompt(envelope, "conversation") is None
    told = (Message("system", "Tell a joke."),)
    assert scored_prompt(envelope, "conversation_with_system") == told


def test_the_last_turn_of_the_user_with_text_is_scored() -> None:
    assert scored_prompt(chat(user("one"), user("two"), user([IMAGE])), "last_user") == "two"


MALFORMED: list[tuple[Endpoint, bytes, str, str | None]] = [
    ("chat", b"", "isn't a JSON object", None),
    ("chat", b"\xff{}", "isn't UTF-8, from its byte 0", None),
    ("chat", b"[]", "isn't a JSON object", None),
    ("chat", b'{"model": "a"', "Expecting ',' delimiter at line 1, column 14", None),
    ("chat", b'{"model": "a",}', "field's name in double quotes at line 1", None),
    ("chat", b'{"model" "a"}', "Expecting ':' delimiter", None),
    ("chat", b'{"model": }', "Expecting value", None),
    ("chat", b'{"model": "a"} x', "goes on after its JSON object", None),
    ("chat", b'{"model": "a\n"}', "Invalid control character", None),
    ("chat", b'{"mod', "Unterminated string", None),
    ("chat", b'{"model": "a", "top_p": NaN}', "NaN or Infinity", None),
    ("chat", b'{"model": "a", "x": [-Infinity]}', "NaN or Infinity", None),
    ("chat", b'{"model": "a", "seed": ' + b"1" * 5000 + b"}", "too many digits", None),
    ("chat", b'{"model": "a", "model": "b"}', "names 'model' twice", None),
    ("chat", b'{"model": "a", "m\\u006fdel": "b"}', "names 'model' twice", None),
    ("chat", b'{"model": "\\ud800"}', "lone surrogate", None),
    ("chat", b'{"model": "a", "messages": [], "\\udc00": 1}', "lone surrogate", None),
    ("chat", b"{}", "names no model", "model"),
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
        "names 'a' twice",
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


@pytest.mark.parametrize(("endpoint", "body", "told", "param"), MALFORMED)
def test_malformed_bodies(endpoint: Endpoint, body: bytes, told: str, param: str | None) -> None:
    with pytest.raises(RefusalError) as raised:
        read_envelope(endpoint, body)
    assert told in str(raised.value)
    assert (raised.value.status, raised.value.param) == (400, param)


@pytest.mark.parametrize("inner", [b"[", b'{"a":'])
def test_a_body_that_is_nested_too_deeply(inner: bytes) -> None:
    body = b'{"model": "a", "messages": ' + inner * sys.getrecursionlimit() * 2
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
    looked: list[str] = []
    body = b'{"model":"auto","messages":[],"more":[' + b"[]," * 100_000 + b"[]]}"
    gc.callbacks.append(lambda phase, _: looked.append(phase))
    try:
        read_envelope("chat", body)
        assert looked.count("start") <= 2  # once before, once behind
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
