"""A JSON object, with the place of each of its values in the text.

The values themselves are read by the standard library's decoder; only the outermost object is
walked here, so that one value can be replaced while every other byte stays as it came.
"""

import gc
import json
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NoReturn, final

Span = tuple[int, int]
"""Where a value begins and ends in the text, in characters."""

_LONG = 2**16  # bytes
_MOST_FIELDS = 1000
_SPACE = r"[ \t\n\r]*"
_space = re.compile(_SPACE).match
_plain_name = re.compile(rf'"([^"\\\x00-\x1f]*)"{_SPACE}:{_SPACE}').match
_next = re.compile(rf"{_SPACE}([,}}]){_SPACE}").match


@final
class UnreadableError(ValueError):
    """A text isn't one JSON object, or names a field twice; the message quotes no value."""


def _no_constant(_: str) -> NoReturn:
    raise UnreadableError("NaN or Infinity is written where a number is due, which JSON has not")


_read = json.JSONDecoder(parse_constant=_no_constant).raw_decode


@final
class Fields:
    """A JSON object, read.

    Attributes:
        value: Its fields.
        spans: Where the value of each stands.
        start: Just after the opening brace.
    """

    __slots__ = ("spans", "start", "value")

    def __init__(self, value: dict[str, Any], spans: Mapping[str, Span], start: int) -> None:
        self.value, self.spans, self.start = value, spans, start


@contextmanager
def without_collecting(body: bytes) -> Iterator[None]:
    """No garbage is looked for while a long body is read: JSON has no cycles.

    Its looking again and again through what was read so far would take ten times as long as the
    reading, and hold up everybody else.
    """
    pauses = len(body) > _LONG and gc.isenabled()
    if pauses:
        gc.disable()
    try:
        yield
    finally:
        if pauses:
            gc.enable()


def read_fields(text: str) -> Fields:
    """Read a text that is one JSON object.

    Raises:
        UnreadableError: It isn't, or names a field twice.
        RecursionError: It is nested too deeply.
    """
    start = _skip(text, 0)
    if text[start : start + 1] != "{":
        raise UnreadableError('it isn\'t a JSON object; send one, such as {"model": "auto"}')
    try:
        fields, end = read_fields_at(text, start)
    except UnreadableError:
        raise
    except json.JSONDecodeError as error:
        raise UnreadableError(f"it isn't JSON: {_told(error)}") from None
    except ValueError:  # the interpreter's limit of digits
        raise UnreadableError("a number in it has too many digits") from None
    if _skip(text, end) != len(text):
        raise UnreadableError(f"it goes on after its JSON object, from character {end}")
    return fields


def read_fields_at(text: str, start: int) -> tuple[Fields, int]:
    """Read the object whose opening brace is at `start`; and the place just after it.

    Raises:
        ValueError: As `read_fields`, or as the standard library's decoder.
        RecursionError: It is nested too deeply.
    """
    value: dict[str, Any] = {}
    spans: dict[str, Span] = {}
    at = _skip(text, start + 1)
    if text[at : at + 1] == "}":
        return Fields(value, spans, start + 1), at + 1
    while True:
        named = _plain_name(text, at)
        key, at = (named[1], named.end()) if named else _any_name(text, at)
        if key in value:
            raise UnreadableError(f"it names {_short(key)} twice; keep one of them")
        if len(value) == _MOST_FIELDS:
            raise UnreadableError(f"it has more than {_MOST_FIELDS} fields")
        value[key], end = _read(text, at)
        spans[key] = (at, end)
        mark = _next(text, end)
        if mark is None:
            raise json.JSONDecodeError("Expecting ',' delimiter", text, _skip(text, end))
        if mark[1] == "}":
            return Fields(value, spans, start + 1), mark.end(1)
        at = mark.end()


def _any_name(text: str, at: int) -> tuple[str, int]:
    if text[at : at + 1] != '"':
        raise json.JSONDecodeError("Expecting a field's name in double quotes", text, at)
    name, at = _read(text, at)  # it has escapes
    at = _skip(text, at)
    if text[at : at + 1] != ":":
        raise json.JSONDecodeError("Expecting ':' delimiter", text, at)
    return name, _skip(text, at + 1)


def _skip(text: str, at: int) -> int:
    found = _space(text, at)
    return at if found is None else found.end()


def _told(error: json.JSONDecodeError) -> str:
    return f"{error.msg} at line {error.lineno}, column {error.colno}"


def _short(key: str) -> str:
    return ascii(key) if len(key) <= 64 else "a field"
