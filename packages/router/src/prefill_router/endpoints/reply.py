"""An endpoint's reply, in one shape for every dialect, and the events of a streamed one.

Token counts are read under the names that are in use:

input       prompt_tokens; input_tokens (Anthropic, with its cached ones added)
cached      prompt_tokens_details.cached_tokens, input_tokens_details.cached_tokens,
            prompt_cache_hit_tokens (DeepSeek), cache_read_input_tokens (Anthropic), cached_tokens
output      completion_tokens, output_tokens
reasoning   completion_tokens_details.reasoning_tokens, output_tokens_details.reasoning_tokens,
            reasoning_tokens (SGLang)

Some endpoints (xAI, Gemini) leave reasoning out of the output count; it is added from
`total_tokens`.

Server-sent events, each with one JSON object, parsed from the bytes of a stream.

Comments and other fields are skipped. Data spread over several lines is joined, as the
specification requires; an object that is complete on one line needs no blank line after it.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NoReturn, final

from prefill_router.short_repr import short_repr


@final
@dataclass(frozen=True, kw_only=True)
class Usage:
    """Token counts as the endpoint reported them; None where there is no readable count.

    Attributes:
        input_tokens: Tokens of the prompt, cached ones included.
        cached_tokens: The input tokens that came from the provider's cache.
        output_tokens: Tokens of the answer, reasoning included.
        reasoning_tokens: The output tokens that were reasoning.
        reported: The usage object as reported, unchanged.
    """

    input_tokens: int | None = None
    cached_tokens: int | None = None
    output_tokens: int | None = None
    reasoning_tokens: int | None = None
    reported: Mapping[str, Any] = field(default_factory=dict, hash=False)


@short_repr
@final
@dataclass(frozen=True, kw_only=True)
class Reply:
    """One complete answer.

    Attributes:
        text: The answer, without reasoning.
        reasoning: The reasoning trace; empty where none came back.
        finish_reason: For example `stop` or `length`; None where none was given.
        served_by: The model that served it, as the endpoint names it; None where it doesn't.
        usage: Tokens as reported.
        first_token_seconds: From the request to the first token of any kind; None without one.
        first_answer_seconds: From the request to the first token of the answer; None without one.
        seconds: From the request to the end.
        response: The other fields of the response, for example id, provider and tool calls.
    """

    text: str
    reasoning: str = ""
    finish_reason: str | None = None
    served_by: str | None = None
    usage: Usage = field(default_factory=Usage)
    first_token_seconds: float | None = None
    first_answer_seconds: float | None = None
    seconds: float = 0.0
    response: Mapping[str, Any] = field(default_factory=dict, hash=False)


_Reported = Mapping[str, Any]
_MOST = 10**15


def read_usage(reported: _Reported) -> Usage:
    """The counts in a reported usage; unreadable ones are None, implausible ones are kept."""
    cached = _first(
        (_details(reported, "prompt", "input"), "cached_tokens"),
        (reported, "prompt_cache_hit_tokens"),
        (reported, "cache_read_input_tokens"),
        (reported, "cached_tokens"),
    )
    reasoning = _first(
        (_details(reported, "completion", "output"), "reasoning_tokens"),
        (reported, "reasoning_tokens"),
    )
    given = _input(reported)
    return Usage(
        input_tokens=given,
        cached_tokens=cached,
        output_tokens=_output(reported, given, reasoning),
        reasoning_tokens=reasoning,
        reported=reported,
    )


def _input(reported: _Reported) -> int | None:
    whole = _count(reported.get("prompt_tokens"))
    if whole is not None:
        return whole
    fresh = _count(reported.get("input_tokens"))
    if fresh is None:
        return None
    beside = ("cache_read_input_tokens", "cache_creation_input_tokens")
    return fresh + sum(_count(reported.get(name)) or 0 for name in beside)


def _output(reported: _Reported, given: int | None, reasoning: int | None) -> int | None:
    output = _first((reported, "completion_tokens"), (reported, "output_tokens"))
    total = _count(reported.get("total_tokens"))
    if output is None or given is None or total is None:
        return output
    hidden = total - given - output
    return output + hidden if hidden > 0 and reasoning in (None, hidden) else output


def _details(reported: _Reported, *kinds: str) -> _Reported:
    for kind in kinds:
        details = reported.get(f"{kind}_tokens_details")
        if isinstance(details, Mapping):
            return details
    return {}


def _first(*places: tuple[_Reported, str]) -> int | None:
    found = (_count(where.get(name)) for where, name in places)
    return next((count for count in found if count is not None), None)


def _count(value: object) -> int | None:
    """A whole number; None for a number in quotes, a fraction or a boolean."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    if not abs(value) <= _MOST:  # NaN too
        return None
    return int(value) if value == int(value) else None


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
