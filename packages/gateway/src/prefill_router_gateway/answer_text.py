"""The text of an answer, read as it passes."""

import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, final

from prefill_router.targets import Endpoint
from prefill_router_gateway.repeatable import MOST_BYTES, TEXT_KINDS

_MOST_READ: Final = 2**20
"""The longest answer in one piece, in bytes, that is read for its text."""
_MOST_UNREAD: Final = 2**16
"""The most bytes of events that are kept before they are read."""
_MARKS: Mapping[Endpoint, bytes] = {
    "chat": b'"content"',
    "messages": b"text_delta",
    "responses": b"output_text.delta",
}
"""What an event that has text contains."""


@final
class AnswerText:
    """The text of one answer, taken as it passes and read when it is written, as far as possible.

    Args:
        endpoint: The endpoint; it must be one of those that `is_repeatable` accepts.
    """

    def __init__(self, endpoint: Endpoint) -> None:
        self._endpoint, self._mark = endpoint, _MARKS[endpoint]
        self.clear()

    @property
    def length(self) -> int:
        """The characters that were read, and the bytes that weren't yet."""
        return self._read_length + self._unread_length

    @property
    def text(self) -> str | None:
        """The text so far; None where it is too long, or the answer has more than text."""
        self._read()
        return "".join(self._pieces) if self._is_whole else None

    def clear(self) -> None:
        """Forget what was taken, since another target is asked."""
        self._pieces: list[str] = []
        self._unread: list[bytes] = []
        self._texts: Callable[[Endpoint, Any], Iterator[str]] = _delta
        self._read_length = self._unread_length = 0
        self._is_whole = True

    def drop(self) -> None:
        """Have no text, since the answer isn't whole, or more than text."""
        self.clear()
        self._is_whole = False

    def take(self, body: bytes) -> None:
        """Take an answer that isn't streamed."""
        self._unread, self._unread_length, self._texts = [body], len(body), _whole
        if len(body) > _MOST_READ:
            self.drop()

    def take_event(self, data: bytes) -> None:
        """Take the data of an event."""
        if self._is_whole and self._mark in data:
            self._unread.append(data)
            self._unread_length += len(data)
            if self._unread_length > _MOST_UNREAD:
                self._read()

    def _read(self) -> None:
        try:
            values = json.loads(b"[%s]" % b",".join(self._unread))
            texts = [text for value in values for text in self._texts(self._endpoint, value)]
        except (ValueError, TypeError, KeyError, IndexError, AttributeError, RecursionError):
            self.drop()
            return
        self._unread, self._unread_length = [], 0
        self._pieces += texts
        self._read_length += sum(map(len, texts))
        if self._read_length > MOST_BYTES:
            self.drop()


def _whole(endpoint: Endpoint, value: Mapping[str, Any]) -> Iterator[str]:
    """The texts of an answer; an error where it has anything else but reasoning."""
    if endpoint == "chat":
        yield from _contents(value["choices"][0]["message"]["content"])
    elif endpoint == "messages":
        yield from _contents(value["content"])
    else:
        for item in value["output"]:
            if item["type"] != "reasoning":
                yield from _contents(item["content"])


def _contents(content: Any) -> Iterator[str]:
    if isinstance(content, str):
        yield content
        return
    for part in content:
        if part["type"] in TEXT_KINDS:
            yield part["text"]
        elif part["type"] not in ("thinking", "redacted_thinking"):
            raise ValueError(part["type"])


def _delta(endpoint: Endpoint, event: Mapping[str, Any]) -> Iterator[str]:
    """The texts of an event of a stream."""
    if endpoint == "chat":
        for choice in event.get("choices") or ():
            content = (choice.get("delta") or {}).get("content")
            yield from () if content is None else _contents(content)
    elif endpoint == "messages":
        yield event["delta"]["text"]
    elif event["type"] == "response.output_text.delta":
        yield event["delta"]
