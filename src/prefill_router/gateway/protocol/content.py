"""The text of a message's content, in any of the shapes that the protocols know."""

import json
from collections.abc import Mapping
from typing import Any

MOST_DEEP = 4
"""Contents that may stand in each other: a tool's result, a document in it, and its parts."""


def content_text(content: object, deep: int = 0) -> str:
    """The text of a content: itself, or that of its parts, a line apart; images and such have none.

    Args:
        content: A text, a list of parts, or nothing.
        deep: How many contents this one stands in.
    """
    if isinstance(content, str):
        return content
    if not isinstance(content, list) or deep >= MOST_DEEP:
        return ""
    if len(content) == 1:
        return part_text(content[0], deep)
    return "\n".join(filter(None, (part_text(part, deep) for part in content)))


def part_text(part: object, deep: int = 0) -> str:
    """The text of one part; a call of a tool has its name and arguments."""
    if isinstance(part, str):
        return part
    if not isinstance(part, dict):
        return ""
    for name in ("text", "refusal"):
        text = part.get(name)
        if isinstance(text, str):
            return text
    if part.get("type") in ("tool_use", "server_tool_use", "mcp_tool_use"):
        return call_text(part.get("name"), part.get("input"))
    source = part.get("source")
    if isinstance(source, dict):  # a document, whose other kinds are files
        return _source_text(source, deep)
    return content_text(part.get("content"), deep + 1)


def call_text(name: object, arguments: object) -> str:
    """The text of a call of a tool: its name, and its arguments as they were written."""
    told = arguments if isinstance(arguments, str) else _written(arguments)
    return " ".join(filter(None, (name if isinstance(name, str) else "", told)))


def calls_text(turn: Mapping[str, Any]) -> str:
    """The texts of the calls in a message of Chat Completions, a line apart."""
    calls = turn.get("tool_calls")
    found = [_call(call) for call in calls] if isinstance(calls, list) else []
    single = turn.get("function_call")
    if isinstance(single, dict):
        found.append(call_text(single.get("name"), single.get("arguments")))
    return "\n".join(filter(None, found))


def _call(call: object) -> str:
    if not isinstance(call, dict):
        return ""
    for kind, what in (("function", "arguments"), ("custom", "input")):
        called = call.get(kind)
        if isinstance(called, dict):
            return call_text(called.get("name"), called.get(what))
    return ""


def _source_text(source: Mapping[str, Any], deep: int) -> str:
    if source.get("type") == "text" and isinstance(source.get("data"), str):
        return str(source["data"])
    return content_text(source.get("content"), deep + 1)


def _written(arguments: object) -> str:
    if arguments is None:
        return ""
    try:
        return json.dumps(arguments, ensure_ascii=False)
    except RecursionError:  # read at a shallower place; the target may still read it
        return ""
