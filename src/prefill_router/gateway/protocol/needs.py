"""What a target must be able to do to answer a request."""

from collections.abc import Mapping
from typing import Any

from prefill_router.gateway.protocol.content import MOST_DEEP
from prefill_router.gateway.protocol.turns import is_result
from prefill_router.targets import Ability, Endpoint

NOTHING: frozenset[Ability] = frozenset()
_PARTS: dict[str, Ability] = {
    "image_url": "images",
    "input_image": "images",
    "image": "images",
    "image_embeds": "images",
    "computer_screenshot": "images",
    "video_url": "images",  # the nearest there is: who can't see pictures sees no film
    "input_video": "images",
    "video": "images",
    "input_audio": "audio",
    "audio_url": "audio",
    "audio": "audio",
    "file": "files",
    "input_file": "files",
    "document": "files",
    "container_upload": "files",
    "tool_use": "tools",
    "tool_result": "tools",
}


def read_needs(endpoint: Endpoint, value: Mapping[str, Any]) -> frozenset[Ability]:
    """What the answer to this request takes, beside text.

    A document whose source is text counts as a file all the same: it is sent as one.
    """
    if endpoint in ("completions", "embeddings"):
        return NOTHING
    needs: set[Ability] = set()
    given = value.get("tools") or value.get("functions")
    if given or _is_forced(value.get("tool_choice")) or _is_forced(value.get("function_call")):
        needs.add("tools")
    if _has_schema(value):
        needs.add("json_schema")
    modalities = value.get("modalities")
    if isinstance(modalities, list) and "audio" in modalities:
        needs.add("audio")
    turns = value.get("input" if endpoint == "responses" else "messages")
    if isinstance(turns, list):
        for turn in turns:
            _add_of_turn(turn, needs)
    return frozenset(needs) if needs else NOTHING


def _is_forced(choice: object) -> bool:
    return choice is not None and choice != "none"


def _has_schema(value: Mapping[str, Any]) -> bool:
    for name in ("response_format", "output_format"):
        if _is_schema(value.get(name)):
            return True
    for name in ("text", "output_config"):
        part = value.get(name)
        if isinstance(part, dict) and _is_schema(part.get("format")):
            return True
    return False


def _is_schema(told: object) -> bool:
    return isinstance(told, dict) and told.get("type") == "json_schema"


def _add_of_turn(turn: Mapping[str, Any], needs: set[Ability]) -> None:
    content, role = turn.get("content"), turn.get("role")
    if role in ("tool", "function") or turn.get("tool_calls") or turn.get("function_call"):
        needs.add("tools")
    if isinstance(content, list):
        _add_of_parts(content, needs, 0)
    if role is None:  # an item of the Responses API
        kind, output = turn.get("type"), turn.get("output")
        if is_result(turn) or (isinstance(kind, str) and kind.endswith("_call")):
            needs.add("tools")
        _add_of_parts(output if isinstance(output, list) else [output], needs, 0)


def _add_of_parts(parts: list[Any], needs: set[Ability], deep: int) -> None:
    for part in parts:
        kind = part.get("type") if isinstance(part, dict) else None
        if kind == "text" or not isinstance(kind, str):
            continue
        if kind in _PARTS:
            needs.add(_PARTS[kind])
        for inner in (part.get("content"), _inside(part.get("source"))):
            if isinstance(inner, list) and deep < MOST_DEEP:
                _add_of_parts(inner, needs, deep + 1)


def _inside(source: object) -> object:
    return source.get("content") if isinstance(source, dict) else None
