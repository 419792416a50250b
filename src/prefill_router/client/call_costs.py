"""What a call costs, the most it can cost, whether what was reported can be true, and its bill."""

import json
import math
import unicodedata
from collections.abc import Iterator
from dataclasses import dataclass
from decimal import Decimal
from typing import Literal, final

from prefill_router.client.dialects import MAX_TOKENS_FIELDS
from prefill_router.client.reply import Reply, Usage
from prefill_router.data import Prompt, prompt_text
from prefill_router.errors import UpstreamError
from prefill_router.targets import Target

_MILLION = 1_000_000
_TEMPLATE_TOKENS = 1024
"""For what a chat template or a provider puts around a conversation, such as a system prompt."""
_MESSAGE_TOKENS = 64
"""For what a template puts around one message."""
_BYTES_PER_TOKEN = 4
_MOST_BYTES_PER_TOKEN = 32
"""On average, in any text that isn't one sign over and over."""

CostSource = Literal["reported", "usage", "estimate", "none"]


@final
@dataclass(frozen=True, kw_only=True)
class CallBound:
    """The most that one call can use.

    Attributes:
        input_tokens: Of the prompt.
        output_tokens: Of the answer, reasoning included.
        dollars: US dollars; None where the target's prices are unknown.
    """

    input_tokens: int
    output_tokens: int
    dollars: float | None


def cost_of(usage: Usage, target: Target) -> float | None:
    """What reported tokens cost at a target's prices, in US dollars, rounded once.

    Cached tokens cost `cached_input_price` and reasoning ones `reasoning_price`, where these are
    given. None where prices or counts are unknown, or the counts contradict each other.
    """
    if target.input_price is None or target.output_price is None or any(_contradictions(usage)):
        return None
    cached, reasoning = usage.cached_tokens or 0, usage.reasoning_tokens or 0
    parts = (
        ((usage.input_tokens or 0) - cached, target.input_price),
        (cached, _or(target.cached_input_price, target.input_price)),
        ((usage.output_tokens or 0) - reasoning, target.output_price),
        (reasoning, _or(target.reasoning_price, target.output_price)),
    )
    return float(sum(n * Decimal(repr(price)) for n, price in parts) / _MILLION)


def reported_cost(usage: Usage) -> float | None:
    """What the provider itself says that a call cost, in US dollars (OpenRouter's `usage.cost`).

    Where a key of one's own is used there, what the provider behind bills is added.
    """
    cost = _dollars(usage.reported.get("cost"))
    details = usage.reported.get("cost_details")
    if cost is None or usage.reported.get("is_byok") is not True or not isinstance(details, dict):
        return cost
    return cost + (_dollars(details.get("upstream_inference_cost")) or 0.0)


def bound(target: Target, prompt: Prompt) -> CallBound:
    """The most that one call can use and cost.

    A tokenizer makes at most one token of a byte, of the text as it stands or in a Unicode normal
    form; templates are allowed for. Output ends at the request's maximum of tokens, beside which
    some providers have a `thinking_budget` for the reasoning.
    """
    text = prompt_text(prompt)
    extra = json.dumps(dict(target.request.extra_body))
    messages = 1 if isinstance(prompt, str) else len(prompt)
    given = _most_bytes(text) + len(extra) + _MESSAGE_TOKENS * messages + _TEMPLATE_TOKENS
    own = target.request.extra_body
    limits = [own[name] for name in MAX_TOKENS_FIELDS if name in own]
    written = max(limits, default=target.request.max_tokens)
    written = (written + own.get("thinking_budget", 0)) * own.get("n", 1)
    return CallBound(
        input_tokens=given, output_tokens=written, dollars=_dearest(given, written, target)
    )


def plausible(usage: Usage, limit: CallBound) -> str:
    """Why reported tokens can't be true or are lacking; empty where nothing speaks against them."""
    found = list(_contradictions(usage))
    for name, most in (
        ("input_tokens", limit.input_tokens),
        ("output_tokens", limit.output_tokens),
    ):
        count = getattr(usage, name)
        if count is not None and count > most:
            found.append(f"{name} is {count}, more than the {most} possible")
    return "; ".join(found)


def estimated_usage(prompt: Prompt, reply: Reply) -> Usage:
    """Tokens of a call whose endpoint reported none: a quarter of the bytes, rounded up.

    Reasoning that didn't come back isn't in it; what a call can have cost at most is `bound`.
    """
    given, reasoning = _quarter(prompt_text(prompt)), _quarter(reply.reasoning)
    return Usage(
        input_tokens=given,
        output_tokens=_quarter(reply.text) + reasoning,
        reasoning_tokens=reasoning,
    )


