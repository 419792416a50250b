"""Sampled requests: which can be asked again of another target, and the text of their answers."""

import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, final

from prefill_router.targets import Ability, Endpoint

MOST_BYTES: Final = 2**18
"""The longest body, in bytes, and the longest answer, in characters, that are kept."""
_MOST_READ: Final = 2**20
"""The longest answer in one piece, in bytes, that is read for its text."""
_MOST_UNREAD: Final = 2**16
"""The most bytes of events that are kept before they are read."""
_INPUT: Mapping[Endpoint, str] = {"chat": "messages", "messages": "messages", "responses": "input"}
_BOUND: Final = (
    *("previous_response_id", "conversation", "prompt", "background", "container"),
    *("mcp_servers", "plugins", "web_search_options", "provider"),
)
"""Fields by which a request needs what is kept at one provider, or tools that run there, or says
which providers may have it."""
_LEFT_OUT: Final = frozenset(
    (
        *("model", "models", "route", "stream", "stream_options", "store"),
        *("user", "safety_identifier", "metadata", "prompt_cache_key", "service_tier"),
    )
)
"""Fields that say where and how a request goes, or whom it is for, rather than what it asks."""
_TEXTS: Final = ("text", "input_text", "output_text")
_MARKS: Mapping[Endpoint, bytes] = {
    "chat": b'"content"',
    "messages": b"text_delta",
    "responses": b"output_text.delta",
}
"""What an event that has text contains."""


def is_repeatable(
    endpoint: Endpoint, value: Mapping[str, Any], needs: frozenset[Ability], *, size: int
) -> bool:
    """Whether any target can be asked a request again, since it is text alone.

    Not so with tools, tool results, images, other files or several answers, or where it continues
    something that one provider keeps, or says which providers may have it.

    Args:
        endpoint: The endpoint.
        value: The body's fields.
        needs: The abilities that its target needs.
        size: The body's size in bytes.
    """
    if endpoint not in _INPUT or size > MOST_BYTES or needs - {"json_schema"}:
        return False
    if any(value.get(name) for name in _BOUND) or value.get("n") not in (None, 1):
        return False
    turns = value[_INPUT[endpoint]]
    if not _is_text(value.get("system", "")) or not _is_text(value.get("instructions") or ""):
        return False
    if isinstance(turns, str):
        return True
    return bool(turns) and all("role" in turn and _is_text(turn.get("content")) for turn in turns)


def _is_text(content: object) -> bool:
    if isinstance(content, list):
        return all(isinstance(p, Mapping) and p.get("type") in _TEXTS for p in content)
    return isinstance(content, str)


def repeatable_body(body: bytes) -> dict[str, Any]:
    """The fields of a request that say what it asks.

    Raises:
        ValueError: It isn't JSON.
    """
    return {name: v for name, v in json.loads(body).items() if name not in _LEFT_OUT}


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
            found = [text for value in values for text in self._texts(self._endpoint, value)]
        except (ValueError, TypeError, KeyError, IndexError, AttributeError, RecursionError):
            self.drop()
            return
        self._unread, self._unread_length = [], 0
        self._pieces += found
        self._read_length += sum(map(len, found))
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
        if part["type"] in _TEXTS:
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
