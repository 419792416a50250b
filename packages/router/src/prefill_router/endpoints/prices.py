"""What a call costs: by its tokens, as its provider reports it, and at the most."""

import json
import unicodedata
from collections.abc import Iterator
from dataclasses import dataclass
from decimal import Decimal
from typing import final

from prefill_router.data import Prompt, prompt_text
from prefill_router.endpoints.reply import Reply
from prefill_router.endpoints.request_body import MAX_TOKENS_FIELDS
from prefill_router.endpoints.usage import Usage, estimate_tokens
from prefill_router.targets import Target, is_budget

_MILLION = 1_000_000
_TEMPLATE_TOKENS = 1024
"""Allowance for what a chat template or provider adds to a conversation, e.g. a system prompt."""
_MESSAGE_TOKENS = 64
"""Allowance for what a chat template adds to one message."""


@final
@dataclass(frozen=True, kw_only=True)
class CallBound:
    """The most that one call can use.

    Attributes:
        input_tokens: Tokens of the prompt.
        output_tokens: Tokens of the answer, reasoning included.
        dollars: Cost in US dollars; None where the target's prices are unknown.
    """

    input_tokens: int
    output_tokens: int
    dollars: float | None


def cost_of(usage: Usage, target: Target) -> float | None:
    """The cost of reported tokens at a target's prices, in US dollars, rounded once.

    Cached tokens cost `cached_input_price`, those written to a cache `cache_write_price` or
    `cache_write_hour_price`, and reasoning ones `reasoning_price`, where these are given. None
    where prices or counts are unknown, or the counts contradict each other.
    """
    if target.input_price is None or target.output_price is None or any(_contradictions(usage)):
        return None
    cache_reads, reasoning = usage.cached_tokens or 0, usage.reasoning_tokens or 0
    cache_writes, hour = usage.cache_written_tokens or 0, usage.cache_written_hour_tokens or 0
    write_price = _or_default(target.cache_write_price, target.input_price)
    parts = (
        ((usage.input_tokens or 0) - cache_reads - cache_writes, target.input_price),
        (cache_reads, _or_default(target.cached_input_price, target.input_price)),
        (cache_writes - hour, write_price),
        (hour, _or_default(target.cache_write_hour_price, write_price)),
        ((usage.output_tokens or 0) - reasoning, target.output_price),
        (reasoning, _or_default(target.reasoning_price, target.output_price)),
    )
    return float(sum(n * Decimal(repr(price)) for n, price in parts) / _MILLION)


def reported_cost(usage: Usage) -> float | None:
    """The cost of a call in US dollars as the provider reports it (OpenRouter's `usage.cost`).

    For a call with the user's own provider key (`is_byok`), that provider's charge is added.
    """
    cost = _dollars(usage.reported.get("cost"))
    details = usage.reported.get("cost_details")
    if cost is None or usage.reported.get("is_byok") is not True or not isinstance(details, dict):
        return cost
    return cost + (_dollars(details.get("upstream_inference_cost")) or 0.0)


def bound(target: Target, prompt: Prompt) -> CallBound:
    """The most that one call can use and cost.

    A tokenizer makes at most one token per byte of the text, as given or in a Unicode normal form.
    An allowance for templates is added. Output ends at the request's maximum number of tokens, to
    which some providers add a thinking budget.

    Args:
        target: The target that is called, with its prices and its limit of output tokens.
        prompt: The text or the messages.
    """
    text = prompt_text(prompt)
    extra = json.dumps(dict(target.request.extra_body))
    messages = 1 if isinstance(prompt, str) else len(prompt)
    input_tokens = _most_bytes(text) + len(extra) + _MESSAGE_TOKENS * messages + _TEMPLATE_TOKENS
    own = target.request.extra_body
    limits = [own[name] for name in MAX_TOKENS_FIELDS if name in own]
    output_tokens = max(limits, default=target.request.max_tokens)
    output_tokens = (output_tokens + _thinking_budget(target)) * own.get("n", 1)
    return CallBound(
        input_tokens=input_tokens,
        output_tokens=output_tokens,
        dollars=_highest_cost(input_tokens, output_tokens, target),
    )


def _thinking_budget(target: Target) -> int:
    """The most tokens that may be added for reasoning."""
    if target.effort is not None and is_budget(target.effort):
        return int(target.effort)
    extra_budget: int = target.request.extra_body.get("thinking_budget", 0)
    return max(extra_budget, target.request.thinking_budget or 0)


def reason_against_usage(usage: Usage, limit: CallBound) -> str:
    """Why reported token counts are missing or can't be true; empty where they are plausible."""
    reasons = list(_contradictions(usage))
    for name, most in (
        ("input_tokens", limit.input_tokens),
        ("output_tokens", limit.output_tokens),
    ):
        count = getattr(usage, name)
        if count is not None and count > most:
            reasons.append(f"{name} is {count}, more than the {most} possible")
    return "; ".join(reasons)


def estimate_usage(prompt: Prompt, reply: Reply) -> Usage:
    """Estimated tokens of a call with none reported: a quarter of the bytes, rounded up.

    Reasoning that wasn't returned isn't counted; `bound` gives the most that a call can cost.
    """
    input_tokens, reasoning = _quarter(prompt_text(prompt)), _quarter(reply.reasoning)
    return Usage(
        input_tokens=input_tokens,
        output_tokens=_quarter(reply.text) + reasoning,
        reasoning_tokens=reasoning,
    )


_WHOLES = ("input_tokens", "output_tokens")
_PARTS = (
    ("cached_tokens", "input_tokens"),
    ("reasoning_tokens", "output_tokens"),
    ("cache_written_tokens", "input_tokens"),
    ("cache_written_hour_tokens", "cache_written_tokens"),
)


def _contradictions(usage: Usage) -> Iterator[str]:
    for name in (*_WHOLES, *(part for part, _ in _PARTS)):
        count = getattr(usage, name)
        if count is None and name in _WHOLES:
            yield f"{name} is missing"
        elif count is not None and count < 0:
            yield f"{name} is {count}"
    for part, whole in _PARTS:
        low, high = getattr(usage, part), getattr(usage, whole)
        if low is not None and high is not None and low > high:
            yield f"{part} is {low}, more than {whole}, {high}"
    cached, written = usage.cached_tokens or 0, usage.cache_written_tokens or 0
    if usage.input_tokens is not None and cached <= usage.input_tokens < cached + written:
        total = cached + written
        yield f"cached and written tokens are {total}, more than input_tokens, {usage.input_tokens}"


def _most_bytes(text: str) -> int:
    """The size of a text in bytes, the largest of its forms that tokenizers may read."""
    if text.isascii():
        return len(text)
    forms = (text, unicodedata.normalize("NFC", text), unicodedata.normalize("NFKC", text))
    return max(len(form.encode("utf-8", "surrogatepass")) for form in forms)


def _highest_cost(input_tokens: int, output_tokens: int, target: Target) -> float | None:
    if target.input_price is None or target.output_price is None:
        return None
    caching = (
        target.cached_input_price,
        target.cache_write_price,
        target.cache_write_hour_price,
    )
    low = max(target.input_price, *(_or_default(price, 0.0) for price in caching))
    high = max(target.output_price, _or_default(target.reasoning_price, 0.0))
    return float(
        (input_tokens * Decimal(repr(low)) + output_tokens * Decimal(repr(high))) / _MILLION
    )


def _or_default(value: float | None, other: float) -> float:
    return other if value is None else value


def _dollars(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if 0 <= value <= _MILLION else None


def _quarter(text: str) -> int:
    return estimate_tokens(len(text.encode("utf-8", "surrogatepass")))
