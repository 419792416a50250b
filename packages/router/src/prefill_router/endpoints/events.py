"""The lines and events of a streamed answer (server-sent events).

`LineSplitter` cuts received bytes into whole lines, unchanged; the gateway forwards them.
`EventReader` reads the events of these lines, each with one JSON object. Comments and other fields
are skipped. Data spread over several lines is joined, as the specification requires. An object that
is complete on one line needs no blank line after it.
"""

from typing import Any, final

from prefill_router.endpoints.json_object import MalformedError, parse_object

DONE = b"[DONE]"
_LONGEST = 16 * 2**20  # bytes of one line or event; chunks of an answer usually have a few hundred


@final
class LineSplitter:
    """Splits a stream into whole lines; an incomplete line is kept until its end arrives.

    Args:
        longest: The most bytes of a line.
    """

    def __init__(self, longest: int) -> None:
        self._longest = longest
        self._rest: list[bytes] = []
        self._rest_bytes = 0

    def feed(self, piece: bytes) -> bytes:
        """Take received bytes, and return the lines that they complete, with their ends.

        Raises:
            MalformedError: A line is too long.
        """
        cut = piece.rfind(b"\n") + 1
        whole = piece[:cut]
        if cut and self._rest:
            whole = b"".join((*self._rest, whole))
            self._rest, self._rest_bytes = [], 0
        if cut < len(piece):
            self._rest.append(piece[cut:])
            self._rest_bytes += len(piece) - cut
            if self._rest_bytes > self._longest:
                raise MalformedError("a line without an end")
        return whole

    def close(self) -> bytes:
        """Return the incomplete line at the end of the stream; empty if there is none."""
        rest, self._rest, self._rest_bytes = b"".join(self._rest), [], 0
        return rest


@final
class EventReader:
    """Splits a stream into events.

    Attributes:
        is_done: Whether the closing `[DONE]` has arrived.
    """

    def __init__(self) -> None:
        self.is_done = False
        self._lines = LineSplitter(_LONGEST)
        self._data: list[bytes] = []
        self._data_bytes = 0

    def feed(self, piece: bytes) -> list[dict[str, Any]]:
        """The events that these bytes complete.

        Raises:
            MalformedError: An event isn't a JSON object, or is too long.
        """
        events: list[dict[str, Any]] = []
        lines = self._lines.feed(piece).split(b"\n")
        lines.pop()  # empty: the last whole line ends with a line feed
        for line in lines:
            if line:
                self._read_line(line.rstrip(b"\r"), events)
            else:
                self._end_event(events)
        return events

    def close(self) -> list[dict[str, Any]]:
        """The event that the end of the stream completes, if any.

        Raises:
            MalformedError: What is left isn't a JSON object.
        """
        return self.feed(b"\n\n")

    def _read_line(self, line: bytes, events: list[dict[str, Any]]) -> None:
        if not line:
            self._end_event(events)
        elif line.startswith(b"data:"):
            data = line[5:].strip()
            if data == DONE:
                self.is_done = True
            elif not self._data and data.endswith(b"}"):
                self._read_data(data, events)
            elif data or self._data:
                self._hold_data(data)

    def _read_data(self, data: bytes, events: list[dict[str, Any]]) -> None:
        try:
            events.append(parse_object(data))
        except MalformedError:  # it may continue on the next line
            self._hold_data(data)

    def _hold_data(self, data: bytes) -> None:
        self._data.append(data)
        self._data_bytes += len(data) + 1
        if self._data_bytes > _LONGEST:
            raise MalformedError("an event without an end")

    def _end_event(self, events: list[dict[str, Any]]) -> None:
        if self._data:
            lines, self._data, self._data_bytes = self._data, [], 0
            events.append(parse_object(b"\n".join(lines)))
