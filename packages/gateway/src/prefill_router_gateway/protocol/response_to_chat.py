"""Translates requests of OpenAI's Responses API to chat completions.

Hints are left out, which change no answer or say how a model that can do it should think. So is
encrypted reasoning, which only its own model can read, and a search on the web that the model may
do or not. A tool within a namespace gets a name that has both, see `joined_name`.
"""

import re
from collections.abc import Iterator, Mapping
from itertools import takewhile
from typing import Any, Final

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

_SAME: Final = ("model", "stream", "temperature", "top_p")
_HINTS = frozenset(
    (
        *("client_metadata", "include", "metadata", "prompt_cache_key", "prompt_cache_retention"),
        *("reasoning", "safety_identifier", "service_tier", "store", "stream_options", "user"),
    )
)
_KNOWN = frozenset(
    (
        *(*_SAME, *_HINTS, "input", "instructions", "max_output_tokens", "parallel_tool_calls"),
        *("text", "tool_choice", "tools", "truncation", "background"),
    )
)
_OF_ITEMS = frozenset(("type", "id", "status", "phase"))
_ROLES: Final = {
    "user": "user",
    "assistant": "assistant",
    "system": "system",
    "developer": "system",
}
_TEXTS = ("input_text", "output_text", "text")
_SEARCHES = ("web_search", "web_search_preview")
_CHOICES = ("auto", "none", "required")
_SEVERAL = 2


def joined_name(namespace: object, name: str) -> str:
    """The name of a tool in a chat; that of a tool in a namespace has both."""
    return name if namespace is None else f"ns{len(str(namespace))}--{namespace}--{name}"


def split_name(name: str) -> tuple[str | None, str]:
    """The namespace of a tool, if it has one, and its name there; the reverse of `joined_name`."""
    match = re.match(r"ns(\d{1,3})--", name)
    end = 0 if match is None else match.end() + int(match[1])
    if match is None or name[end : end + 2] != "--":
        return None, name
    return name[match.end() : end], name[end + 2 :]


def response_hints(value: Fields) -> tuple[str, ...]:
    """The names of the hints of a request that a chat doesn't have.

    Args:
        value: The fields of a request of the Responses API.
    """
    reasoning, text, tools = (value.get(name) for name in ("reasoning", "text", "tools"))
    listed = tools if isinstance(tools, list) else ()
    kinds = [tool.get("type") for tool in listed if isinstance(tool, Mapping)]
    hints = {
        "reasoning": isinstance(reasoning, Mapping) and reasoning.get("effort") is not None,
        "text.verbosity": isinstance(text, Mapping) and text.get("verbosity") is not None,
        "tools.web_search": any(kind in _SEARCHES for kind in kinds),
        "store": value.get("store") is True,
    }
    return select_names(hints)


def response_to_chat(
    value: Fields, *, limit: str, volatile: tuple[str, ...] = ()
) -> dict[str, Any]:
    """The fields of a chat that asks the same.

    Args:
        value: The fields of a request of the Responses API.
        limit: The name of the field for the most output tokens.
        volatile: The starts of instructions that change with each request; such a line is left out.

    Raises:
        UntranslatableError: A chat can't say all of it, or it is malformed.
    """
    check_fields(value, "", _KNOWN)
    for name, usual in (("truncation", "disabled"), ("background", False)):
        if value.get(name) not in (None, usual):
            refuse(name, value[name])
    chat = select_fields(value, _SAME)
    instructions = _instructions(value.get("instructions"), volatile)
    chat["messages"] = [*instructions, *_messages(value.get("input"))]
    chat["messages"] = _with_one_system(chat["messages"])
    if value.get("max_output_tokens") is not None:
        chat[limit] = value["max_output_tokens"]
    tools = [*_tools(read_list(value.get("tools") or [], "tools"), "tools", None)]
    if tools:
        chat["tools"] = tools
        chat |= _choice(value.get("tool_choice"))
        if value.get("parallel_tool_calls") is not None:
            chat["parallel_tool_calls"] = value["parallel_tool_calls"]
    return chat | _format(read_object(value.get("text") or {}, "text"))


def _instructions(text: object, volatile: tuple[str, ...]) -> Iterator[dict[str, Any]]:
    if text and (rest := drop_volatile_line(read_text(text, "instructions"), volatile)):
        yield {"role": "system", "content": rest}


def _messages(items: object) -> list[dict[str, Any]]:
    if isinstance(items, str):
        return [{"role": "user", "content": items}]
    messages, images = list[dict[str, Any]](), list[dict[str, Any]]()
    for i, item in enumerate(read_list(items, "input")):
        fields = read_object(item, f"input[{i}]")
        if fields.get("type") == "function_call_output":
            result, pictures = _result(fields, f"input[{i}]")
            messages.append(result)
            images += pictures
            continue
        messages += _of_user(images)  # results must follow each other
        images = []
        for message in _item(fields, f"input[{i}]"):
            last = messages[-1] if messages else {}
            joins = message["role"] == last.get("role") == "assistant" and "tool_calls" in message
            if joins:  # the calls of one answer
                last["tool_calls"] = [*last.get("tool_calls", ()), *message["tool_calls"]]
            else:
                messages.append(message)
    return [*messages, *_of_user(images)]


def _of_user(parts: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{"role": "user", "content": parts}] if parts else []


