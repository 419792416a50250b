"""Looks at a stream of server-sent events in passing, and hands on its bytes as they came.

Only whole lines are handed on: half a line is of no use to anyone, and behind one no error event
could follow. A `PassthroughStream` reads nothing else of the stream.
"""

import re
from typing import final

from prefill_router.client.keys import forms_of_key, without_key
from prefill_router.gateway.proxy.call import BrokenResponseError
from prefill_router.gateway.proxy.response_metadata import ResponseMetadata, parsed
from prefill_router.targets import Endpoint

_LONGEST = 2**26  # bytes of a line; pictures come in one
_MOST_HELD = 2**20  # bytes of an object over several lines; nobody reads a longer one
_DONE = b"[DONE]"
_CHUNKS = re.compile(  # the last part begins nowhere but at the start: else its time is squared
    rb'"usage"\s*:\s*\{|"finish_reason"\s*:\s*"|"error"'
    rb'|\A(?>.*?"tool_calls").*?"id"\s*:\s*"',
    re.DOTALL,
)
_TELLING: dict[Endpoint, re.Pattern[bytes]] = {
    "responses": re.compile(
        rb'"type"\s*:\s*"(?:response\.(?:created|completed|incomplete|failed|cancelled'
        rb'|output_item\.added)|error)"'
    ),
    "messages": re.compile(
        rb'"type"\s*:\s*"(?:message_start|message_delta|message_stop|content_block_start|error)"'
    ),
}
_NUMBER = re.compile(rb'"sequence_number"\s*:\s*(\d{1,15})')


@final
class StreamObserver:
    """Looks at one stream.

    Args:
        endpoint: What was asked.
        leave_out_usage: Whether the event that only tells token counts isn't handed on.
        secret: The target's key.

    Attributes:
        facts: What was seen.
        is_open: Whether an event has come that is no error.
        is_malformed: Whether the first event was none that can be read.
    """

    def __init__(
        self, endpoint: Endpoint, *, leave_out_usage: bool, secret: str | None = None
    ) -> None:
        self.facts = ResponseMetadata(endpoint, secret=secret)
        self._key_forms = forms_of_key(secret)
        self.is_open = self.is_malformed = False
        self._telling = _TELLING.get(endpoint, _CHUNKS)
        self._leaves_out = leave_out_usage
        self._tail: list[bytes] = []
        self._tail_bytes = 0
        self._event = self._last = b""
        self._held: list[bytes] = []
        self._held_bytes = 0
        self._lines = 0  # of the present event
        self._swallows = False

    @property
    def sequence_number(self) -> int:
        """The number that the next event of a Responses stream would have."""
        found = _NUMBER.search(self._last)
        return int(found[1]) + 1 if found else 0

    def feed(self, piece: bytes) -> bytes:
        """What to hand on, now that this has come.

        Raises:
            BrokenResponseError: A line has no end.
        """
        cut = piece.rfind(b"\n") + 1
        if not cut:
            self._keep(piece)
            return b""
        whole = piece if cut == len(piece) else piece[:cut]
        if self._tail:
            whole = b"".join((*self._tail, whole))
            self._tail, self._tail_bytes = [], 0
        if cut < len(piece):
            self._keep(piece[cut:])
        lines = whole.split(b"\n")
        lines.pop()
        if self._swallows or (self._leaves_out and b'"usage"' in whole):
            whole = b"".join(line + b"\n" for line in lines if not self._is_left_out(line))
        else:
            for line in lines:
                self._line(line)
        return without_key(whole, self._key_forms)

    def close(self) -> bytes:
        """What is left to hand on where the stream has ended as streams do."""
        rest = b"".join(self._tail)
        self._tail = []
        left_out = self._is_left_out(rest)
        self._line(b"")
        return b"" if left_out else without_key(rest, self._key_forms)

    def _keep(self, piece: bytes) -> None:
        self._tail.append(piece)
        self._tail_bytes += len(piece)
        if self._tail_bytes > _LONGEST:
            raise BrokenResponseError("malformed")

    def _is_left_out(self, line: bytes) -> bool:
        if self._swallows:
            self._swallows = False
            if line in (b"", b"\r"):
                self._line(line)
                return True
        alone = self._lines == 0
        left_out = self._line(line) and self._leaves_out
        self._swallows = left_out and alone
        return left_out

    def _line(self, line: bytes) -> bool:
        """Look at a line; whether it only tells token counts."""
        if line.endswith(b"\r"):
            line = line[:-1]
        if not line:
            self._end()
            return False
        self._lines += 1
        if line.startswith(b"data:"):
            return self._data(line[5:].strip())
        if line.startswith(b"event:"):
            self._event = line[6:].strip()
        return False

    def _end(self) -> None:
        """A blank line: the event is over."""
        if self._held:
            self._take(b"\n".join(self._held))
            self._held = []
            self.is_malformed |= not self.is_open and self.facts.error is None
        self._event, self._lines = b"", 0

    def _data(self, data: bytes) -> bool:
        if self._held:  # an object over several lines
            self._held.append(data)
            self._held_bytes += len(data) + 1
            if self._held_bytes > _MOST_HELD:
                self._held = []
            return False
        if data == _DONE:
            self.facts.done = True
            return False
        self._last = data
        self.facts.count_event(data)
        if self.is_open and self._event != b"error" and not self._telling.search(data):
            return False
        return self._take(data, hold=True)

    def _take(self, data: bytes, *, hold: bool = False) -> bool:
        value = parsed(data)
        if value is None:
            self._held = [data] if hold else []
            self._held_bytes = len(data)
            return False
        only_counts = self.facts.take(value, named=self._event)
        self.is_open |= self.facts.error is None
        return only_counts


_LONGEST_LINE = 2**26  # bytes of a line, as in `watch`
_NAME = b'"sequence_number"'
_number = re.compile(rb'"sequence_number"\s*:\s*(\d{1,15})').match


@final
class PassthroughStream:
    """In place of a `StreamObserver`, where what an event says concerns nobody but the client.

    Args:
        facts: Told where the stream has come to its end.
        secret: What no line may quote; None for nothing.

    Attributes:
        facts: The same.
        sequence_number: The number that the next event of a Responses stream would have.
    """

    def __init__(self, facts: ResponseMetadata, *, secret: bytes | None = None) -> None:
        self.facts, self._secret = facts, secret
        self.sequence_number = 0
        self._tail: list[bytes] = []
        self._tail_bytes = 0

    def feed(self, piece: bytes) -> bytes:
        """What to hand on, now that this has come.

        Raises:
            BrokenResponseError: A line has no end, or quotes the secret.
        """
        cut = piece.rfind(b"\n") + 1
        whole = b"".join((*self._tail, piece[:cut])) if cut else b""
        if cut:
            self._tail, self._tail_bytes = [], 0
        self._tail.append(piece[cut:])
        self._tail_bytes += len(piece) - cut
        if self._tail_bytes > _LONGEST_LINE or (self._secret is not None and self._secret in whole):
            raise BrokenResponseError("malformed")
        found = _number(whole, whole.rfind(_NAME)) if _NAME in whole else None
        if found:
            self.sequence_number = int(found[1]) + 1
        return whole

    def close(self) -> bytes:
        """What is left to hand on where the stream has ended as streams do."""
        self.facts.done = True
        rest = b"".join(self._tail)
        return b"" if self._secret is not None and self._secret in rest else rest
