"""The JSON of the live decisions, and of one."""

from typing import TypedDict

from prefill_router.gateway.records import AttemptEnd
from prefill_router.gateway.types import FallbackReason, OutcomeKind, Reason, Scored
from prefill_router.targets import Endpoint


class DecisionRow(TypedDict):
    """One row of the live decisions.

    Attributes:
        id: The decision's.
        at: When the request came.
        requested: The model that the client named, as far as it is known: `auto`, a target's name.
        target: Who answered; whom the gateway asked first, where nobody did.
        reason: Why the first was chosen.
        fallback: Why there was no forecast; None where there was one.
        lam: The trade-off that was used; None where the client named the target.
        probability: Of a correct answer by `target`; None without a forecast.
        estimated_cost: Of `target`; None where its prices are unknown.
        cost: What was observed; None where unknown.
        cost_is_estimated: Whether the token counts of `cost` were estimated.
        decision_seconds: From the whole request's arrival to the decision.
        total_seconds: From the request to the end.
        outcome: How it ended.
        status: The HTTP status that the client got.
        endpoint: What was asked.
        stream: Whether the answer was streamed.
    """

    id: str
    at: float
    requested: str
    target: str | None
    reason: Reason
    fallback: FallbackReason | None
    lam: float | None
    probability: float | None
    estimated_cost: float | None
    cost: float | None
    cost_is_estimated: bool
    decision_seconds: float
    total_seconds: float
    outcome: OutcomeKind
    status: int
    endpoint: Endpoint
    stream: bool


class Decisions(TypedDict):
    """The requests that ended lately.

    Attributes:
        cursor: Given as `after`, it asks for what ended since this reply was made.
        decisions: The newest first, by their end; a long stream ends after requests that came
            after it.
    """

    cursor: str
    decisions: list[DecisionRow]


class TargetView(TypedDict):
    """What one decision holds of one target.

    Attributes:
        target: Its name.
        probability: Of a correct answer; None without a forecast.
        estimated_cost: None where prices are unknown.
        score: Equation 2 at the decision's lam; None without a forecast or a lam.
        place: 1 for the one that was asked first; None for one that couldn't answer.
        excluded: Why it couldn't, in a few words; None where it could.
    """

    target: str
    probability: float | None
    estimated_cost: float | None
    score: float | None
    place: int | None
    excluded: str | None


class AttemptView(TypedDict):
    """One call of one target; as `TargetAttempt`."""

    target: str
    end: AttemptEnd
    status: int | None
    seconds: float


class SwitchPoint(TypedDict):
    """Where another target would win: from this lam on, up or down."""

    lam: float
    target: str


class Stretch(TypedDict):
    """A stretch of lam on which one target wins: above `lam_from`, up to `lam_to`."""

    lam_from: float
    lam_to: float
    target: str


class Tokens(TypedDict):
    """Token counts of the answer, as far as they are known; cached are part of input."""

    input: int | None
    cached: int | None
    output: int | None
    reasoning: int | None
    estimated: bool


class Timings(TypedDict):
    """Where the time went; from the request on, but `forecast`, which is part of `decision`."""

    decision: float
    forecast: float | None
    first_byte: float | None
    total: float


class DecisionDetail(TypedDict):
    """All that is known of one decision.

    Attributes:
        decision: The row.
        targets: Every target, the order they would be asked in first, then the excluded.
        attempts: Every call, in order.
        path: The winners over lam from 0 to 1; empty without a forecast.
        below: Who would win at the next lower lam, and from where on down; None for nobody else.
        above: The same upwards.
        tokens: Of the answer.
        timings: Where the time went.
        router: The fingerprint of the router that decided; empty where none did.
        policy: The kind of its policy; empty as `router`.
        policy_target: Whom the policy alone would have chosen; None without a forecast.
        lam_asked: The trade-off that was asked for, before budgets.
        novelty: The share of train rows that lie closer to the others than this request does.
        scored: What of the request the encoder read.
        input_tokens: Estimated input tokens of the whole request.
        in_session: Whether it belongs to a conversation.
        key: The name of the client's key; None where none is asked for.
    """

    decision: DecisionRow
    targets: list[TargetView]
    attempts: list[AttemptView]
    path: list[Stretch]
    below: SwitchPoint | None
    above: SwitchPoint | None
    tokens: Tokens
    timings: Timings
    router: str
    policy: str
    policy_target: str | None
    lam_asked: float | None
    novelty: float | None
    scored: Scored
    input_tokens: int
    in_session: bool
    key: str | None
