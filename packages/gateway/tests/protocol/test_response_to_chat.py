"""Requests of OpenAI's Responses API, as the chats that ask the same."""

import json
from typing import Any

import pytest

from prefill_router_gateway.protocol import chat_splicer, left_out_hints, untranslatable
from prefill_router_gateway.protocol.response_to_chat import (
    joined_name,
    response_to_chat,
    split_name,
)

SCHEMA = {"type": "object", "properties": {"place": {"type": "string"}}}
WEATHER = {"type": "function", "name": "weather", "parameters": SCHEMA, "strict": False}
CALL = {"type": "function_call", "id": "fc_1", "call_id": "c1", "name": "weather"}
TOOL_CALL = {"id": "c1", "type": "function", "function": {"name": "weather", "arguments": "{}"}}
PICTURE = {"type": "input_image", "image_url": "data:x"}
OUTPUT = {"type": "function_call_output", "call_id": "c1", "output": "sunny"}


def message(role: str, *parts: Any) -> dict[str, Any]:
    return {"type": "message", "id": "msg_1", "role": role, "content": list(parts)}


def text(words: str, kind: str = "input_text") -> dict[str, Any]:
    return {"type": kind, "text": words}


def response_body(items: Any = "hi", **more: Any) -> dict[str, Any]:
    return {"model": "auto", "input": items, **more}


def chat(items: Any = "hi", **more: Any) -> dict[str, Any]:
    body = response_to_chat(response_body(items, **more), limit="max_tokens")
    del body["model"]
    return body


def test_messages_of_every_role() -> None:
    items = [
        message("developer", text("Be brief.")),
        {"role": "user", "content": "hi"},
        message("assistant", text("Hello.", "output_text")),
        message(
            "user", text("See"), {"type": "input_image", "image_url": "data:x", "detail": "low"}
        ),
    ]
    image = {"type": "image_url", "image_url": {"url": "data:x", "detail": "low"}}
    assert chat(items, instructions="You help.")["messages"] == [
        {"role": "system", "content": "You help.\n\nBe brief."},
        {"role": "user", "content": "hi"},
        {"role": "assistant", "content": "Hello."},
        {"role": "user", "content": [{"type": "text", "text": "See"}, image]},
    ]


def test_the_calls_of_an_answer_are_one_message_and_each_result_another() -> None:
    second = {**CALL, "call_id": "c2", "arguments": '{"place": "Bern"}', "namespace": "sky"}
    items = [
        message("user", text("Weather?")),
        {"type": "reasoning", "summary": [], "encrypted_content": "gAAA"},
        message("assistant", text("I'll look.", "output_text")),
        {**CALL, "arguments": "{}"},
        second,
        OUTPUT,
        {**OUTPUT, "call_id": "c2", "output": [text("rain"), PICTURE]},
        {**OUTPUT, "call_id": "c3"},  # results must follow each other
        message("user", text("And now?")),
    ]
    there = {"name": "ns3--sky--weather", "arguments": '{"place": "Bern"}'}
    image = {"type": "image_url", "image_url": {"url": "data:x"}}
    assert chat(items)["messages"] == [
        {"role": "user", "content": "Weather?"},
        {
            "role": "assistant",
            "content": "I'll look.",
            "tool_calls": [TOOL_CALL, {"id": "c2", "type": "function", "function": there}],
        },
        {"role": "tool", "tool_call_id": "c1", "content": "sunny"},
        {"role": "tool", "tool_call_id": "c2", "content": "rain"},
        {"role": "tool", "tool_call_id": "c3", "content": "sunny"},
        {
            "role": "user",
            "content": [{"type": "text", "text": "Images of the tool result c2:"}, image],
        },
        {"role": "user", "content": "And now?"},
    ]


def test_tools_and_how_they_are_chosen() -> None:
    bare = {"type": "function", "name": "now", "parameters": {"type": "object"}}
    space = {"type": "namespace", "name": "sky", "description": "The sky.", "tools": [WEATHER]}
    search = {"type": "web_search", "external_web_access": False}
    choice = {"type": "function", "name": "weather", "namespace": "sky"}
    body = chat(tools=[bare, space, search], tool_choice=choice, parallel_tool_calls=True)
    empty = {"type": "object", "properties": {}}
    there = {"name": "ns3--sky--weather", "strict": False, "parameters": SCHEMA}
    assert body["tools"] == [
        {"type": "function", "function": {"name": "now", "parameters": empty}},
        {"type": "function", "function": there},
    ]
    assert body["tool_choice"] == {"type": "function", "function": {"name": "ns3--sky--weather"}}
    assert body["parallel_tool_calls"]
    assert chat(tools=[WEATHER], tool_choice="required")["tool_choice"] == "required"
    assert "tool_choice" not in chat(tools=[search], tool_choice="auto")


