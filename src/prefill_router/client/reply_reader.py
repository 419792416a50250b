"""Reads one answer, chunk by chunk or in one piece, whatever its dialect.

The pieces of a stream are joined to what a plain reply would have held. Reasoning can come inside
the answer's text, between <think> and </think>: so write models behind servers without a reasoning
parser. Where the chat template has already written the opening tag, only the closing one comes
back; it is looked for only behind servers of open models, since elsewhere an answer may well speak
of the tag.
"""

import json
from array import array
from bisect import bisect_right
from collections.abc import Mapping
from typing import Any, NamedTuple, final

from prefill_router.client.failures import ErrorBody, read_error
from prefill_router.client.reply import Reply, Usage, read_usage
from prefill_router.client.sse import MalformedError
from prefill_router.targets import TRAITS, Dialect

_EVENT_FIELDS = frozenset(("choices", "model", "object", "usage"))
_CHOICE_FIELDS = frozenset(("delta", "finish_reason", "index", "message", "usage"))
_DELTA_FIELDS = frozenset(("content", "reasoning", "reasoning_content", "role"))
_ANSWERS = frozenset(("audio", "function_call", "refusal", "tool_calls"))
_LONGEST = 2**26  # characters of one answer


class ErrorEventError(Exception):
    """The endpoint told of an error where it should have answered; carries what it told."""

    def __init__(self, error: ErrorBody) -> None:
        super().__init__("an error in place of an answer")
        self.error = error


