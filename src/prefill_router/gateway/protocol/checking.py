"""Whether the fields that the gateway reads are of the kinds they should be.

What it doesn't read goes on to the target unchecked, so that new fields need no new gateway.
"""

import json
import re
from collections.abc import Mapping
from types import NoneType
from typing import Any

from prefill_router.gateway.refusal import RefusalError
from prefill_router.targets import Endpoint

_FLAG = (bool, NoneType)
_CONTENT = (str, list, NoneType)
_MOST_TOKENS = 10**9
_LIMITS = ("max_completion_tokens", "max_tokens", "max_output_tokens")
_escaped_surrogate = re.compile(rb"\\u[dD][89a-fA-F]").search
_INPUT: dict[Endpoint, str] = {
    "chat": "messages",
    "messages": "messages",
    "responses": "input",
    "completions": "prompt",
    "embeddings": "input",
}
"""The field of each endpoint that holds what is asked."""


def check_fields(endpoint: Endpoint, value: Mapping[str, Any]) -> None:
    """Check the fields that the gateway reads.

    Raises:
        RefusalError: One of them is missing, or isn't of its kind.
    """
    _check_model(value.get("model"))
    if not isinstance(value.get("stream"), _FLAG):
        raise _wrong("stream", "true or false")
    options = value.get("stream_options")
    if options is not None:
        if not isinstance(options, dict):
            raise _wrong("stream_options", "an object")
        if not isinstance(options.get("include_usage"), _FLAG):
            raise _wrong("stream_options.include_usage", "true or false")
    field = _INPUT[endpoint]
    given = value.get(field)
    if field == "messages":
        _check_turns(given)
    elif not isinstance(given, _CONTENT):
        raise _wrong(field, "a text or a list")
    elif endpoint == "responses":
        _check_items(given)
    if not isinstance(value.get("previous_response_id"), str | None):
        raise _wrong("previous_response_id", "a text")


def read_limit(value: Mapping[str, Any]) -> int | None:
    """At most how many tokens the answer may have; None where nothing says so.

    What is below 1 says nothing: some servers take -1 for no limit. More than a billion is given as
    a billion.

    Raises:
        RefusalError: A limit isn't a whole number.
    """
    for name in _LIMITS:
        limit = value.get(name)
        if limit is None:
            continue
        if isinstance(limit, bool) or not isinstance(limit, int | float) or limit % 1 != 0:
            raise _wrong(name, "a whole number")
        return min(int(limit), _MOST_TOKENS) if limit >= 1 else None
    return None


def has_lone_surrogate(body: bytes, value: Mapping[str, Any]) -> bool:
    r"""Whether a text in it has half a character, written as an escape such as `\ud800`.

    Raises:
        RecursionError: It is nested too deeply.
    """
    if _escaped_surrogate(body) is None:
        return False
    try:
        json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        return True
    return False


def _check_model(model: object) -> None:
    if model is None:
        raise RefusalError(
            'the request names no model; send "model": "auto", or a target\'s name', param="model"
        )
    if not isinstance(model, str):
        raise _wrong("model", 'a text, such as "auto"')
    if not model.strip():
        raise RefusalError(
            'the model\'s name is empty; send "model": "auto", or a target\'s name', param="model"
        )


def _check_turns(turns: object) -> None:
    if not isinstance(turns, list):
        raise _wrong("messages", "a list of messages")
    for i, turn in enumerate(turns):
        if not isinstance(turn, dict):
            raise _wrong(f"messages[{i}]", "an object with role and content")
        if not isinstance(turn.get("role"), str):
            raise _wrong(f"messages[{i}].role", "a text, such as user")
        if not isinstance(turn.get("content"), _CONTENT):
            raise _wrong(f"messages[{i}].content", "a text or a list of parts")


def _check_items(items: object) -> None:
    if isinstance(items, list):
        for i, item in enumerate(items):
            if not isinstance(item, dict):
                raise _wrong(f"input[{i}]", "an object")


def _wrong(field: str, due: str) -> RefusalError:
    return RefusalError(f"{field} must be {due}", param=field)
