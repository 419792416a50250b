"""Translates requests of Anthropic's Messages API to chat completions.

Left out are hints: `cache_control`, `metadata` and `service_tier`, which change no answer, and
those of `message_hints`, which say how a model that can do it should think.
"""

import json
from collections.abc import Iterator, Mapping
from typing import Any, Final, cast

from prefill_router_gateway.protocol.translated_fields import (
    Fields,
    check_fields,
    drop_volatile_line,
    read_list,
    read_object,
    read_text,
    refuse,
    select_fields,
    select_names,
)

_HINTS = frozenset(("cache_control", "metadata", "service_tier"))
_SAME: Final = ("model", "stream", "temperature", "top_p")
_KNOWN = frozenset(
    (
        *(*_SAME, "max_tokens", "messages", "system", "stop_sequences", "thinking"),
        *("tools", "tool_choice", "output_config", "output_format", "context_management"),
    )
)
_THOUGHTS = ("thinking", "redacted_thinking")
_CHOICES: Final = {"auto": "auto", "any": "required", "none": "none"}
_DIRECT = {"type": "direct"}
"""The caller of a tool that wasn't called by a program at Anthropic."""


def message_hints(value: Fields) -> tuple[str, ...]:
    """The names of the hints of a request that a chat doesn't have.

    Args:
        value: The fields of a request of the Messages API.
    """
    thinking, config = value.get("thinking"), value.get("output_config")
    hints = {
        "thinking": isinstance(thinking, Mapping) and thinking.get("type") != "disabled",
        "output_config.effort": isinstance(config, Mapping) and config.get("effort") is not None,
        "context_management": value.get("context_management") is not None,
    }
    return select_names(hints)


def message_to_chat(value: Fields, *, limit: str, volatile: tuple[str, ...] = ()) -> dict[str, Any]:
    """The fields of a chat that asks the same.

    Args:
        value: The fields of a request of the Messages API.
        limit: The name of the field for the most output tokens.
        volatile: The starts of system texts that change with each request; such a line is left out.

    Raises:
        UntranslatableError: A chat can't say all of it, or it is malformed.
    """
    _check(value, "", _KNOWN)
    chat = select_fields(value, _SAME)
    chat["messages"] = [*_system(value.get("system"), volatile), *_turns(value["messages"])]
    if value.get("max_tokens") is not None:
        chat[limit] = value["max_tokens"]
    if value.get("stop_sequences"):
        chat["stop"] = value["stop_sequences"]
    if value.get("tools"):
        named = enumerate(read_list(value["tools"], "tools"))
        chat["tools"] = [_tool(tool, f"tools[{i}]") for i, tool in named]
        chat |= _choice(value.get("tool_choice"))
    return chat | _format(value)


def _check(value: Fields, where: str, names: frozenset[str]) -> None:
    check_fields(value, where, names | _HINTS)


def _system(content: object, volatile: tuple[str, ...]) -> Iterator[dict[str, Any]]:
    """The system prompt, without lines that change with each request: the target's cache holds."""
    if isinstance(content, list):
        blocks = (_drop_volatile_line_of(block, volatile) for block in content)
        content = [block for block in blocks if block is not None]
    elif isinstance(content, str):
        content = drop_volatile_line(content, volatile)
    if content:
        yield {"role": "system", "content": _join_text(content, "system")}


def _drop_volatile_line_of(block: object, volatile: tuple[str, ...]) -> object | None:
    text = block.get("text") if isinstance(block, Mapping) else None
    if not isinstance(text, str) or not text.startswith(volatile):
        return block
    rest = drop_volatile_line(text, volatile)
    return {**cast(Fields, block), "text": rest} if rest else None


def _join_text(content: object, where: str) -> str:
    """The text of a content that is text alone; its blocks are paragraphs."""
    if isinstance(content, str):
        return content
    blocks = enumerate(read_list(content, where))
    return "\n\n".join(_block_text(block, f"{where}[{i}]") for i, block in blocks)


def _block_text(block: object, where: str) -> str:
    fields = read_object(block, where)
    if fields.get("type") != "text":
        refuse(where, fields.get("type"))
    _check(fields, where, frozenset(("type", "text")))
    return read_text(fields.get("text"), f"{where}.text")


def _turns(turns: list[Any]) -> Iterator[dict[str, Any]]:
    for i, turn in enumerate(turns):
        where = f"messages[{i}]"
        _check(turn, where, frozenset(("role", "content")))
        if turn["role"] == "user":
            yield from _user(turn.get("content"), f"{where}.content")
        elif turn["role"] == "assistant":
            if i == len(turns) - 1:  # a chat would begin an answer of its own
                refuse(where, "a prefilled answer")
            yield _assistant(turn.get("content"), f"{where}.content")
        elif turn["role"] == "system":
            yield {"role": "system", "content": _join_text(turn.get("content"), f"{where}.content")}
        else:
            refuse(f"{where}.role", turn["role"])


