"""Server-sent events, each with one JSON object, parsed from the bytes of a stream.

Comments and other fields are skipped. Data spread over several lines is joined, as the
specification requires; an object that is complete on one line needs no blank line after it.
"""

import json
from typing import Any, NoReturn, final

DONE = b"[DONE]"
_LONGEST = 16 * 2**20  # bytes of one event; chunks of an answer usually have a few hundred
_DEEPEST = 100  # levels; deeper JSON can be parsed, but then neither traversed nor written


class MalformedError(ValueError):
    """The bytes violate the protocol; the message quotes none of them."""


def _no_constant(_: str) -> NoReturn:
    raise MalformedError("a number that JSON doesn't allow")


def _finite(text: str) -> float:
    value = float(text)
    if value - value != 0:
        raise MalformedError("a number too large")
    return value


_DECODER = json.JSONDecoder(parse_constant=_no_constant, parse_float=_finite)


def parse_object(data: bytes) -> dict[str, Any]:
    """Parse one JSON object.

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
    if not isinstance(value, dict):
        raise MalformedError("JSON that isn't an object")
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


@final
class EventReader:
    """Splits a stream into events.

    Attributes:
        done: Whether the closing `[DONE]` has arrived.
    """

    def __init__(self) -> None:
        self.done = False
        self._rest: list[bytes] = []
        self._rest_bytes = 0
        self._held: list[bytes] = []
        self._held_bytes = 0

    def feed(self, piece: bytes) -> list[dict[str, Any]]:
        """The events that these bytes complete.

        Raises:
            MalformedError: An event isn't a JSON object, or is too long.
        """
        found: list[dict[str, Any]] = []
        whole, end, rest = piece.rpartition(b"\n")
        if not end:
            self._keep(rest)
            return found
        if self._rest:
            whole = b"".join((*self._rest, whole))
            self._rest, self._rest_bytes = [], 0
        lines = whole.split(b"\n")
        self._keep(rest)
        for line in lines:
            if line:
                self._line(line.rstrip(b"\r"), found)
            else:
                self._end(found)
        return found

    def close(self) -> list[dict[str, Any]]:
        """The event that the end of the stream completes, if any.

        Raises:
            MalformedError: What is left isn't a JSON object.
        """
        return self.feed(b"\n\n")

    def _keep(self, piece: bytes) -> None:
        if piece:
            self._rest.append(piece)
            self._rest_bytes += len(piece)
            if self._rest_bytes > _LONGEST:
                raise MalformedError("an event without an end")

    def _line(self, line: bytes, found: list[dict[str, Any]]) -> None:
        if not line:
            self._end(found)
        elif line.startswith(b"data:"):
            data = line[5:].strip()
            if data == DONE:
                self.done = True
            elif not self._held and data.endswith(b"}"):
                self._take(data, found)
            elif data or self._held:
                self._hold(data)

    def _take(self, data: bytes, found: list[dict[str, Any]]) -> None:
        try:
            found.append(parse_object(data))
        except MalformedError:  # it may continue on the next line
            self._hold(data)

    def _hold(self, data: bytes) -> None:
        self._held.append(data)
        self._held_bytes += len(data) + 1
        if self._held_bytes > _LONGEST:
            raise MalformedError("an event without an end")

    def _end(self, found: list[dict[str, Any]]) -> None:
        if self._held:
            held, self._held, self._held_bytes = self._held, [], 0
            found.append(parse_object(b"\n".join(held)))