@final
class ReplyReader:
    """What has come of one answer so far.

    Attributes:
        finish_reason: As given.
        is_empty: Whether nothing of an answer has come, not even reasoning.
        first_token: The moment of the first token of any kind; None where they came in one piece.
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
        self._kept = MergedObject()

    def take(self, event: Mapping[str, Any], at: float) -> None:
        """Take one chunk, or a plain reply.

        Raises:
            ErrorEventError: It tells of an error.
            MalformedError: It isn't what chunks are like.
        """
        if event.get("error") or event.get("object") == "error" or event.get("type") == "error":
            raise ErrorEventError(read_error(event))
        self._model = _string(event.get("model")) or self._model
        self._take_usage(event.get("usage"))
        for name, value in event.items():
            if name not in _EVENT_FIELDS:
                self._kept.add(name, value)
        choices = event.get("choices")
        if choices is not None and not isinstance(choices, list):
            raise MalformedError("choices that are no list")
        for choice in choices or ():
            self._take_choice(_object(choice), at)

    def reply(self, *, began: float, ended: float, request_id: str | None = None) -> Reply:
        """The answer as far as it has come.

        Args:
            began: The moment of the request.
            ended: The moment when the last of it came.
            request_id: As the reply's headers have it.
        """
        text, reasoning, kept = (
            "".join(self._text),
            "".join(self._reasoning or self._details),
            self._kept.plain(),
        )
        start = 0
        split = None if reasoning else split_thinking(text, self._dialect)
        if split is not None:
            reasoning, text, start = split
            kept["reasoning_was_inline"] = True
        if request_id is not None:
            kept["request_id"] = request_id
        return Reply(
            text=_without_surrogates(text),
            reasoning=_without_surrogates(reasoning),
            finish_reason=self.finish_reason,
            served_by=self._model,
            usage=Usage() if self._usage is None else read_usage(_without_surrogates(self._usage)),
            first_token_seconds=None if self.first_token is None else self.first_token - began,
            first_answer_seconds=self._since(began, start) if text else None,
            seconds=ended - began,
            response=_without_surrogates(kept),
        )

    def _take_choice(self, choice: Mapping[str, Any], at: float) -> None:
        if choice.get("index"):  # only one answer is asked for; more are kept as they are
            self._kept.append("other_choices", choice)
            return
        self.finish_reason = _string(choice.get("finish_reason")) or self.finish_reason
        self._take_usage(choice.get("usage"))
        for name, value in choice.items():
            if name not in _CHOICE_FIELDS:
                self._kept.add(name, value)
        whole = choice.get("delta") is None and choice.get("message") is not None
        delta = _object(choice.get("message" if whole else "delta") or {})
        came = self._take_content(delta.get("content"), at)
        came |= self._take_reasoning(delta)
        for name, value in delta.items():
            if name not in _DELTA_FIELDS:
                self._kept.add(name, value)
                came |= bool(value) and name in _ANSWERS
        if came and self.is_empty:
            self.is_empty = False
            self.first_token = None if whole else at

    def _take_content(self, content: object, at: float) -> bool:
        if isinstance(content, str):
            return self._add_text(content, at)
        if content is None:
            return False
        if not isinstance(content, list):
            raise MalformedError("content that is no text")
        came = [self._take_part(_object(part), at) for part in content]
        return any(came)

    def _take_part(self, part: Mapping[str, Any], at: float) -> bool:
        """One part of content that is a list: text, or reasoning, itself perhaps in parts."""
        if part.get("type") == "text":
            return self._add_text(_string(part.get("text")) or "", at)
        thoughts = part.get("thinking")
        if thoughts is None:
            self._kept.append("content_parts", part)
            return False
        pieces = thoughts if isinstance(thoughts, list) else [{"text": thoughts}]
        found = [_string(_object(piece).get("text")) or "" for piece in pieces]
        self._reasoning += found
        return any(found)

    def _add_text(self, text: str, at: float) -> bool:
        if not text:
            return False
        self._grow(text)
        self._text.append(text)
        self._lengths.append(len(text) + (self._lengths[-1] if self._lengths else 0))
        self._moments.append(at)
        return True

    def _take_reasoning(self, delta: Mapping[str, Any]) -> bool:
        """Reasoning under the first of its names that has some; some servers repeat it."""
        text = _string(delta.get("reasoning_content")) or _string(delta.get("reasoning"))
        if text:
            self._grow(text)
            self._reasoning.append(text)
            return True
        details = delta.get("reasoning_details")
        if not details or not isinstance(details, list):
            return False
        parts = (_object(d) for d in details)
        found = [_string(p.get("text")) or _string(p.get("summary")) or "" for p in parts]
        self._details += found
        return any(found)

    def _take_usage(self, usage: object) -> None:
        if isinstance(usage, Mapping) and usage:
            self._usage = usage

    def _grow(self, text: str) -> None:
        self._length += len(text)
        if self._length > _LONGEST:
            raise MalformedError("an answer without an end")

    def _since(self, began: float, start: int) -> float | None:
        """When the character at `start` came."""
        if self.first_token is None:
            return None
        place = bisect_right(self._lengths, start)
        return self._moments[place] - began if place < len(self._moments) else None


def _object(value: object) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise MalformedError("something that is no object")
    return value


def _string(value: object) -> str | None:
    return value if isinstance(value, str) and value else None


def _without_surrogates(value: Any) -> Any:
    """The same without lone surrogates; pairs that came in two chunks are joined."""
    try:
        json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        whole = json.dumps(value, ensure_ascii=False).encode("utf-16", "surrogatepass")
        return json.loads(whole.decode("utf-16", "replace"))
    return value


_GROWING = frozenset(("arguments", "refusal", "summary", "text", "thinking"))
"""Fields whose pieces follow on one another; of others the last word counts."""


@final
class MergedObject:
    """An object that came in pieces.

    Lists of objects with an `index`, such as tool calls, are joined by it; other lists grow.
    """

    def __init__(self) -> None:
        self._texts: dict[str, list[str]] = {}
        self._objects: dict[str, MergedObject] = {}
        self._indexed: dict[str, dict[int, MergedObject]] = {}
        self._lists: dict[str, list[Any]] = {}
        self._last: dict[str, Any] = {}

    def add(self, name: str, value: Any) -> None:
        """Add one piece of a field; null says nothing."""
        if value is None:
            return
        if isinstance(value, str | int):
            if name in _GROWING and isinstance(value, str):
                self._texts.setdefault(name, []).append(value)
            else:
                self._last[name] = value
        elif isinstance(value, list):
            for place, item in enumerate(value):
                self._add_item(name, item, place)
        elif isinstance(value, Mapping):
            self._objects.setdefault(name, MergedObject()).add_all(value)
        else:
            self._last[name] = value

    def add_all(self, fields: Mapping[str, Any]) -> None:
        """Add one piece of every field."""
        for name, value in fields.items():
            self.add(name, value)

    def append(self, name: str, value: Any) -> None:
        """Add one item to a list, as it is."""
        self._lists.setdefault(name, []).append(value)

    def plain(self) -> dict[str, Any]:
        """The whole object."""
        return {
            **self._last,
            **{name: "".join(pieces) for name, pieces in self._texts.items()},
            **self._lists,
            **{name: merged.plain() for name, merged in self._objects.items()},
            **{
                name: [merged.plain() for _, merged in sorted(items.items())]
                for name, items in self._indexed.items()
            },
        }

    def _add_item(self, name: str, item: Any, place: int) -> None:
        index = item.get("index") if isinstance(item, Mapping) else None
        if name == "tool_calls" and index is None and isinstance(item, Mapping):
            index = place  # a plain reply numbers none
        if isinstance(index, int):
            items = self._indexed.setdefault(name, {})
            items.setdefault(index, MergedObject()).add_all(item)
        else:
            self.append(name, item)


_OPEN, _CLOSE = "<think>", "</think>"


class ThinkingSplit(NamedTuple):
    """A text's two parts.

    Attributes:
        reasoning: What stood between the tags.
        answer: What came after them.
        start: Where the answer begins in the text, in characters.
    """

    reasoning: str
    answer: str
    start: int


def split_thinking(text: str, dialect: Dialect) -> ThinkingSplit | None:
    """Take the reasoning at the beginning of a text from its answer; None where there is none.

    A text that ends before its reasoning does has an empty answer. One whose opening tag was
    written by the template and that ends before the closing one can't be told from an answer.
    """
    opened = text.lstrip().startswith(_OPEN)
    if not opened and (not TRAITS[dialect].opens_thinking or _CLOSE not in text):
        return None
    begin = text.index(_OPEN) + len(_OPEN) if opened else 0
    end = text.find(_CLOSE, begin)
    if end < 0:
        return ThinkingSplit(text[begin:].strip("\n"), "", len(text))
    rest = text[end + len(_CLOSE) :]
    answer = rest.lstrip()
    return ThinkingSplit(text[begin:end].strip("\n"), answer, len(text) - len(answer))