def _assistant(content: object, where: str) -> dict[str, Any]:
    texts, calls = list[str](), list[dict[str, Any]]()
    blocks = [{"type": "text", "text": content}] if isinstance(content, str) else content
    for i, block in enumerate(read_list(blocks, where)):
        place = f"{where}[{i}]"
        if read_object(block, place).get("type") in _THOUGHTS:  # only its own model can read it
            continue
        if block.get("type") == "tool_use":
            by = () if block.get("caller", _DIRECT) != _DIRECT else ("caller",)
            _check(block, place, frozenset(("type", "id", "name", "input", *by)))
            function = {
                "name": read_text(block.get("name"), f"{place}.name"),
                "arguments": json.dumps(read_object(block.get("input"), f"{place}.input")),
            }
            identity = read_text(block.get("id"), f"{place}.id")
            calls.append({"id": identity, "type": "function", "function": function})
        else:
            texts.append(_block_text(block, place))
    text = "\n\n".join(filter(None, texts))
    message = {"role": "assistant", "content": text or (None if calls else "")}
    return {**message, "tool_calls": calls} if calls else message


def _user(content: object, where: str) -> Iterator[dict[str, Any]]:
    """Tool results as messages of their own, then the rest; a result's images are in the rest."""
    if isinstance(content, str):
        yield {"role": "user", "content": content}
        return
    parts = list[dict[str, Any]]()
    for i, block in enumerate(read_list(content, where)):
        place = f"{where}[{i}]"
        if read_object(block, place).get("type") != "tool_result":
            parts.append(_part(block, place))
            continue
        _check(block, place, frozenset(("type", "tool_use_id", "content", "is_error")))
        identity = read_text(block.get("tool_use_id"), f"{place}.tool_use_id")
        output = block.get("content") or []
        inner = [{"type": "text", "text": output}] if isinstance(output, str) else output
        result_parts = [
            _part(b, f"{place}.content[{j}]") for j, b in enumerate(read_list(inner, place))
        ]
        text = "\n\n".join(part["text"] for part in result_parts if part["type"] == "text")
        images = [part for part in result_parts if part["type"] != "text"]
        if images:
            parts += [{"type": "text", "text": f"Images of the tool result {identity}:"}, *images]
        result = f"Error: {text}" if block.get("is_error") else text
        yield {"role": "tool", "tool_call_id": identity, "content": result}
    if all(part["type"] == "text" for part in parts):
        text = "\n\n".join(part["text"] for part in parts)
        parts_or_text: Any = text
    else:
        parts_or_text = parts
    if parts or not content:
        yield {"role": "user", "content": parts_or_text}


def _part(block: object, where: str) -> dict[str, Any]:
    fields = read_object(block, where)
    if fields.get("type") != "image":
        return {"type": "text", "text": _block_text(block, where)}
    _check(fields, where, frozenset(("type", "source")))
    source = read_object(fields.get("source"), f"{where}.source")
    if source.get("type") == "base64":
        kind, data = (
            read_text(source.get(n), f"{where}.source.{n}") for n in ("media_type", "data")
        )
        url = f"data:{kind};base64,{data}"
    elif source.get("type") == "url":
        url = read_text(source.get("url"), f"{where}.source.url")
    else:
        refuse(f"{where}.source", source.get("type"))
    return {"type": "image_url", "image_url": {"url": url}}


def _tool(tool: object, where: str) -> dict[str, Any]:
    fields = read_object(tool, where)
    if fields.get("type") not in (None, "custom"):  # it runs at Anthropic, or is defined there
        refuse(where, fields["type"])
    names = frozenset(("type", "name", "description", "input_schema", "strict"))
    _check(fields, where, names | {"eager_input_streaming"})
    function = {
        "name": read_text(fields.get("name"), f"{where}.name"),
        "parameters": _parameters(read_object(fields.get("input_schema"), f"{where}.input_schema")),
        **{
            name: fields[name] for name in ("description", "strict") if fields.get(name) is not None
        },
    }
    return {"type": "function", "function": function}


def _parameters(schema: Fields) -> Fields:
    """The schema, with the `properties` that many servers of chats require."""
    is_plain = schema.get("type") == "object" and "properties" not in schema
    return {**schema, "properties": {}} if is_plain else schema


def _choice(choice: object) -> dict[str, Any]:
    if choice is None:
        return {}
    fields = read_object(choice, "tool_choice")
    _check(fields, "tool_choice", frozenset(("type", "name", "disable_parallel_tool_use")))
    alone = {"parallel_tool_calls": False} if fields.get("disable_parallel_tool_use") else {}
    if fields.get("type") == "tool":
        named = {"name": read_text(fields.get("name"), "tool_choice.name")}
        return {"tool_choice": {"type": "function", "function": named}, **alone}
    kind = read_text(fields.get("type"), "tool_choice.type")
    if kind not in _CHOICES:
        refuse("tool_choice.type", kind)
    return {"tool_choice": _CHOICES[kind], **alone}


def _format(value: Fields) -> dict[str, Any]:
    config = read_object(value.get("output_config") or {}, "output_config")
    _check(config, "output_config", frozenset(("format", "effort")))
    wanted = config.get("format") or value.get("output_format")
    if wanted is None:
        return {}
    fields = read_object(wanted, "output_config.format")
    _check(fields, "output_config.format", frozenset(("type", "schema")))
    if fields.get("type") != "json_schema":
        refuse("output_config.format", fields.get("type"))
    schema = {"name": "answer", "schema": fields.get("schema"), "strict": True}
    return {"response_format": {"type": "json_schema", "json_schema": schema}}
