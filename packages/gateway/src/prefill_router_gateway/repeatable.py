"""Which requests can be asked again: those of text alone that no provider is bound to."""

import json
from collections.abc import Mapping
from typing import Any, Final

from prefill_router.targets import Ability, Endpoint

MOST_BYTES: Final = 2**18
"""The longest body, in bytes, and the longest answer, in characters, that are kept."""
_INPUT: Mapping[Endpoint, str] = {"chat": "messages", "messages": "messages", "responses": "input"}
_BOUND: Final = (
    *("previous_response_id", "conversation", "prompt", "background", "container"),
    *("mcp_servers", "plugins", "web_search_options", "provider"),
)
"""Fields by which a request needs what is kept at one provider, or tools that run there, or says
which providers may have it."""
TEXT_KINDS: Final = ("text", "input_text", "output_text")
"""The kinds of parts that are text."""
_LEFT_OUT: Final = frozenset(
    (
        *("model", "models", "route", "stream", "stream_options", "store"),
        *("user", "safety_identifier", "metadata", "prompt_cache_key", "service_tier"),
    )
)
"""Fields that say where and how a request goes, or whom it is for, rather than what it asks."""


def is_repeatable(
    endpoint: Endpoint, value: Mapping[str, Any], needs: frozenset[Ability], *, size: int
) -> bool:
    """Whether any target can be asked a request again, since it is text alone.

    Not so with tools, tool results, images, other files or several answers, or where it continues
    something that one provider keeps, or says which providers may have it.

    Args:
        endpoint: The endpoint.
        value: The body's fields.
        needs: The abilities that its target needs.
        size: The body's size in bytes.
    """
    if size > MOST_BYTES or needs - {"json_schema"} or not _is_free(endpoint, value):
        return False
    turns = value[_INPUT[endpoint]]
    if not _is_text(value.get("system", "")) or not _is_text(value.get("instructions") or ""):
        return False
    if isinstance(turns, str):
        return True
    return bool(turns) and all("role" in turn and _is_text(turn.get("content")) for turn in turns)


def is_text_turn(endpoint: Endpoint, value: Mapping[str, Any], needs: frozenset[Ability]) -> bool:
    """Whether a turn can be judged by its texts: it has no images, audio or files, but tools.

    Args:
        endpoint: The endpoint.
        value: The body's fields.
        needs: The abilities that its target needs.
    """
    return not needs - {"tools", "json_schema"} and _is_free(endpoint, value)


def _is_free(endpoint: Endpoint, value: Mapping[str, Any]) -> bool:
    """Whether a request wants one answer, and nothing that is bound to a provider."""
    is_bound = any(value.get(name) for name in _BOUND)
    return endpoint in _INPUT and not is_bound and value.get("n") in (None, 1)


def _is_text(content: object) -> bool:
    if isinstance(content, list):
        return all(isinstance(p, Mapping) and p.get("type") in TEXT_KINDS for p in content)
    return isinstance(content, str)


def repeatable_body(body: bytes) -> dict[str, Any]:
    """The fields of a request that say what it asks.

    Raises:
        ValueError: It isn't JSON.
    """
    return {name: v for name, v in json.loads(body).items() if name not in _LEFT_OUT}
