"""A body for another model: its own bytes, but for the name of the model."""

import json
from collections.abc import Mapping
from typing import final

from prefill_router.gateway.protocol.walking import Fields, Span, read_fields_at

_ASKED = b'"include_usage":true'


@final
class Splicer:
    """Puts models' names into a body.

    Args:
        body: The body.
        text: The same, decoded.
        fields: What was read of it; it has a `model`.
        can_ask: Whether the body may come to ask for the token counts of a stream.

    Raises:
        UnreadableError: Its `stream_options` name a field twice.
    """

    def __init__(self, body: bytes, text: str, fields: Fields, *, can_ask: bool) -> None:
        self._body = body
        self._names = frozenset(fields.value)
        self._start, self._end = _in_bytes(body, text, fields.spans["model"])
        self._usage: tuple[int, int, bytes] | None = None
        if can_ask:
            span, put = _usage_edit(text, fields)
            self._usage = (*_in_bytes(body, text, span), put)

    def body_for(
        self, model: str, *, ask_usage: bool, further: Mapping[str, bytes] | None = None
    ) -> bytes:
        """The body with this model.

        Every byte but those of the model's name and of `stream_options` stays as it came, and
        further fields stand behind the name.

        Args:
            model: What the target calls itself.
            ask_usage: Whether it is to ask for the token counts of a stream, if it may.
            further: Fields, their values in JSON, that are added where the client sent none.
        """
        body, start, end = self._body, self._start, self._end
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
    """Bytes that a part of the text takes in the body."""
    start, end = _in_bytes(body, text, span)
    return end - start


def _in_bytes(body: bytes, text: str, span: Span) -> Span:
    start, end = span
    if len(body) == len(text):  # a byte a character
        return span
    first = len(text[:start].encode())
    return first, first + len(text[start:end].encode())


def _usage_edit(text: str, fields: Fields) -> tuple[Span, bytes]:
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
