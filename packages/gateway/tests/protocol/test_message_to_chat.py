"""Requests of Anthropic's Messages API, as the chats that ask the same."""

import json
from typing import Any

import pytest

from prefill_router_gateway.protocol import chat_splicer, untranslatable
from prefill_router_gateway.protocol.message_to_chat import message_hints, message_to_chat
from prefill_router_gateway.protocol.translated_fields import UntranslatableError

CACHED = {"cache_control": {"type": "ephemeral"}}
SCHEMA = {"type": "object", "properties": {"place": {"type": "string"}}}
TOOL = {"name": "weather", "description": "The weather.", "input_schema": SCHEMA}
PNG = {"type": "base64", "media_type": "image/png", "data": "iVBORw0KGgo="}
IMAGE_PART = {"type": "image_url", "image_url": {"url": "data:image/png;base64,iVBORw0KGgo="}}
CALL = {"type": "tool_use", "id": "toolu_1", "name": "weather", "input": {"place": "Zürich"}}
TOOL_CALL = {
    "id": "toolu_1",
    "type": "function",
    "function": {"name": "weather", "arguments": json.dumps({"place": "Zürich"})},
}


def text(words: str, **more: Any) -> dict[str, Any]:
    return {"type": "text", "text": words, **more}


def turn(content: Any, role: str = "user") -> dict[str, Any]:
    return {"role": role, "content": content}


def result(content: Any, **more: Any) -> dict[str, Any]:
    return {"type": "tool_result", "tool_use_id": "toolu_1", "content": content, **more}


def message_body(*turns: Any, **more: Any) -> dict[str, Any]:
    return {"model": "auto", "max_tokens": 9, "messages": list(turns) or [turn("hi")], **more}


def chat(*turns: Any, **more: Any) -> dict[str, Any]:
    return message_to_chat(message_body(*turns, **more), limit="max_completion_tokens")


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, {}),
        ({"system": "Be brief."}, {"system": "Be brief."}),
        ({"system": [text("Be", **CACHED), text("brief.")]}, {"system": "Be\n\nbrief."}),
        ({"stop_sequences": ["END"]}, {"stop": ["END"]}),
        ({"temperature": 0.5, "top_p": 0.1}, {"temperature": 0.5, "top_p": 0.1}),
        ({"stream": True}, {"stream": True}),
        ({"thinking": {"type": "disabled"}}, {}),
        ({"thinking": {"type": "adaptive"}, "output_config": {"effort": "high"}}, {}),
        ({"context_management": {"edits": [{"type": "clear_thinking_20251015"}]}}, {}),
        ({"metadata": {"user_id": "u"}, "service_tier": "auto", **CACHED}, {}),
        ({"top_k": None, "tools": []}, {}),
        (
            {"output_config": {"format": {"type": "json_schema", "schema": SCHEMA}}},
            {
                "response_format": {
                    "type": "json_schema",
                    "json_schema": {"name": "answer", "schema": SCHEMA, "strict": True},
                }
            },
        ),
    ],
)
def test_fields(fields: dict[str, Any], expected: dict[str, Any]) -> None:
    system = expected.pop("system", None)
    turns = [*([turn(system, "system")] if system else []), turn("hi")]
    assert chat(**fields) == {
        "model": "auto",
        "max_completion_tokens": 9,
        "messages": turns,
        **expected,
    }
    assert untranslatable("messages", message_body(**fields)) == ""


@pytest.mark.parametrize(
    ("choice", "expected"),
    [
        (None, {}),
        ({"type": "auto"}, {"tool_choice": "auto"}),
        ({"type": "any"}, {"tool_choice": "required"}),
        ({"type": "none"}, {"tool_choice": "none"}),
        (
            {"type": "tool", "name": "weather", "disable_parallel_tool_use": True},
            {
                "tool_choice": {"type": "function", "function": {"name": "weather"}},
                "parallel_tool_calls": False,
            },
        ),
    ],
)
def test_tools(choice: Any, expected: dict[str, Any]) -> None:
    tools = [{**TOOL, **CACHED, "type": "custom", "strict": True, "eager_input_streaming": True}]
    body = chat(tools=tools, tool_choice=choice)
    function = {"name": "weather", "parameters": SCHEMA, "description": "The weather."}
    assert body.pop("tools") == [{"type": "function", "function": {**function, "strict": True}}]
    assert body == {**chat(), **expected}


def test_a_tool_without_properties_gets_none() -> None:
    body = chat(tools=[{"name": "now", "input_schema": {"type": "object"}}])
    (tool,) = body["tools"]
    assert tool["function"]["parameters"] == {"type": "object", "properties": {}}


