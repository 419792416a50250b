"""What was decided about one request."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import final

from prefill_router.gateway.words import FallbackReason, Reason


@final
@dataclass(frozen=True, kw_only=True)
class Choice:
    """Which target is asked first, who is next if it fails, and why.

    Attributes:
        id: The decision's own name, `pr_` and 32 hexadecimal digits that grow with time.
        order: The targets that may answer, the chosen one first.
        reason: Why the first was chosen.
        fallback: Why there was no forecast to go by; None where there was one.
        lam: The trade-off that was used, after budgets; None where the client named the target.
        lam_asked: The trade-off that was asked for or set; None as `lam`.
        correctness: Every target's predicted probability; empty without a forecast.
        estimated_cost: Every target's estimated cost, US dollars; empty where prices are unknown.
        excluded: Targets that couldn't answer, and why in a few words.
        policy_target: Whom the policy alone would have chosen; None without a forecast. Differs
            from `order[0]` where a session, a share or a shadow run decided.
        novelty: As in `Forecast`.
        input_tokens: Estimated input tokens of the whole request.
        session: A hash that names the conversation; None where there is none.
        tool_loop: Whether the conversation waits for tool results; then nobody else is asked.
        opening: Whether it begins a conversation that others may begin alike, as in `Question`.
        cached: What `estimated_cost` is lower by for what a target has in its cache, US dollars;
            of the one that holds the conversation alone.
        high_cost: What `order[0]` hardly costs more than, US dollars: budgets set it aside. None in
            receipts, and where prices are unknown or the router doesn't know the target.
    """

    id: str
    order: tuple[str, ...]
    reason: Reason
    fallback: FallbackReason | None = None
    lam: float | None = None
    lam_asked: float | None = None
    correctness: Mapping[str, float] = field(default_factory=dict)
    estimated_cost: Mapping[str, float] = field(default_factory=dict)
    excluded: Mapping[str, str] = field(default_factory=dict)
    policy_target: str | None = None
    novelty: float | None = None
    input_tokens: int = 0
    session: str | None = None
    tool_loop: bool = False
    opening: bool = False
    cached: Mapping[str, float] = field(default_factory=dict)
    high_cost: float | None = None

    @property
    def target(self) -> str:
        """The target that is asked first."""
        return self.order[0]
