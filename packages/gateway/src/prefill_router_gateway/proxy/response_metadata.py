"""Reads an answer's id, token counts, tool calls and errors as it passes.

Streams of server-sent events are forwarded in whole lines, unchanged: half a line is useless, and
no error event could follow it.
"""

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any, TypeGuard, final

from prefill_router.endpoints import (
    ErrorBody,
    LineSplitter,
    MalformedError,
    Usage,
    estimate_tokens,
    forms_of_key,
    read_error,
    read_usage,
    without_key,
)
from prefill_router.targets import Endpoint
from prefill_router_gateway.answer_text import AnswerText
from prefill_router_gateway.errors import BrokenResponseError

_MOST_CALLS = 1000  # tool calls of one answer whose ids are remembered
_LONGEST_ID = 2**14  # characters; some gateways put a model's reasoning in the ids of tool calls
_DECODER = json.JSONDecoder()
_STRING = rb'"\s*+:\s*+"((?:[^"\\]++|\\.)*+)'  # possessive: backtracking costs a gigabyte
_TEXTS: dict[Endpoint, re.Pattern[bytes]] = {
    "chat": re.compile(rb'"(?:content|reasoning_content|reasoning|arguments)' + _STRING),
    "completions": re.compile(rb'"text' + _STRING),
    "responses": re.compile(rb'"(?:delta|text|arguments)' + _STRING),
    "messages": re.compile(rb'"(?:text|thinking|partial_json)' + _STRING),
}
_STILL_GOING = re.compile(rb'"type"\s*:\s*"[a-z_.]*\.delta"')
_ENDED = {"response.completed", "response.incomplete", "response.failed", "response.cancelled"}
_FAILED = {"response.failed", "response.cancelled"}
_PENDING = ("queued", "in_progress")


