"""The bill of one call: its cost as far as known, and what it may have cost beyond that."""

import math
from dataclasses import dataclass
from typing import Literal, final

from prefill_router.data import Prompt, prompt_text
from prefill_router.endpoints.prices import (
    CallBound,
    cost_of,
    estimate_usage,
    reason_against_usage,
    reported_cost,
)
from prefill_router.endpoints.reply import Reply
from prefill_router.errors import UpstreamError
from prefill_router.targets import Target

_MOST_BYTES_PER_TOKEN = 32
"""The most bytes per token, on average, of any text but one character repeated."""

CostSource = Literal["reported", "usage", "estimate", "none"]


@final
@dataclass(frozen=True, kw_only=True)
class CallBill:
    """The cost of one call.

    Attributes:
        cost: US dollars, as far as known; None where there are no prices.
        at_risk: The most US dollars that it may have cost beyond that; 0 where the cost is known.
        source: Where the cost comes from.
        note: What was implausible; empty if nothing.
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

    For an answer it is the provider's reported cost, or the price of its reported tokens. Where
    these can't be true the cost is an estimate, and the rest of the bound is at risk. For a
    failure it is zero where nothing was billed; otherwise the bound is at risk.
    """
    if isinstance(outcome, UpstreamError):
        return _bill_of_failure(target, prompt, most, outcome)
    reply = outcome
    doubt = reason_against_usage(reply.usage, most) or _find_low_count(prompt, reply)
    reported = reported_cost(reply.usage)
    if reported is not None and (most.dollars is None or reported <= most.dollars * (1 + 1e-9)):
        risk = 0.0 if not doubt else _remainder(most, reported)
        return CallBill(cost=reported, at_risk=risk, source="reported", note=doubt)
    if reported is not None:
        doubt = "; ".join(filter(None, (doubt, f"its cost is reported as {reported:g} dollars")))
    if not target.has_price:
        return CallBill(cost=None, note=doubt)
    if not doubt:
        return CallBill(cost=cost_of(reply.usage, target), source="usage")
    return _estimate(target, prompt, most, reply, doubt)


def _bill_of_failure(
    target: Target, prompt: Prompt, most: CallBound, error: UpstreamError
) -> CallBill:
    """Zero where nothing was billed; otherwise an estimate, with the rest of the bound at risk."""
    if error.billed == "no":
        return CallBill(cost=0.0 if target.has_price else None)
    if not target.has_price:
        return CallBill(cost=None, note="it may have been billed")
    if isinstance(error.partial, Reply):
        return _estimate(target, prompt, most, error.partial, "it may have been billed")
    return CallBill(
        cost=0.0, at_risk=_remainder(most, 0.0), source="estimate", note="it may have been billed"
    )


def _estimate(target: Target, prompt: Prompt, most: CallBound, reply: Reply, note: str) -> CallBill:
    cost = cost_of(estimate_usage(prompt, reply), target) or 0.0
    if most.dollars is not None:
        cost = min(cost, most.dollars)
    return CallBill(cost=cost, at_risk=_remainder(most, cost), source="estimate", note=note)


def _find_low_count(prompt: Prompt, reply: Reply) -> str:
    """Which token count is too small for the text that was read or written; empty if none."""
    input_text, output_text = prompt_text(prompt), reply.text + reply.reasoning
    for name, text in (("input_tokens", input_text), ("output_tokens", output_text)):
        size, count = len(text.encode("utf-8", "surrogatepass")), getattr(reply.usage, name)
        if count is not None and size > _MOST_BYTES_PER_TOKEN * count:
            return f"{name} is {count}, for {size} bytes"
    return ""


def _remainder(most: CallBound, cost: float) -> float:
    """What remains of the bound, in US dollars; rounded up, so that the sum is never less."""
    if most.dollars is None:
        return 0.0
    rest = max(most.dollars - cost, 0.0)
    return math.nextafter(rest, math.inf) if rest else 0.0
