"""What a request's turns say: their text, what a target must be able to do, and whose they are."""

import json
from typing import Any

import pytest

from packages.gateway.tests.protocol.bodies import (
    BODIES,
    CHAT,
    CHAT_PARTS,
    CHAT_TOOLS,
    IMAGE,
    MESSAGES,
    RESPONSE,
    TOOL,
    chat,
    pack,
    read_body,
    user,
)
from prefill_router.data import Message
from prefill_router.targets import Ability, Endpoint
from prefill_router_gateway.protocol import (
    asks_to_think,
    holds_state,
    read_cache_mark,
    scored_prompt,
)


def test_turns_of_a_chat() -> None:
    assert read_body("chat", CHAT).turns == (
        Message("system", "Be brief."),
        Message("user", "What is 17 * 23?"),
    )
    assert read_body("chat", CHAT_TOOLS).turns == (
        Message("system", "Use tools."),
        Message("user", "Is it raining in Bern or Basel?"),
        Message("assistant", 'weather {"city":"Bern"}\nweather {"city":"Basel"}'),
        Message("tool", "rain"),
        Message("tool", "sun"),
    )
    assert read_body("chat", CHAT_PARTS).turns == (
        Message("user", "What is on this?\nAnd on that?"),
    )


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
    assert read_body("responses", RESPONSE).turns == (
        Message("system", "Be brief."),
        Message("user", "Is it raining?"),
        Message("assistant", "I'll look."),
        Message("assistant", 'weather {"city":"Bern"}'),
        Message("tool", "rain"),
    )
    assert read_body("responses", {"model": "auto", "input": "hi"}).turns == (
        Message("user", "hi"),
    )
    assert read_body("responses", {"model": "auto", "prompt": {"id": "pmpt_1"}}).turns == ()


def test_turns_of_messages() -> None:
    assert read_body("messages", MESSAGES).turns == (
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
    envelope = read_body("messages", {"model": "auto", "messages": [user(parts)]})
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
    assert read_body("chat", CHAT).text_bytes == len("Be brief.What is 17 * 23?")
    assert chat(user("ä€😀")).text_bytes == 9
    alone, image = chat(user("hi")), chat(user([{"type": "text", "text": "hi"}, IMAGE]))
    assert image.text_bytes == alone.text_bytes == 2
    assert chat(user("hi"), tools=[TOOL]).text_bytes == 2 + len(pack([TOOL]))
    odd = {**TOOL, "description": "für €"}
    assert chat(user("ä"), tools=[odd]).text_bytes == 2 + len(pack([odd]))


def test_token_ids_count_as_text_that_cannot_be_read() -> None:
    for prompt, size in (([1, 2, 3], 12), ([[1, 2], [3]], 12), (["ab", "c"], 3), (None, 0)):
        envelope = read_body("completions", {"model": "auto", "prompt": prompt})
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
    needs = [read_body(endpoint, value).needs for endpoint, value in BODIES]
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
    assert read_body("responses", {"model": "auto", "input": [seen]}).needs == {"tools", "images"}
    screen = {"type": "computer_call_output", "output": {"type": "computer_screenshot"}}
    assert read_body("responses", {"model": "auto", "input": [screen]}).needs == {"tools", "images"}
    schema = {"output_config": {"format": {"type": "json_schema"}}}
    turns = {"model": "auto", "messages": [user("hi")]}
    assert read_body("messages", {**turns, **schema}).needs == {"json_schema"}


def test_a_loop_of_tools_is_known_by_its_end() -> None:
    assert read_body("chat", CHAT_TOOLS).tool_call_ids == ("call_1", "call_2")
    assert read_body("responses", RESPONSE).tool_call_ids == ("call_1",)
    assert read_body("messages", MESSAGES).tool_call_ids == ("toolu_1",)
    for endpoint, value in BODIES:
        looping = value in (CHAT_TOOLS, RESPONSE, MESSAGES)
        assert read_body(endpoint, value).in_tool_loop is looping
    over = {**CHAT_TOOLS, "messages": [*CHAT_TOOLS["messages"], user("Thanks.")]}
    assert not read_body("chat", over).in_tool_loop
    assert read_body("chat", over).tool_call_ids == ()
    unnamed = chat(user("hi"), {"role": "function", "name": "f", "content": "7"})
    assert (unnamed.in_tool_loop, unnamed.tool_call_ids) == (True, ())
    assert not chat().in_tool_loop
    assert not read_body("messages", {"model": "auto", "messages": []}).in_tool_loop


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
    assert read_body(endpoint, body).session_hint == hint


def test_stored_responses() -> None:
    assert read_body("responses", RESPONSE).previous_response_id == "resp_1"
    assert read_body("responses", {"model": "auto", "input": "hi"}).previous_response_id is None
    assert chat(previous_response_id="resp_1").previous_response_id is None


@pytest.mark.parametrize(
    "fields",
    [
        {"reasoning_effort": "low"},
        {"reasoning": {"effort": "high"}},
        {"reasoning": {"enabled": True}},
        {"thinking": {"type": "enabled", "budget_tokens": 2000}},
        {"thinking": {"type": "adaptive"}},
        {"output_config": {"effort": "high"}},
        {"enable_thinking": True},
        {"chat_template_kwargs": {"thinking": True}},
    ],
)
def test_a_request_that_asks_a_model_to_think(fields: dict[str, Any]) -> None:
    assert asks_to_think(fields)


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"reasoning_effort": None},
        {"reasoning_effort": "none"},
        {"reasoning": {"effort": "minimal", "summary": "auto"}},
        {"thinking": {"type": "disabled"}},
        {"enable_thinking": False, "thinking": None, "reasoning": "much"},
    ],
)
def test_a_request_that_asks_for_no_thinking(fields: dict[str, Any]) -> None:
    assert not asks_to_think(fields)


