"""Reads one answer, streamed or whole, in any dialect.

The chunks of a stream are merged into what a plain reply would hold.
"""

import json
from array import array
from bisect import bisect_right
from collections.abc import Mapping
from typing import Any, final

from prefill_router.endpoints.error_body import ErrorBody, read_error
from prefill_router.endpoints.json_object import MalformedError
from prefill_router.endpoints.merged_object import MergedObject
from prefill_router.endpoints.reply import Reply
from prefill_router.endpoints.thinking import split_thinking
from prefill_router.endpoints.usage import Usage, read_usage
from prefill_router.targets import Dialect

_EVENT_FIELDS = frozenset(("choices", "model", "object", "usage"))
_CHOICE_FIELDS = frozenset(("delta", "finish_reason", "index", "message", "usage"))
_DELTA_FIELDS = frozenset(("content", "reasoning", "reasoning_content", "role"))
_ANSWERS = frozenset(("audio", "function_call", "refusal", "tool_calls"))
_LONGEST = 2**26  # characters of one answer


class ErrorEventError(Exception):
    """The endpoint sent an error in place of an answer; `error` is what it sent."""

    def __init__(self, error: ErrorBody) -> None:
        super().__init__("an error in place of an answer")
        self.error = error


@final
class ReplyReader:
    """Collects one answer as it arrives.

    Attributes:
        finish_reason: The finish reason, once given.
        is_empty: Whether nothing of an answer has arrived, not even reasoning.
        first_token: Clock time of the first token of any kind, in seconds; None if not streamed.
    """

    def __init__(self, dialect: Dialect) -> None:
        self.finish_reason: str | None = None
        self.is_empty = True
        self.first_token: float | None = None
        self._dialect: Dialect = dialect
        self._text: list[str] = []
        self._reasoning: list[str] = []
        self._details: list[str] = []
        self._length = 0
        self._lengths, self._moments = array("q"), array("d")
        self._model: str | None = None
        self._usage: Mapping[str, Any] | None = None
        self._other_fields = MergedObject()

    def take(self, event: Mapping[str, Any], at: float) -> None:
        """Take one chunk, or a plain reply.

        Raises:
            ErrorEventError: It reports an error.
            MalformedError: It isn't a valid chunk.
        """
        if event.get("error") or event.get("object") == "error" or event.get("type") == "error":
            raise ErrorEventError(read_error(event))
        self._model = _string(event.get("model")) or self._model
        self._take_usage(event.get("usage"))
        for name, value in event.items():
            if name not in _EVENT_FIELDS:
                self._other_fields.add(name, value)
        choices = event.get("choices")
        if choices is not None and not isinstance(choices, list):
            raise MalformedError("choices that aren't a list")
        for choice in choices or ():
            self._take_choice(_object(choice), at)

    def reply(self, *, began: float, ended: float, request_id: str | None = None) -> Reply:
        """The answer as far as it has arrived.

        Args:
            began: Clock time of the request, in seconds.
            ended: Clock time at which the last of it arrived, in seconds.
            request_id: The request id from the response headers.
        """
        text, reasoning, response = (
            "".join(self._text),
            "".join(self._reasoning or self._details),
            self._other_fields.plain(),
        )
        start = 0
        split = None if reasoning else split_thinking(text, self._dialect)
        if split is not None:
            reasoning, text, start = split
            response["reasoning_was_inline"] = True
        if request_id is not None:
            response["request_id"] = request_id
        return Reply(
            text=_without_surrogates(text),
            reasoning=_without_surrogates(reasoning),
            finish_reason=self.finish_reason,
            served_by=self._model,
            usage=Usage() if self._usage is None else read_usage(_without_surrogates(self._usage)),
            first_token_seconds=None if self.first_token is None else self.first_token - began,
            first_answer_seconds=self._since(began, start) if text else None,
            seconds=ended - began,
            response=_without_surrogates(response),
        )

    def _take_choice(self, choice: Mapping[str, Any], at: float) -> None:
        if choice.get("index"):  # only one answer is requested; others are kept unread
            self._other_fields.append("other_choices", choice)
            return
        self.finish_reason = _string(choice.get("finish_reason")) or self.finish_reason
        self._take_usage(choice.get("usage"))
        for name, value in choice.items():
            if name not in _CHOICE_FIELDS:
                self._other_fields.add(name, value)
        whole = choice.get("delta") is None and choice.get("message") is not None
        delta = _object(choice.get("message" if whole else "delta") or {})
        has_content = self._take_content(delta.get("content"), at)
        has_content |= self._take_reasoning(delta)
        for name, value in delta.items():
            if name not in _DELTA_FIELDS:
                self._other_fields.add(name, value)
                has_content |= bool(value) and name in _ANSWERS
        if has_content and self.is_empty:
            self.is_empty = False
            self.first_token = None if whole else at

    def _take_content(self, content: object, at: float) -> bool:
        if isinstance(content, str):
            return self._add_text(content, at)
        if content is None:
            return False
        if not isinstance(content, list):
            raise MalformedError("content that isn't text")
        part_flags = [self._take_part(_object(part), at) for part in content]
        return any(part_flags)

    def _take_part(self, part: Mapping[str, Any], at: float) -> bool:
        """Take one part of a content list: text, or reasoning, which may itself be a list."""
        if part.get("type") == "text":
            return self._add_text(_string(part.get("text")) or "", at)
        thoughts = part.get("thinking")
        if thoughts is None:
            self._other_fields.append("content_parts", part)
            return False
        pieces = thoughts if isinstance(thoughts, list) else [{"text": thoughts}]
        texts = [_string(_object(piece).get("text")) or "" for piece in pieces]
        self._reasoning += texts
        return any(texts)

    def _add_text(self, text: str, at: float) -> bool:
        if not text:
            return False
        self._grow(text)
        self._text.append(text)
        self._lengths.append(len(text) + (self._lengths[-1] if self._lengths else 0))
        self._moments.append(at)
        return True

    def _take_reasoning(self, delta: Mapping[str, Any]) -> bool:
        """Take reasoning from the first non-empty field; some servers send it in several."""
        text = _string(delta.get("reasoning_content")) or _string(delta.get("reasoning"))
        if text:
            self._grow(text)
            self._reasoning.append(text)
            return True
        details = delta.get("reasoning_details")
        if not details or not isinstance(details, list):
            return False
        parts = (_object(d) for d in details)
        texts = [_string(p.get("text")) or _string(p.get("summary")) or "" for p in parts]
        self._details += texts
        return any(texts)

    def _take_usage(self, usage: object) -> None:
        if isinstance(usage, Mapping) and usage:
            self._usage = usage

    def _grow(self, text: str) -> None:
        self._length += len(text)
        if self._length > _LONGEST:
            raise MalformedError("an answer without an end")

    def _since(self, began: float, start: int) -> float | None:
        """Seconds from the request to the character at `start`."""
        if self.first_token is None:
            return None
        place = bisect_right(self._lengths, start)
        return self._moments[place] - began if place < len(self._moments) else None


def _object(value: object) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise MalformedError("something that isn't an object")
    return value


def _string(value: object) -> str | None:
    return value if isinstance(value, str) and value else None


def _without_surrogates(value: Any) -> Any:
    """The value without lone surrogates; pairs that were split between chunks are joined."""
    try:
        json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        whole = json.dumps(value, ensure_ascii=False).encode("utf-16", "surrogatepass")
        return json.loads(whole.decode("utf-16", "replace"))
    return value