def _contradictions(usage: Usage) -> Iterator[str]:
    for name in ("input_tokens", "output_tokens", "cached_tokens", "reasoning_tokens"):
        count = getattr(usage, name)
        if count is None and name in ("input_tokens", "output_tokens"):
            yield f"{name} is missing"
        elif count is not None and count < 0:
            yield f"{name} is {count}"
    for part, whole in (("cached_tokens", "input_tokens"), ("reasoning_tokens", "output_tokens")):
        low, high = getattr(usage, part), getattr(usage, whole)
        if low is not None and high is not None and low > high:
            yield f"{part} is {low}, more than {whole}, {high}"


def _most_bytes(text: str) -> int:
    """Of a text as it stands and in the normal forms that tokenizers apply."""
    if text.isascii():
        return len(text)
    forms = (text, unicodedata.normalize("NFC", text), unicodedata.normalize("NFKC", text))
    return max(len(form.encode("utf-8", "surrogatepass")) for form in forms)


def _dearest(given: int, written: int, target: Target) -> float | None:
    if target.input_price is None or target.output_price is None:
        return None
    low = max(target.input_price, _or(target.cached_input_price, 0.0))
    high = max(target.output_price, _or(target.reasoning_price, 0.0))
    return float((given * Decimal(repr(low)) + written * Decimal(repr(high))) / _MILLION)


def _or(value: float | None, other: float) -> float:
    return other if value is None else value


def _dollars(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if 0 <= value <= _MILLION else None


def _quarter(text: str) -> int:
    return -(-len(text.encode("utf-8", "surrogatepass")) // _BYTES_PER_TOKEN)


@final
@dataclass(frozen=True, kw_only=True)
class CallBill:
    """What one call has cost.

    Attributes:
        cost: US dollars, as far as known; None where there are no prices.
        at_risk: US dollars that it may have cost beyond that, at most: 0 where the bill is known.
        source: What the cost goes by.
        note: What was odd.
    """

    cost: float | None
    at_risk: float = 0.0
    source: CostSource = "none"
    note: str = ""

    @property
    def charged(self) -> float:
        """US dollars that count against a spending limit."""
        return (self.cost or 0.0) + self.at_risk


def bill_of(
    target: Target, prompt: Prompt, most: CallBound, outcome: Reply | UpstreamError
) -> CallBill:
    """The bill of a call.

    That of an answer goes by what the provider says that it cost, or by the tokens that it reports.
    Where what it reports can't be true the cost is an estimate, and the most possible stays at
    risk. That of a failure is nothing where the call was refused, else what is at risk.
    """
    if isinstance(outcome, UpstreamError):
        return _bill_of_failure(target, prompt, most, outcome)
    reply = outcome
    odd = plausible(reply.usage, most) or _too_few(prompt, reply)
    told = reported_cost(reply.usage)
    if told is not None and (most.dollars is None or told <= most.dollars * (1 + 1e-9)):
        risk = 0.0 if not odd else _rest(most, told)
        return CallBill(cost=told, at_risk=risk, source="reported", note=odd)
    if told is not None:
        odd = "; ".join(filter(None, (odd, f"its cost is reported as {told:g} dollars")))
    if not target.has_price:
        return CallBill(cost=None, note=odd)
    if not odd:
        return CallBill(cost=cost_of(reply.usage, target), source="usage")
    return _estimate(target, prompt, most, reply, odd)


def _bill_of_failure(
    target: Target, prompt: Prompt, most: CallBound, error: UpstreamError
) -> CallBill:
    """Nothing where it was refused, else what is at risk."""
    if error.billed == "no":
        return CallBill(cost=0.0 if target.has_price else None)
    if not target.has_price:
        return CallBill(cost=None, note="it may have been billed")
    if isinstance(error.partial, Reply):
        return _estimate(target, prompt, most, error.partial, "it may have been billed")
    return CallBill(
        cost=0.0, at_risk=_rest(most, 0.0), source="estimate", note="it may have been billed"
    )


def _estimate(target: Target, prompt: Prompt, most: CallBound, reply: Reply, note: str) -> CallBill:
    cost = cost_of(estimated_usage(prompt, reply), target) or 0.0
    if most.dollars is not None:
        cost = min(cost, most.dollars)
    return CallBill(cost=cost, at_risk=_rest(most, cost), source="estimate", note=note)


def _too_few(prompt: Prompt, reply: Reply) -> str:
    """Counts that are too small for what was read or written."""
    read, written = prompt_text(prompt), reply.text + reply.reasoning
    for name, text in (("input_tokens", read), ("output_tokens", written)):
        size, count = len(text.encode("utf-8", "surrogatepass")), getattr(reply.usage, name)
        if count is not None and size > _MOST_BYTES_PER_TOKEN * count:
            return f"{name} is {count}, for {size} bytes"
    return ""


def _rest(most: CallBound, cost: float) -> float:
    """What remains of the most possible; rounded up, so that the sum is never less."""
    if most.dollars is None:
        return 0.0
    rest = max(most.dollars - cost, 0.0)
    return math.nextafter(rest, math.inf) if rest else 0.0