def _with_one_system(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The messages with the system's first ones joined, since many templates take one alone."""
    first = list(
        takewhile(lambda m: m["role"] == "system" and isinstance(m["content"], str), messages)
    )
    if len(first) < _SEVERAL:
        return messages
    text = "\n\n".join(message["content"] for message in first)
    return [{"role": "system", "content": text}, *messages[len(first) :]]


def _item(item: Fields, where: str) -> Iterator[dict[str, Any]]:
    kind = item.get("type", "message")
    if kind == "message":
        check_fields(item, where, _OF_ITEMS | {"role", "content"})
        role = item.get("role")
        if not isinstance(role, str) or role not in _ROLES:
            refuse(f"{where}.role", role)
        yield {"role": _ROLES[role], "content": _content(item.get("content"), f"{where}.content")}
    elif kind == "function_call":
        check_fields(item, where, _OF_ITEMS | {"call_id", "name", "namespace", "arguments"})
        name = joined_name(item.get("namespace"), read_text(item.get("name"), f"{where}.name"))
        called = {"name": name, "arguments": read_text(item.get("arguments"), f"{where}.arguments")}
        call = {"id": read_text(item.get("call_id"), f"{where}.call_id"), "type": "function"}
        yield {"role": "assistant", "content": None, "tool_calls": [{**call, "function": called}]}
    elif kind != "reasoning":  # which only its own model can read
        refuse(where, kind)


def _result(item: Fields, where: str) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """The result of a call, and its images as the user's, since a tool's are texts alone."""
    check_fields(item, where, _OF_ITEMS | {"call_id", "output"})
    identity = read_text(item.get("call_id"), f"{where}.call_id")
    content = _content(item.get("output"), f"{where}.output")
    parts = [{"type": "text", "text": content}] if isinstance(content, str) else content
    text = "\n\n".join(part["text"] for part in parts if part["type"] == "text")
    result = {"role": "tool", "tool_call_id": identity, "content": text}
    images = [part for part in parts if part["type"] != "text"]
    head = {"type": "text", "text": f"Images of the tool result {identity}:"}
    return result, [head, *images] if images else []


def _content(content: object, where: str) -> Any:
    """A content as text, or as the parts of a chat where it has images."""
    if isinstance(content, str):
        return content
    parts = [_part(part, f"{where}[{i}]") for i, part in enumerate(read_list(content, where))]
    if all(part["type"] == "text" for part in parts):
        return "\n\n".join(part["text"] for part in parts)
    return parts


def _part(part: object, where: str) -> dict[str, Any]:
    fields = read_object(part, where)
    kind = fields.get("type")
    if kind in _TEXTS:
        check_fields(fields, where, frozenset(("type", "text", "annotations", "logprobs")))
        return {"type": "text", "text": read_text(fields.get("text"), f"{where}.text")}
    if kind == "refusal":
        return {"type": "text", "text": read_text(fields.get("refusal"), f"{where}.refusal")}
    if kind != "input_image":
        refuse(where, kind)
    check_fields(fields, where, frozenset(("type", "image_url", "detail")))
    url = {"url": read_text(fields.get("image_url"), f"{where}.image_url")}
    detail = fields.get("detail")
    return {"type": "image_url", "image_url": url if detail is None else {**url, "detail": detail}}


def _tools(tools: list[Any], where: str, namespace: str | None) -> Iterator[dict[str, Any]]:
    for i, tool in enumerate(tools):
        place = f"{where}[{i}]"
        fields = read_object(tool, place)
        kind = fields.get("type")
        if kind == "function":
            yield _function(fields, place, namespace)
        elif kind == "namespace" and namespace is None:
            check_fields(fields, place, frozenset(("type", "name", "description", "tools")))
            inner = read_list(fields.get("tools"), f"{place}.tools")
            name = read_text(fields.get("name"), f"{place}.name")
            yield from _tools(inner, f"{place}.tools", name)
        elif kind not in _SEARCHES:  # it runs at OpenAI, or its input has a grammar
            refuse(place, kind)


def _function(tool: Fields, where: str, namespace: str | None) -> dict[str, Any]:
    names = frozenset(("type", "name", "description", "parameters", "strict"))
    check_fields(tool, where, names)
    name = joined_name(namespace, read_text(tool.get("name"), f"{where}.name"))
    options = select_fields(tool, ("description", "strict"))
    schema = dict(read_object(tool.get("parameters") or {"type": "object"}, f"{where}.parameters"))
    if schema.get("type") == "object":
        schema.setdefault("properties", {})  # which many servers of chats require
    return {"type": "function", "function": {"name": name, **options, "parameters": schema}}


def _choice(choice: object) -> dict[str, Any]:
    if choice is None or choice in _CHOICES:
        return {} if choice is None else {"tool_choice": choice}
    fields = read_object(choice, "tool_choice")
    if fields.get("type") != "function":
        refuse("tool_choice", fields.get("type"))
    check_fields(fields, "tool_choice", frozenset(("type", "name", "namespace")))
    name = read_text(fields.get("name"), "tool_choice.name")
    function = {"name": joined_name(fields.get("namespace"), name)}
    return {"tool_choice": {"type": "function", "function": function}}


def _format(text: Fields) -> dict[str, Any]:
    check_fields(text, "text", frozenset(("format", "verbosity")))
    fields = read_object(text.get("format") or {"type": "text"}, "text.format")
    kind = fields.get("type")
    if kind == "text":
        return {}
    if kind == "json_object":
        return {"response_format": {"type": "json_object"}}
    if kind != "json_schema":
        refuse("text.format", kind)
    names = ("name", "schema", "strict", "description")
    check_fields(fields, "text.format", frozenset(("type", *names)))
    schema = select_fields(fields, names)
    return {"response_format": {"type": "json_schema", "json_schema": schema}}
