"""What one call has cost, and what it may have cost beyond that."""

import math
from dataclasses import dataclass
from typing import final

from prefill_router.data import Prompt, prompt_text
from prefill_router.errors import UpstreamError
from prefill_router.harness.answer import CostSource
from prefill_router.targets import Target
from prefill_router.upstream import Reply
from prefill_router.upstream.pricing import (
    Bound,
    cost_of,
    estimated_usage,
    plausible,
    reported_cost,
)

_MOST_BYTES_PER_TOKEN = 32
"""On average, in any text that isn't one sign over and over."""


@final
@dataclass(frozen=True, kw_only=True)
class Bill:
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


def bill_of_reply(target: Target, prompt: Prompt, most: Bound, reply: Reply) -> Bill:
    """The bill of an answer.

    It goes by what the provider says that it cost, or by the tokens that it reports. Where what it
    reports can't be true the cost is an estimate, and the most possible stays at risk.
    """
    odd = plausible(reply.usage, most) or _too_few(prompt, reply)
    told = reported_cost(reply.usage)
    if told is not None and _is_possible(told, most):
        risk = 0.0 if not odd else _rest(most, told)
        return Bill(cost=told, at_risk=risk, source="reported", note=odd)
    if told is not None:
        odd = "; ".join(filter(None, (odd, f"its cost is reported as {told:g} dollars")))
    if not target.has_price:
        return Bill(cost=None, note=odd)
    if not odd:
        return Bill(cost=cost_of(reply.usage, target), source="usage")
    return _estimate(target, prompt, most, reply, odd)


def bill_of_failure(target: Target, prompt: Prompt, most: Bound, error: UpstreamError) -> Bill:
    """The bill of a call without an answer: nothing where it was refused, else what is at risk."""
    if error.billed == "no":
        return Bill(cost=0.0 if target.has_price else None)
    if not target.has_price:
        return Bill(cost=None, note="it may have been billed")
    if isinstance(error.partial, Reply):
        return _estimate(target, prompt, most, error.partial, "it may have been billed")
    return Bill(
        cost=0.0, at_risk=_rest(most, 0.0), source="estimate", note="it may have been billed"
    )


def _estimate(target: Target, prompt: Prompt, most: Bound, reply: Reply, note: str) -> Bill:
    cost = cost_of(estimated_usage(prompt, reply), target) or 0.0
    if most.dollars is not None:
        cost = min(cost, most.dollars)
    return Bill(cost=cost, at_risk=_rest(most, cost), source="estimate", note=note)


def _too_few(prompt: Prompt, reply: Reply) -> str:
    """Counts that are too small for what was read or written."""
    read, written = prompt_text(prompt), reply.text + reply.reasoning
    for name, text in (("input_tokens", read), ("output_tokens", written)):
        size, count = len(text.encode("utf-8", "surrogatepass")), getattr(reply.usage, name)
        if count is not None and size > _MOST_BYTES_PER_TOKEN * count:
            return f"{name} is {count}, for {size} bytes"
    return ""


def _is_possible(dollars: float, most: Bound) -> bool:
    return most.dollars is None or dollars <= most.dollars * (1 + 1e-9)


def _rest(most: Bound, cost: float) -> float:
    """What remains of the most possible; rounded up, so that the sum is never less."""
    if most.dollars is None:
        return 0.0
    rest = max(most.dollars - cost, 0.0)
    return math.nextafter(rest, math.inf) if rest else 0.0
