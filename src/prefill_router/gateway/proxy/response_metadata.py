"""What is read of an answer in passing: its id, its token counts, its tool calls, its error."""

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any, TypeGuard, final

from prefill_router.client import ErrorBody, Usage, read_error, read_usage
from prefill_router.targets import Endpoint

_BYTES_PER_TOKEN = 4
_MOST_CALLS = 1000  # tool calls of one answer whose ids are remembered
_LONGEST_ID = 2**14  # characters; some gateways put a model's thoughts in the ids of tool calls
_DECODER = json.JSONDecoder()
_STRING = rb'"\s*+:\s*+"((?:[^"\\]++|\\.)*+)'  # possessive: trying again costs a gigabyte
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
    """What is known of one answer so far.

    Args:
        endpoint: What was asked.
        secret: The target's key; an id that quotes it isn't remembered.

    Attributes:
        response_id: Its id.
        error: The error that it holds.
        done: Whether the mark that ends it has come.
        has_reason: Whether the reason of its end has.
        output_bytes: Roughly, those of its texts.
    """

    def __init__(self, endpoint: Endpoint, *, secret: str | None = None) -> None:
        self._endpoint, self._secret = endpoint, secret
        self._texts = _TEXTS.get(endpoint)
        self._reported: dict[str, Any] = {}
        self._is_pending = False
        self.response_id: str | None = None
        self._tool_calls: dict[str, None] = {}
        self.error: ErrorBody | None = None
        self.done = False
        self.has_reason = False
        self.output_bytes = 0

    @property
    def tool_calls(self) -> tuple[str, ...]:
        """Ids of its tool calls, in order."""
        return tuple(self._tool_calls)

    @property
    def is_complete(self) -> bool:
        """Whether the answer has ended as answers do."""
        return (self.done or self.has_reason) and self.error is None

    @property
    def has_usage(self) -> bool:
        """Whether token counts were reported."""
        return bool(self._reported)

    def usage(self, *, input_tokens: int) -> tuple[Usage | None, bool]:
        """Token counts, and whether they, or some of them, are estimates.

        None for a response that goes on in the background: nothing is known of it yet.

        Args:
            input_tokens: Of the request, estimated.
        """
        if self._is_pending and not self._reported:
            return None, True
        guess = -(-self.output_bytes // _BYTES_PER_TOKEN)
        if not self._reported:
            return Usage(input_tokens=input_tokens, output_tokens=guess), True
        usage = read_usage(self._reported)
        if self._endpoint == "embeddings" and usage.output_tokens is None:
            usage = replace(usage, output_tokens=0)  # nothing is written
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
        """Count the texts in a piece of JSON."""
        if self._texts is not None:
            self.output_bytes += sum(map(len, self._texts.findall(data)))

    def count_event(self, data: bytes) -> None:
        """The same for an event; those of Responses that repeat what has come don't count."""
        if self._endpoint != "responses" or _STILL_GOING.search(data):
            self.count(data)

    def take(self, value: Mapping[str, Any], *, named: bytes = b"") -> bool:
        """Read an answer, or an event of one.

        Args:
            value: Its JSON.
            named: The name of the event.

        Returns:
            Whether it is an event that tells token counts and nothing else.
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
        """Read the token counts of an answer that is too long to be parsed."""
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
            for said in (choice.get("delta"), choice.get("message")):
                if isinstance(said, Mapping) and said.get("tool_calls"):
                    self._call(call.get("id") for call in _objects(said["tool_calls"]))
        return self._report(value.get("usage")) and choices == []

    def _take_response(self, value: Mapping[str, Any], kind: object) -> None:
        whole = value.get("response") if isinstance(kind, str) else value
        if isinstance(whole, Mapping):
            self._identify(whole)
            self._report(whole.get("usage"))
            self._is_pending = kind is None and whole.get("status") in _PENDING
        if kind in _ENDED:
            self.done = True
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
        self.done |= kind == "message_stop"
        for block in (value.get("content_block"), *_objects(value.get("content"))):
            if isinstance(block, Mapping) and block.get("type") == "tool_use":
                self._call((block.get("id"),))

    def _identify(self, value: Mapping[str, Any]) -> None:
        found = value.get("id")
        if self.response_id is None and self._is_id(found):
            self.response_id = found

    def _report(self, usage: object) -> bool:
        if not isinstance(usage, Mapping) or not usage:
            return False
        self._reported |= {name: count for name, count in usage.items() if count is not None}
        return True

    def _call(self, ids: Iterable[object]) -> None:
        for found in ids:
            if self._is_id(found) and len(self._tool_calls) < _MOST_CALLS:
                self._tool_calls[found] = None

    def _is_id(self, found: object) -> TypeGuard[str]:
        fits = isinstance(found, str) and 0 < len(found) <= _LONGEST_ID
        return fits and (self._secret is None or self._secret not in str(found))


def parsed(data: bytes) -> dict[str, Any] | None:
    """One JSON object; None where these bytes aren't one."""
    try:
        value = json.loads(data)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def _objects(value: object) -> Iterator[Mapping[str, Any]]:
    if isinstance(value, list):
        yield from (item for item in value if isinstance(item, Mapping))
