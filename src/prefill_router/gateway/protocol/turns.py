"""The turns of a request as text, whatever its endpoint calls them.

Roles become those of `Message`: `developer` is `system`, `function` is `tool`, and whoever else
speaks counts as the user.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from prefill_router.data import Message
from prefill_router.gateway.protocol.content import call_text, calls_text, content_text
from prefill_router.targets import Endpoint

_ROLES = {
    "user": "user",
    "assistant": "assistant",
    "system": "system",
    "tool": "tool",
    "developer": "system",
    "function": "tool",
}
_TOKEN_BYTES = 4


def read_turns(endpoint: Endpoint, value: Mapping[str, Any]) -> tuple[Message, ...]:
    """The text of every turn, system prompts first where they have a field of their own.

    Token ids have no text; a text to complete or to embed is a turn of the user.
    """
    if endpoint == "chat":
        return tuple(_chat_turn(turn) for turn in value["messages"])
    if endpoint == "messages":
        return (*_system(value.get("system")), *_anthropic_turns(value["messages"]))
    if endpoint == "responses":
        return (*_system(value.get("instructions")), *_items(value.get("input")))
    return tuple(_plain(value.get("prompt" if endpoint == "completions" else "input")))


def token_id_bytes(endpoint: Endpoint, value: Mapping[str, Any]) -> int:
    """About how many bytes of text were sent as token ids, four for each."""
    if endpoint not in ("completions", "embeddings"):
        return 0
    given = value.get("prompt" if endpoint == "completions" else "input")
    if not isinstance(given, list):
        return 0
    ids = sum(len(part) if isinstance(part, list) else isinstance(part, int) for part in given)
    return ids * _TOKEN_BYTES


def is_result(item: Mapping[str, Any]) -> bool:
    """Whether an item of the Responses API is what a tool gave back."""
    kind = item.get("type")
    return isinstance(kind, str) and kind.endswith("call_output")


def _chat_turn(turn: Mapping[str, Any]) -> Message:
    content = turn.get("content")
    text = content if isinstance(content, str) else content_text(content)
    if "tool_calls" in turn or "function_call" in turn:
        text = "\n".join(filter(None, (text, calls_text(turn))))
    return Message(_ROLES.get(turn["role"], "user"), text)


def _system(content: object) -> Iterator[Message]:
    if isinstance(content, str | list) and content:
        yield Message("system", content_text(content))


def _anthropic_turns(turns: list[dict[str, Any]]) -> Iterator[Message]:
    for turn in turns:
        role, content = _ROLES.get(turn["role"], "user"), turn.get("content")
        results = results_of(content)
        if not results:
            yield Message(role, content_text(content))
            continue
        texts = (content_text(part.get("content"), 1) for part in results)
        yield Message("tool", "\n".join(filter(None, texts)))
        if len(results) < len(content or ()):
            said = [part for part in content or () if not _is_tool_result(part)]
            yield Message(role, content_text(said))


def results_of(content: object) -> list[dict[str, Any]]:
    """What tools gave back, in the content of a message of Anthropic's API."""
    if not isinstance(content, list):
        return []
    return [part for part in content if _is_tool_result(part)]


def _is_tool_result(part: object) -> bool:
    return isinstance(part, dict) and part.get("type") == "tool_result"


def _items(items: object) -> Iterator[Message]:
    if isinstance(items, str):
        yield Message("user", items)
    elif isinstance(items, list):
        for item in items:
            yield from _item(item)


def _item(item: Mapping[str, Any]) -> Iterator[Message]:
    role, kind = item.get("role"), item.get("type")
    if isinstance(role, str):
        yield Message(_ROLES.get(role, "user"), content_text(item.get("content")))
    elif is_result(item):
        yield Message("tool", content_text(item.get("output")))
    elif isinstance(kind, str) and kind.endswith("_call"):
        text = call_text(item.get("name"), item.get("arguments", item.get("input")))
        if text:
            yield Message("assistant", text)


def _plain(given: object) -> Iterator[Message]:
    if isinstance(given, str):
        yield Message("user", given)
    elif isinstance(given, list):
        for part in given:
            if isinstance(part, str):
                yield Message("user", part)
