"""What a run knows of one target's answer to one task."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, final

from prefill_router.brief import brief
from prefill_router.upstream import Reply

CostSource = Literal["reported", "usage", "estimate", "none"]


@final
@dataclass(frozen=True, kw_only=True)
class Attempt:
    """One call.

    Attributes:
        began: When, as ISO 8601 in UTC.
        seconds: How long it took.
        failure: Why there is no answer of it, such as `rate_limited`; None where there is one.
        detail: The error, without prompt and key.
        cost: US dollars that it cost, as far as known.
        at_risk: US dollars that it may have cost beyond that, at most.
    """

    began: str
    seconds: float
    failure: str | None = None
    detail: str = ""
    cost: float = 0.0
    at_risk: float = 0.0


@brief
@final
@dataclass(frozen=True, kw_only=True)
class Answer:
    """One target's answer to one task, or the reason why there is none.

    Attributes:
        target: Who was asked.
        query_id: What.
        reply: What it answered; None where it is missing.
        missing: Why it is missing; None where it isn't.
        request: The request's parameters, without the prompt.
        attempts: Every call that was made for it.
        prices: US dollars per million tokens at the time, as in the pool file.
        cost: US dollars of all attempts together.
        cost_source: What the cost goes by: reported by the provider, its usage counts, an estimate
            where those are lacking or can't be true, or none where prices are unknown.
        note: What was odd, such as usage that can't be true.
    """

    target: str
    query_id: str
    reply: Reply | None
    missing: str | None = None
    request: Mapping[str, Any] = field(default_factory=dict, hash=False)
    attempts: tuple[Attempt, ...] = ()
    prices: Mapping[str, float] = field(default_factory=dict, hash=False)
    cost: float | None = None
    cost_source: CostSource = "none"
    note: str = ""

    @property
    def charged(self) -> float:
        """US dollars that it counts against a spending limit: its cost, and what is at risk."""
        return (self.cost or 0.0) + sum(attempt.at_risk for attempt in self.attempts)