@final
class ResponseMetadata:
    """What has been read of one answer so far.

    Args:
        endpoint: The endpoint.
        secret: The target's key; ids that contain it are ignored.

    Attributes:
        response_id: Its id.
        error: An error within it.
        has_ended: Whether its end marker has arrived.
        has_reason: Whether its finish reason has arrived.
        output_bytes: The approximate bytes of its texts.
    """

    def __init__(self, endpoint: Endpoint, *, secret: str | None = None) -> None:
        self._endpoint, self._secret = endpoint, secret
        self._texts = _TEXTS.get(endpoint)
        self._reported: dict[str, Any] = {}
        self._is_pending = False
        self.response_id: str | None = None
        self._tool_calls: dict[str, None] = {}
        self.error: ErrorBody | None = None
        self.has_ended = False
        self.has_reason = False
        self.output_bytes = 0

    @property
    def tool_calls(self) -> tuple[str, ...]:
        """The ids of its tool calls, in order."""
        return tuple(self._tool_calls)

    @property
    def is_complete(self) -> bool:
        """Whether the answer has ended properly, without an error."""
        return (self.has_ended or self.has_reason) and self.error is None

    @property
    def has_output_count(self) -> bool:
        """Whether the output tokens were reported, as a number that can be read."""
        return read_usage(self._reported).output_tokens is not None

    def usage(self, *, input_tokens: int) -> tuple[Usage | None, bool]:
        """The token counts, and whether any of them are estimates.

        The counts are None for a background response, which hasn't been written yet.

        Args:
            input_tokens: Estimated input tokens of the request.
        """
        if self._is_pending and not self._reported:
            return None, True
        guess = estimate_tokens(self.output_bytes)
        if not self._reported:
            return Usage(input_tokens=input_tokens, output_tokens=guess), True
        usage = read_usage(self._reported)
        if self._endpoint == "embeddings" and usage.output_tokens is None:
            usage = replace(usage, output_tokens=0)  # embeddings have no output tokens
        read, written = usage.input_tokens, usage.output_tokens
        is_short = written is None or (written < guess and not self.is_complete)
        if read is not None and not is_short:
            return usage, False
        return (
            replace(
                usage,
                input_tokens=input_tokens if read is None else read,
                output_tokens=guess if is_short else written,
                reasoning_tokens=None if is_short else usage.reasoning_tokens,
            ),
            True,
        )

    def count(self, data: bytes) -> None:
        """Add the bytes of the texts in a piece of JSON."""
        if self._texts is not None:
            self.output_bytes += sum(map(len, self._texts.findall(data)))

    def count_event(self, data: bytes) -> None:
        """The same for an event, except Responses events that repeat earlier texts."""
        if self._endpoint != "responses" or _STILL_GOING.search(data):
            self.count(data)

    def take(self, value: Mapping[str, Any], *, named: bytes = b"") -> bool:
        """Read an answer, or an event of one.

        Args:
            value: Its JSON.
            named: The event's name.

        Returns:
            Whether it is an event with token counts and nothing else.
        """
        kind = value.get("type")
        if value.get("error") or named == b"error" or kind == "error":
            self.error = read_error(value)
        if self._endpoint == "responses":
            self._take_response(value, kind)
        elif self._endpoint == "messages":
            self._take_message(value, kind)
        else:
            return self._take_chunk(value)
        return False

    def take_end(self, body: bytes) -> None:
        """Read the token counts of an answer that is too long to parse."""
        _, _, last = body[body.rfind(b'"usage"') :].partition(b":")
        try:
            usage, _ = _DECODER.raw_decode(last.decode("utf-8", "replace").lstrip())
        except (ValueError, RecursionError):
            return
        self._report(usage)

    def _take_chunk(self, value: Mapping[str, Any]) -> bool:
        self._identify(value)
        choices = value.get("choices")
        for choice in _objects(choices):
            self.has_reason |= isinstance(choice.get("finish_reason"), str)
            for message in (choice.get("delta"), choice.get("message")):
                if isinstance(message, Mapping) and message.get("tool_calls"):
                    self._call(call.get("id") for call in _objects(message["tool_calls"]))
        return self._report(value.get("usage")) and choices == []

    def _take_response(self, value: Mapping[str, Any], kind: object) -> None:
        whole = value.get("response") if isinstance(kind, str) else value
        if isinstance(whole, Mapping):
            self._identify(whole)
            self._report(whole.get("usage"))
            self._is_pending = kind is None and whole.get("status") in _PENDING
        if kind in _ENDED:
            self.has_ended = True
        if kind in _FAILED:
            self.error = read_error(whole)
        for item in (value.get("item"), *_objects(value.get("output"))):
            if isinstance(item, Mapping) and item.get("type") == "function_call":
                self._call((item.get("call_id"),))

    def _take_message(self, value: Mapping[str, Any], kind: object) -> None:
        message = value.get("message") if kind == "message_start" else value
        if isinstance(message, Mapping) and kind in ("message_start", "message"):
            self._identify(message)
        for place in (message, value):
            if isinstance(place, Mapping):
                self._report(place.get("usage"))
        self.has_ended |= kind == "message_stop"
        for block in (value.get("content_block"), *_objects(value.get("content"))):
            if isinstance(block, Mapping) and block.get("type") == "tool_use":
                self._call((block.get("id"),))

    def _identify(self, value: Mapping[str, Any]) -> None:
        identity = value.get("id")
        if self.response_id is None and self._is_id(identity):
            self.response_id = identity

    def _report(self, usage: object) -> bool:
        if not isinstance(usage, Mapping) or not usage:
            return False
        self._reported |= {name: count for name, count in usage.items() if count is not None}
        return True

    def _call(self, ids: Iterable[object]) -> None:
        for identity in ids:
            if self._is_id(identity) and len(self._tool_calls) < _MOST_CALLS:
                self._tool_calls[identity] = None

    def _is_id(self, value: object) -> TypeGuard[str]:
        fits = isinstance(value, str) and 0 < len(value) <= _LONGEST_ID
        return fits and (self._secret is None or self._secret not in str(value))


def parsed(data: bytes) -> dict[str, Any] | None:
    """Parse one JSON object; None where the bytes aren't one."""
    try:
        value = json.loads(data)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def _objects(value: object) -> Iterator[Mapping[str, Any]]:
    if isinstance(value, list):
        yield from (item for item in value if isinstance(item, Mapping))


