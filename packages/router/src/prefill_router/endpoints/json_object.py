"""Reads JSON that an endpoint sent, strictly and within limits."""

import json
from typing import Any, NoReturn

_DEEPEST = 100  # levels; deeper JSON can be parsed, but then neither traversed nor written


class MalformedError(ValueError):
    """The bytes violate the protocol; the message quotes none of them."""


def _refuse_constant(_: str) -> NoReturn:
    raise MalformedError("a number that JSON doesn't allow")


def _parse_finite(text: str) -> float:
    value = float(text)
    if value - value != 0:
        raise MalformedError("a number too large")
    return value


_DECODER = json.JSONDecoder(parse_constant=_refuse_constant, parse_float=_parse_finite)


def parse_object(data: bytes) -> dict[str, Any]:
    """Parse one JSON object.

    Raises:
        MalformedError: It isn't one.
    """
    value = parse_json(data)
    if not isinstance(value, dict):
        raise MalformedError("JSON that isn't an object")
    return value


def parse_json(data: bytes) -> Any:
    """Parse one JSON value.

    Raises:
        MalformedError: It isn't one.
    """
    try:
        text = data.decode()
        value, end = _DECODER.raw_decode(text)
    except MalformedError:
        raise
    except (ValueError, RecursionError):  # also invalid UTF-8 and numbers with too many digits
        raise MalformedError("not JSON") from None
    if end != len(text):
        raise MalformedError("more than one JSON value")
    if data.count(b"{") + data.count(b"[") > _DEEPEST and _is_deep(value):
        raise MalformedError("JSON that is nested too deeply")
    return value


def _is_deep(value: Any) -> bool:
    level = [value]
    for _ in range(_DEEPEST):
        level = [
            part
            for item in level
            if isinstance(item, dict | list)
            for part in (item.values() if isinstance(item, dict) else item)
        ]
    return bool(level)