@pytest.mark.parametrize("namespace", [None, "sky", "a--b", "multi_agent_v1"])
@pytest.mark.parametrize("name", ["weather", "close_agent", "a--b"])
def test_a_name_says_its_namespace(namespace: str | None, name: str) -> None:
    assert split_name(joined_name(namespace, name)) == (namespace, name)


@pytest.mark.parametrize(
    ("fields", "chat_fields"),
    [
        ({"max_output_tokens": 9}, {"max_tokens": 9}),
        ({"temperature": 0.5, "top_p": 0.1, "stream": True}, None),
        ({"text": {"format": {"type": "text"}, "verbosity": "low"}}, {}),
        (
            {"text": {"format": {"type": "json_schema", "name": "a", "schema": SCHEMA}}},
            {
                "response_format": {
                    "type": "json_schema",
                    "json_schema": {"name": "a", "schema": SCHEMA},
                }
            },
        ),
        ({"store": False, "include": ["reasoning.encrypted_content"], "metadata": {"a": "b"}}, {}),
        ({"reasoning": {"effort": "high", "summary": "auto"}, "prompt_cache_key": "k"}, {}),
        ({"truncation": "disabled", "background": False, "previous_response_id": None}, {}),
        ({"client_metadata": {"x": "y"}, "service_tier": "auto", "user": "u"}, {}),
    ],
)
def test_fields(fields: dict[str, Any], chat_fields: dict[str, Any] | None) -> None:
    expected = fields if chat_fields is None else chat_fields
    assert chat(**fields) == {**expected, "messages": [{"role": "user", "content": "hi"}]}
    assert untranslatable("responses", response_body(**fields)) == ""


@pytest.mark.parametrize(
    ("fields", "hints"),
    [
        ({}, ()),
        ({"reasoning": {"summary": "auto"}, "store": False, "tools": [WEATHER]}, ()),
        ({"reasoning": {"effort": "low"}, "text": {"verbosity": "low"}}, None),
        ({"tools": [{"type": "web_search"}], "store": True}, ("tools.web_search", "store")),
    ],
)
def test_hints_that_are_left_out_are_named(
    fields: dict[str, Any], hints: tuple[str, ...] | None
) -> None:
    expected = ("reasoning", "text.verbosity") if hints is None else hints
    assert left_out_hints("responses", response_body(**fields)) == expected


@pytest.mark.parametrize(
    ("value", "name"),
    [
        (response_body(previous_response_id="resp_1"), "previous_response_id"),
        (response_body(conversation="c"), "conversation"),
        (response_body(prompt={"id": "p"}), "prompt"),
        (response_body(background=True), "background: True"),
        (response_body(truncation="auto"), "truncation: auto"),
        (response_body(tomorrow=1), "tomorrow"),
        (response_body(tools=[{"type": "file_search"}]), "tools[0]: file_search"),
        (response_body(tools=[{"type": "custom", "name": "patch"}]), "tools[0]: custom"),
        (response_body(tools=[{**WEATHER, "extra": 1}]), "tools[0].extra"),
        (response_body(tools=[WEATHER], tool_choice={"type": "mcp"}), "tool_choice: mcp"),
        (response_body([{"type": "item_reference", "id": "x"}]), "input[0]: item_reference"),
        (response_body([{"type": "compaction", "encrypted_content": "x"}]), "input[0]: compaction"),
        (response_body([message("critic", text("x"))]), "input[0].role: critic"),
        (response_body([message("user", {"type": "input_file", "file_id": "f"})]),
         "input[0].content[0]: input_file"),
        (response_body([message("user", {"type": "input_image", "file_id": "f"})]),
         "input[0].content[0].file_id"),
        (response_body([{"role": ["user"], "content": "x"}]), "input[0].role: ['user']"),
        ({"model": "auto", "instructions": "hi"}, "input"),
        (response_body(tools=5), "tools"),
        (response_body([{**CALL, "arguments": 3}]), "input[0].arguments"),
        (response_body([{**OUTPUT, "output": None}]), "input[0].output"),
        (response_body(text={"format": {"type": "grammar"}}), "text.format: grammar"),
    ],
)  # fmt: skip
def test_what_a_chat_cannot_say_is_named(value: dict[str, Any], name: str) -> None:
    assert untranslatable("responses", value) == name


def test_hints_of_what_is_malformed_are_none() -> None:
    assert left_out_hints("responses", response_body(tools=5, reasoning="much", text=[])) == ()


def test_bodies_are_those_of_a_chat() -> None:
    splicer = chat_splicer(
        "responses", json.dumps(response_body(stream=True)).encode(), limit="max_tokens"
    )
    assert json.loads(splicer.body_for("m", ask_usage=True)) == {
        "model": "m",
        "stream": True,
        "stream_options": {"include_usage": True},
        "messages": [{"role": "user", "content": "hi"}],
    }
