"""Locates the values of a JSON object in its text, and replaces its model.

The values are parsed by the standard library's decoder; only the outermost object is traversed
here, so that one value, such as the model's name, can be replaced while every other byte stays
the same.
"""

import gc
import json
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NoReturn, final

Span = tuple[int, int]
"""The start and end of a value in the text, in characters."""

_LONG = 2**16  # bytes
_MOST_FIELDS = 1000
_SPACE = r"[ \t\n\r]*"
_space = re.compile(_SPACE).match
_plain_name = re.compile(rf'"([^"\\\x00-\x1f]*)"{_SPACE}:{_SPACE}').match
_next = re.compile(rf"{_SPACE}([,}}]){_SPACE}").match


@final
class UnreadableJsonError(ValueError):
    """A text isn't one JSON object, or repeats a field; the message quotes no value."""


def _no_constant(_: str) -> NoReturn:
    raise UnreadableJsonError("it has NaN or Infinity as a number, which JSON doesn't allow")


_read = json.JSONDecoder(parse_constant=_no_constant).raw_decode


@final
class JsonFields:
    """A parsed JSON object.

    Attributes:
        value: Its fields.
        spans: The span of each field's value.
        start: The position just after the opening brace.
    """

    __slots__ = ("spans", "start", "value")

    def __init__(self, value: dict[str, Any], spans: Mapping[str, Span], start: int) -> None:
        self.value, self.spans, self.start = value, spans, start


@contextmanager
def without_collecting(body: bytes) -> Iterator[None]:
    """Disable garbage collection while a long body is parsed: JSON has no cycles.

    Repeated collection during parsing would take ten times as long as the parsing itself, and
    delay all other requests.
    """
    pauses = len(body) > _LONG and gc.isenabled()
    if pauses:
        gc.disable()
    try:
        yield
    finally:
        if pauses:
            gc.enable()


def read_fields(text: str) -> JsonFields:
    """Read a text that is one JSON object.

    Raises:
        UnreadableJsonError: It isn't one JSON object, or repeats a field.
        RecursionError: It is nested too deeply.
    """
    start = _skip(text, 0)
    if text[start : start + 1] != "{":
        raise UnreadableJsonError('it isn\'t a JSON object; send one, like {"model": "auto"}')
    try:
        fields, end = read_fields_at(text, start)
    except UnreadableJsonError:
        raise
    except json.JSONDecodeError as error:
        raise UnreadableJsonError(
            f"it isn't JSON: {error.msg} at line {error.lineno}, column {error.colno}"
        ) from None
    except ValueError:  # the interpreter's limit of digits
        raise UnreadableJsonError("a number in it has too many digits") from None
    if _skip(text, end) != len(text):
        raise UnreadableJsonError(f"it has more after its JSON object, at character {end}")
    return fields


def read_fields_at(text: str, start: int) -> tuple[JsonFields, int]:
    """Read the object with its opening brace at `start`; also returns the position just after it.

    Raises:
        ValueError: As for `read_fields`, or from the standard library's decoder.
        RecursionError: It is nested too deeply.
    """
    value: dict[str, Any] = {}
    spans: dict[str, Span] = {}
    at = _skip(text, start + 1)
    if text[at : at + 1] == "}":
        return JsonFields(value, spans, start + 1), at + 1
    while True:
        named = _plain_name(text, at)
        key, at = (named[1], named.end()) if named else _any_name(text, at)
        if key in value:
            name = ascii(key) if len(key) <= 64 else "a field"
            raise UnreadableJsonError(f"it has {name} twice; keep one of them")
        if len(value) == _MOST_FIELDS:
            raise UnreadableJsonError(f"it has more than {_MOST_FIELDS} fields")
        value[key], end = _read(text, at)
        spans[key] = (at, end)
        mark = _next(text, end)
        if mark is None:
            raise json.JSONDecodeError("Expecting ',' delimiter", text, _skip(text, end))
        if mark[1] == "}":
            return JsonFields(value, spans, start + 1), mark.end(1)
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


_ASKED = b'"include_usage":true'


@final
class Splicer:
    """Replaces the model's name in a body.

    Args:
        body: The body.
        text: The body, decoded.
        fields: Its parsed fields; one of them is `model`.
        can_ask: Whether a request for the token counts of a stream may be added.

    Attributes:
        body: The body.

    Raises:
        UnreadableJsonError: Its `stream_options` repeat a field.
    """

    def __init__(self, body: bytes, text: str, fields: JsonFields, *, can_ask: bool) -> None:
        self.body = body
        self._names = frozenset(fields.value)
        self._start, self._end = _in_bytes(body, text, fields.spans["model"])
        self._usage: tuple[int, int, bytes] | None = None
        if can_ask:
            span, put = _usage_edit(text, fields)
            self._usage = (*_in_bytes(body, text, span), put)

    def body_for(
        self, model: str, *, ask_usage: bool, further: Mapping[str, bytes] | None = None
    ) -> bytes:
        """The body with another model.

        Every byte but those of the model's name and of `stream_options` stays the same; further
        fields are inserted after the name.

        Args:
            model: The target's own model name.
            ask_usage: Whether to request the token counts of a stream, if `can_ask`.
            further: Fields that are added where the client sent none, with JSON values.
        """
        body, start, end = self.body, self._start, self._end
        name = json.dumps(model).encode()
        for added, value in (further or {}).items():
            if added not in self._names:
                name += b"," + json.dumps(added).encode() + b":" + value
        if self._usage is None or not ask_usage:
            return b"".join((body[:start], name, body[end:]))
        first, last, put = self._usage
        if first >= end:
            return b"".join((body[:start], name, body[end:first], put, body[last:]))
        return b"".join((body[:first], put, body[last:start], name, body[end:]))


def size_in_bytes(body: bytes, text: str, span: Span) -> int:
    """The size in bytes of a part of the text."""
    start, end = _in_bytes(body, text, span)
    return end - start


def _in_bytes(body: bytes, text: str, span: Span) -> Span:
    start, end = span
    if len(body) == len(text):  # one byte per character
        return span
    first = len(text[:start].encode())
    return first, first + len(text[start:end].encode())


def _usage_edit(text: str, fields: JsonFields) -> tuple[Span, bytes]:
    if "stream_options" not in fields.spans:
        after = fields.spans["model"][1]
        return (after, after), b',"stream_options":{' + _ASKED + b"}"
    start, end = fields.spans["stream_options"]
    if text[start] != "{":  # null
        return (start, end), b"{" + _ASKED + b"}"
    inner, _ = read_fields_at(text, start)
    if "include_usage" in inner.spans:
        return inner.spans["include_usage"], b"true"
    return (inner.start, inner.start), _ASKED + (b"," if inner.value else b"")