LONGEST_LINE = 2**26  # bytes; an image is sent in one
_MOST_FRAGMENT_BYTES = 2**20  # bytes of an object over several lines; longer ones aren't read
_DONE = b"[DONE]"
_CHUNKS = re.compile(  # the last part is anchored at the start: otherwise it takes quadratic time
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
SEQUENCE_NUMBER = re.compile(rb'"sequence_number"\s*:\s*(\d{1,15})')


def complete_lines(lines: LineSplitter, piece: bytes) -> bytes:
    """The whole lines of a stream that these bytes complete.

    Raises:
        BrokenResponseError: A line is too long.
    """
    try:
        return lines.feed(piece)
    except MalformedError:
        raise BrokenResponseError("malformed") from None


@final
class StreamObserver:
    """Reads one stream as it passes.

    Args:
        endpoint: The endpoint.
        leave_out_usage: Whether to drop the event that has only token counts.
        secret: The target's key.
        answer: Takes the answer's text; None where it isn't kept.

    Attributes:
        facts: What has been read.
        key_forms: The ways to write the target's key, none of which is forwarded.
        is_open: Whether an event other than an error has arrived.
        is_malformed: Whether the first event was unreadable.
    """

    def __init__(
        self,
        endpoint: Endpoint,
        *,
        leave_out_usage: bool,
        secret: str | None = None,
        answer: AnswerText | None = None,
    ) -> None:
        self._split = LineSplitter(LONGEST_LINE)
        self._answer = answer
        self.facts = ResponseMetadata(endpoint, secret=secret)
        self.key_forms = forms_of_key(secret)
        self.is_open = self.is_malformed = False
        self._telling = _TELLING.get(endpoint, _CHUNKS)
        self._leaves_out = leave_out_usage
        self._event = self._last = b""
        self._fragments: list[bytes] = []
        self._fragment_bytes = 0
        self._lines = 0  # lines of the current event
        self._swallows = False

    @property
    def sequence_number(self) -> int:
        """The number that the next event of a Responses stream would have."""
        match = SEQUENCE_NUMBER.search(self._last)
        return int(match[1]) + 1 if match else 0

    def feed(self, piece: bytes) -> bytes:
        """Take received bytes, and return the bytes to forward.

        Raises:
            BrokenResponseError: A line is too long.
        """
        whole = complete_lines(self._split, piece)
        if not whole:
            return b""
        lines = whole.split(b"\n")
        lines.pop()
        if self._swallows or (self._leaves_out and b'"usage"' in whole):
            whole = b"".join(line + b"\n" for line in lines if not self._is_left_out(line))
        else:
            for line in lines:
                self._line(line)
        return without_key(whole, self.key_forms)

    def close(self) -> bytes:
        """Return the remaining bytes to forward at the end of the stream."""
        rest = self._split.close()
        left_out = self._is_left_out(rest)
        self._line(b"")
        return b"" if left_out else without_key(rest, self.key_forms)

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
        """Read a line; returns whether it has only token counts."""
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
        """End the event, at a blank line."""
        if self._fragments:
            self._take(b"\n".join(self._fragments))
            self._fragments = []
            self.is_malformed |= not self.is_open and self.facts.error is None
        self._event, self._lines = b"", 0

    def _data(self, data: bytes) -> bool:
        if self._fragments:  # an object over several lines
            self._fragments.append(data)
            self._fragment_bytes += len(data) + 1
            if self._fragment_bytes > _MOST_FRAGMENT_BYTES:
                self._fragments = []
            return False
        if data == _DONE:
            self.facts.has_ended = True
            return False
        self._last = data
        self.facts.count_event(data)
        if self._answer is not None:
            self._answer.take_event(data)
        if self.is_open and self._event != b"error" and not self._telling.search(data):
            return False
        return self._take(data, hold=True)

    def _take(self, data: bytes, *, hold: bool = False) -> bool:
        value = parsed(data)
        if value is None:
            self._fragments = [data] if hold else []
            self._fragment_bytes = len(data)
            return False
        only_counts = self.facts.take(value, named=self._event)
        self.is_open |= self.facts.error is None
        return only_counts