def is_bound(endpoint: Endpoint, value: dict[str, Any]) -> bool:
    return holds_state(endpoint, value, json.dumps(value).encode())


BOUND: list[tuple[Endpoint, dict[str, Any]]] = [
    ("messages", {"type": "thinking", "thinking": "", "signature": "c2ln"}),
    ("messages", {"type": "redacted_thinking", "data": "x"}),
    ("messages", {"type": "document", "source": {"type": "file", "file_id": "file_1"}}),
    ("responses", {"type": "input_file", "file_id": "file-1"}),
    ("chat", {"type": "file", "file": {"file_id": "file-1"}}),
    ("messages", {"type": "tool_result", "content": [{"type": "x", "source": {"file_id": "f"}}]}),
    ("responses", {"type": "function_call_output", "output": [{"file_id": "f"}]}),
]


@pytest.mark.parametrize(("endpoint", "part"), BOUND)
def test_what_only_its_target_can_read(endpoint: Endpoint, part: dict[str, Any]) -> None:
    field = "input" if endpoint == "responses" else "messages"
    turns = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": [part]}]
    assert is_bound(endpoint, {field: turns})


MARK = {"cache_control": {"type": "ephemeral"}}
LONG = {"cache_control": {"type": "ephemeral", "ttl": "1h"}}


def mark_of(endpoint: Endpoint, **value: Any) -> str | None:
    return read_cache_mark(endpoint, value, json.dumps(value).encode())


def test_the_newest_mark_says_for_how_long_a_request_is_cached() -> None:
    turn = {"role": "user", "content": "Hi"}
    marked_turn = {
        "role": "user",
        "content": [{"type": "text", "text": "Hi", **MARK}, {"type": "text"}],
    }
    result = {"type": "tool_result", "content": [{"type": "text", "text": "x", **MARK}]}
    system = [{"type": "text", "text": "Be brief.", **LONG}]
    assert mark_of("messages", messages=[turn]) is None
    assert mark_of("messages", messages=[turn], system=system) == "hour"
    assert mark_of("messages", messages=[turn], tools=[{"name": "x", **LONG}]) == "hour"
    assert mark_of("messages", messages=[marked_turn, turn], system=system) == "minutes"
    within = [{"role": "user", "content": [result]}]
    assert mark_of("messages", messages=within, system=system) == "minutes"
    assert mark_of("messages", messages=[marked_turn], **LONG) == "hour"
    assert mark_of("chat", messages=[{"role": "system", "content": system}, turn]) == "hour"


def test_what_only_looks_like_a_mark_is_none() -> None:
    call = {"type": "tool_use", "id": "t", "name": "Write", "input": MARK}
    text = {"role": "user", "content": json.dumps(MARK)}
    turns = [text, {"role": "assistant", "content": [call]}]
    assert mark_of("messages", messages=turns, cache_control=None) is None
    assert mark_of("responses", input="Hi", **MARK) is None


@pytest.mark.parametrize("kind", ["reasoning", "compaction"])
def test_encrypted_items_of_responses_can_be_read_by_their_target_alone(kind: str) -> None:
    item = {"type": kind, "encrypted_content": "gAAA"}
    assert is_bound("responses", {"input": ["odd", item]})
    assert not is_bound("responses", {"input": [{**item, "encrypted_content": None}]})


@pytest.mark.parametrize("content", ["Hi", None, [], ["x", 3], [{"type": "thinking"}]])
def test_other_turns_are_for_any_target(content: object) -> None:
    assert not is_bound("messages", {"messages": [{"role": "assistant", "content": content}]})
    assert not is_bound("responses", {"input": "Hi"})
