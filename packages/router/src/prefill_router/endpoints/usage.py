"""Token counts, under the names that are in use.

input       prompt_tokens; input_tokens (Anthropic, with its cached ones added)
cached      prompt_tokens_details.cached_tokens, input_tokens_details.cached_tokens,
            prompt_cache_hit_tokens (DeepSeek), cache_read_input_tokens (Anthropic), cached_tokens
written     cache_creation_input_tokens, and of these for an hour
            cache_creation.ephemeral_1h_input_tokens (Anthropic)
output      completion_tokens, output_tokens
reasoning   completion_tokens_details.reasoning_tokens, output_tokens_details.reasoning_tokens,
            reasoning_tokens (SGLang)

Some endpoints (xAI, Gemini) leave reasoning out of the output count; it is added from
`total_tokens`.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, final


@final
@dataclass(frozen=True, kw_only=True)
class Usage:
    """Token counts as the endpoint reported them; None where there is no readable count.

    Attributes:
        input_tokens: Tokens of the prompt, cached ones included.
        cached_tokens: The input tokens that came from the provider's cache.
        cache_written_tokens: The input tokens that were written to it.
        cache_written_hour_tokens: Those of them that it keeps for an hour.
        output_tokens: Tokens of the answer, reasoning included.
        reasoning_tokens: The output tokens that were reasoning.
        reported: The usage object as reported; null for a number that JSON can't write.
    """

    input_tokens: int | None = None
    cached_tokens: int | None = None
    output_tokens: int | None = None
    reasoning_tokens: int | None = None
    cache_written_tokens: int | None = None
    cache_written_hour_tokens: int | None = None
    reported: Mapping[str, Any] = field(default_factory=dict, hash=False)


_BYTES_PER_TOKEN = 4


def estimate_tokens(size: int) -> int:
    """About how many tokens these bytes of text are, where nobody counted them."""
    return -(-size // _BYTES_PER_TOKEN)


_Reported = Mapping[str, Any]
_MOST = 10**15
_LEVELS = 8  # of a usage object; what lies deeper isn't kept


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
    creation = reported.get("cache_creation")
    tokens_by_duration = creation if isinstance(creation, Mapping) else {}
    written = _count(reported.get("cache_creation_input_tokens"))
    if written is None and tokens_by_duration:
        written = sum(_count(tokens) or 0 for tokens in tokens_by_duration.values())
    input_tokens = _input(reported, written)
    if written is None:  # OpenAI's, which are part of its input tokens
        written = _count(_details(reported, "prompt", "input").get("cache_write_tokens"))
    return Usage(
        input_tokens=input_tokens,
        cached_tokens=cached,
        output_tokens=_output(reported, input_tokens, reasoning),
        reasoning_tokens=reasoning,
        cache_written_tokens=written,
        cache_written_hour_tokens=_count(tokens_by_duration.get("ephemeral_1h_input_tokens")),
        reported=_leave_out_infinite(reported),
    )


def _leave_out_infinite(value: Any, levels: int = _LEVELS) -> Any:
    """The value as it may be written again: a reader makes `1e400` infinite, or not a number."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if not isinstance(value, Mapping | list):
        return value
    if not levels:
        return None
    if isinstance(value, list):
        return [_leave_out_infinite(item, levels - 1) for item in value]
    return {name: _leave_out_infinite(item, levels - 1) for name, item in value.items()}


def _input(reported: _Reported, written: int | None) -> int | None:
    whole = _count(reported.get("prompt_tokens"))
    if whole is not None:
        return whole
    fresh = _count(reported.get("input_tokens"))
    if fresh is None:
        return None
    return fresh + (_count(reported.get("cache_read_input_tokens")) or 0) + (written or 0)


def _output(reported: _Reported, input_tokens: int | None, reasoning: int | None) -> int | None:
    output = _first((reported, "completion_tokens"), (reported, "output_tokens"))
    total = _count(reported.get("total_tokens"))
    if output is None or input_tokens is None or total is None:
        return output
    hidden = total - input_tokens - output
    return output + hidden if hidden > 0 and reasoning in (None, hidden) else output


def _details(reported: _Reported, *kinds: str) -> _Reported:
    for kind in kinds:
        details = reported.get(f"{kind}_tokens_details")
        if isinstance(details, Mapping):
            return details
    return {}


def _first(*places: tuple[_Reported, str]) -> int | None:
    counts = (_count(where.get(name)) for where, name in places)
    return next((count for count in counts if count is not None), None)


def _count(value: object) -> int | None:
    """A whole number; None for a number in quotes, a fraction or a boolean."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    if not abs(value) <= _MOST:  # NaN too
        return None
    return int(value) if value == int(value) else None
