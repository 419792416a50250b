"""What an endpoint answered, in one shape whatever its dialect, and the tokens that it reports.

Token counts are read under the names that are in use:

input       prompt_tokens; input_tokens (Anthropic's own, to which cached ones are added)
cached      prompt_tokens_details.cached_tokens, input_tokens_details.cached_tokens,
            prompt_cache_hit_tokens (DeepSeek), cache_read_input_tokens (Anthropic), cached_tokens
output      completion_tokens, output_tokens
reasoning   completion_tokens_details.reasoning_tokens, output_tokens_details.reasoning_tokens,
            reasoning_tokens (SGLang)

Some endpoints (xAI, Gemini) leave reasoning out of the output count; it shows in `total_tokens`,
and is added.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, final

from prefill_router.short_repr import short_repr


@final
@dataclass(frozen=True, kw_only=True)
class Usage:
    """Tokens as the endpoint reported them; None where it said nothing that can be read.

    Attributes:
        input_tokens: Of the prompt, cached ones included.
        cached_tokens: Those of them that came from the provider's cache.
        output_tokens: Of the answer, reasoning included.
        reasoning_tokens: Those of them that were reasoning.
        reported: What was reported, word for word.
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
    """One answer, whole.

    Attributes:
        text: The answer, without reasoning.
        reasoning: The reasoning trace; empty where none came back.
        finish_reason: Such as `stop` or `length`; None where none was given.
        served_by: The target that really served it, as the endpoint names it; None where unsaid.
        usage: Tokens as reported.
        first_token_seconds: From the request to the first token of any kind; None without one.
        first_answer_seconds: From the request to the first token of the answer; None without one.
        seconds: From the request to the end.
        response: Everything else that came back, such as id, provider and tool calls.
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
    """The counts in a reported usage; what can't be read is None, what can't be true is kept."""
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
    """A whole number; a number in quotes, a fraction or a truth value is none."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    if not abs(value) <= _MOST:  # NaN too
        return None
    return int(value) if value == int(value) else None
