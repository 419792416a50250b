"""What a request says about the conversation that it belongs to."""

import re
from collections.abc import Mapping
from typing import Any

from prefill_router.gateway.protocol.turns import is_result, results_of
from prefill_router.targets import Endpoint

_session_in = re.compile(r"""session(?:_?id)?["']?[\s:=_-]+["']?([0-9A-Za-z-]{8,128})""").search


def read_session_hint(endpoint: Endpoint, value: Mapping[str, Any]) -> str | None:
    """What the client itself calls the conversation; None where it doesn't.

    In this order: `metadata.session_id`; the `conversation` of the Responses API; the session that
    Anthropic's `metadata.user_id` holds, as some coding agents write it; `prompt_cache_key`, which
    names what shares a prompt cache, and so what a switch would throw away. `user`,
    `safety_identifier` and a `user_id` without a session name a person, who may hold many
    conversations at once, and are not taken.
    """
    metadata = value.get("metadata")
    told = metadata if isinstance(metadata, dict) else {}
    conversation = value.get("conversation") if endpoint == "responses" else None
    if isinstance(conversation, dict):
        conversation = conversation.get("id")
    user = told.get("user_id") if endpoint == "messages" else None
    found = _session_in(user) if isinstance(user, str) else None
    hints = (told.get("session_id"), conversation, found and found[1])
    for hint in (*hints, value.get("prompt_cache_key")):
        if isinstance(hint, str) and hint.strip():
            return hint
    return None


def read_loop(endpoint: Endpoint, value: Mapping[str, Any]) -> tuple[str, ...] | None:
    """The ids of the tool calls whose results end the request; None where no results end it."""
    if endpoint == "messages":
        return _of_message(value["messages"])
    if endpoint == "chat":
        return _of_last(value["messages"], "tool_call_id", responses=False)
    items = value.get("input")
    if endpoint == "responses" and isinstance(items, list):
        return _of_last(items, "call_id", responses=True)
    return None


def _of_last(turns: list[dict[str, Any]], name: str, *, responses: bool) -> tuple[str, ...] | None:
    ids: list[str] = []
    results = 0
    for turn in reversed(turns):
        if not (is_result(turn) if responses else turn["role"] in ("tool", "function")):
            break
        results += 1
        if isinstance(turn.get(name), str):
            ids.append(turn[name])
    return tuple(reversed(ids)) if results else None


def _of_message(turns: list[dict[str, Any]]) -> tuple[str, ...] | None:
    results = results_of(turns[-1].get("content")) if turns else []
    ids = [result.get("tool_use_id") for result in results]
    return tuple(name for name in ids if isinstance(name, str)) if results else None