@pytest.mark.parametrize(
    ("turns", "expected"),
    [
        ([turn([text("a", **CACHED), text("b")])], [turn("a\n\nb")]),
        ([turn("")], [turn("")]),
        (
            [turn("a"), turn([text("b", **CACHED), text("c")], "system")],
            [turn("a"), turn("b\n\nc", "system")],
        ),
        (
            [turn([text("See"), {"type": "image", "source": PNG, **CACHED}])],
            [turn([text("See"), IMAGE_PART])],
        ),
        (
            [turn([{"type": "image", "source": {"type": "url", "url": "https://a.b/c.png"}}])],
            [turn([{"type": "image_url", "image_url": {"url": "https://a.b/c.png"}}])],
        ),
        (
            [turn("a"), turn([text("b"), text("c")], "assistant"), turn("d")],
            [turn("a"), turn("b\n\nc", "assistant"), turn("d")],
        ),
        (
            [
                turn("a"),
                turn([text("Let me see."), {**CALL, "caller": {"type": "direct"}}], "assistant"),
                turn([result("sunny")]),
            ],
            [
                turn("a"),
                {**turn("Let me see.", "assistant"), "tool_calls": [TOOL_CALL]},
                {"role": "tool", "tool_call_id": "toolu_1", "content": "sunny"},
            ],
        ),
        (
            [turn([CALL], "assistant"), turn([text("Go on."), result([text("a"), text("b")])])],
            [
                {**turn(None, "assistant"), "tool_calls": [TOOL_CALL]},
                {"role": "tool", "tool_call_id": "toolu_1", "content": "a\n\nb"},
                turn("Go on."),
            ],
        ),
        (
            [turn([result("no such place", is_error=True), result(None)])],
            [
                {"role": "tool", "tool_call_id": "toolu_1", "content": "Error: no such place"},
                {"role": "tool", "tool_call_id": "toolu_1", "content": ""},
            ],
        ),
        (
            [turn([result([text("a"), {"type": "image", "source": PNG}]), text("And?")])],
            [
                {"role": "tool", "tool_call_id": "toolu_1", "content": "a"},
                turn([text("Images of the tool result toolu_1:"), IMAGE_PART, text("And?")]),
            ],
        ),
    ],
)
def test_turns(turns: list[Any], expected: list[Any]) -> None:
    assert chat(*turns)["messages"] == expected


def test_thoughts_of_another_model_are_left_out() -> None:
    hidden = {"type": "redacted_thinking", "data": "x"}
    said = chat(turn("a"), turn([THOUGHT, hidden, text("b")], "assistant"), turn("c"))["messages"]
    assert said[1] == {"role": "assistant", "content": "b"}


@pytest.mark.parametrize(
    ("fields", "hints"),
    [
        ({}, ()),
        ({"thinking": {"type": "disabled"}, "output_config": {}}, ()),
        ({"thinking": {"type": "enabled", "budget_tokens": 2000}}, ("thinking",)),
        (
            {"output_config": {"effort": "low"}, "context_management": {"edits": []}},
            ("output_config.effort", "context_management"),
        ),
    ],
)
def test_hints_that_are_left_out_have_names(fields: dict[str, Any], hints: tuple[str, ...]) -> None:
    assert message_hints(message_body(**fields)) == hints


DOCUMENT = {"type": "document", "source": {"type": "text", "data": "secret words"}}
THOUGHT = {"type": "thinking", "thinking": "secret words", "signature": "x"}


@pytest.mark.parametrize(
    ("value", "name"),
    [
        *((message_body(**{n: 5}), n) for n in ("top_k", "container", "speed")),
        (message_body(mcp_servers=[{"url": "https://secret"}]), "mcp_servers"),
        (message_body(a_field_of_tomorrow={}), "a_field_of_tomorrow"),
        (message_body(output_config={"verbosity": "high"}), "output_config.verbosity"),
        (message_body(turn([DOCUMENT])), "messages[0].content[0]: document"),
        (message_body(turn([result([DOCUMENT])])), "messages[0].content[0].content[0]: document"),
        (message_body(turn([text("a", citations=[{}])])), "messages[0].content[0].citations"),
        (message_body(turn([text("a")], "assistant")), "messages[0]: a prefilled answer"),
        (message_body(turn("a", "tool")), "messages[0].role: tool"),
        (message_body({**turn("a"), "name": "x"}), "messages[0].name"),
        (
            message_body(turn([{"type": "image", "source": {"type": "file", "file_id": "f"}}])),
            "messages[0].content[0].source: file",
        ),
        (
            message_body(tools=[TOOL, {"type": "web_search_20250305", "name": "web_search"}]),
            "tools[1]: web_search_20250305",
        ),
        (message_body(tools=[{**TOOL, "defer_loading": True}]), "tools[0].defer_loading"),
        (message_body(tools=[{"name": "a"}]), "tools[0].input_schema"),
        (message_body(tools=[TOOL], tool_choice={"type": "x"}), "tool_choice.type: x"),
        (message_body(tools=[TOOL], tool_choice={"type": ["auto"]}), "tool_choice.type"),
        (message_body(tools="all"), "tools"),
        (message_body(turn([5])), "messages[0].content[0]"),
        (
            message_body(turn([{**CALL, "input": "{}"}], "assistant"), turn("a")),
            "messages[0].content[0].input",
        ),
        (
            message_body(turn([{**CALL, "caller": {"type": "code"}}], "assistant"), turn("a")),
            "messages[0].content[0].caller",
        ),
        (message_body(system=5), "system"),
    ],
)
def test_what_a_chat_cannot_say_is_named(value: dict[str, Any], name: str) -> None:
    assert untranslatable("messages", value) == name
    with pytest.raises(UntranslatableError):
        message_to_chat(value, limit="max_tokens")


def test_bodies_are_those_of_a_chat() -> None:
    splicer = chat_splicer(
        "messages", json.dumps(message_body(stream=True)).encode(), limit="max_tokens"
    )
    body = json.loads(splicer.body_for("m", ask_usage=True, further={"x": b"1"}))
    assert body == {
        "model": "m",
        "x": 1,
        "stream": True,
        "stream_options": {"include_usage": True},
        "messages": [turn("hi")],
        "max_tokens": 9,
    }
