"""The JSON of decisions, of savings, and of the versions of a router on the page.

Units and unknown values are as in `shapes`.
"""

from typing import TypedDict

from prefill_router.gateway.records import AttemptEnd
from prefill_router.gateway.types import FallbackReason, OutcomeKind, Reason, Scored
from prefill_router.targets import Endpoint


class DecisionRow(TypedDict):
    """One row of the list of recent decisions.

    Attributes:
        id: The decision's id.
        at: When the request arrived.
        requested: The model in the request, as far as known: `auto` or a target's name.
        target: The target that answered, or else the one that was called first.
        reason: Why the first target was chosen.
        fallback: Why there was no forecast; None where there was one.
        lam: The trade-off that was used; None where the client named the target.
        probability: Predicted probability of a correct answer by `target`; None without a forecast.
        estimated_cost: Estimated cost of `target`; None where its prices are unknown.
        cost: The observed cost; None where unknown.
        cost_is_estimated: Whether the token counts of `cost` were estimated.
        decision_seconds: From the arrival of the whole request to the decision.
        total_seconds: From the arrival of the request to the end of the answer.
        outcome: The kind of outcome.
        status: The HTTP status that the client got.
        endpoint: The endpoint.
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
    """The requests that ended most recently.

    Attributes:
        cursor: Pass it as `after` to get the requests that ended since this response.
        decisions: The decisions, latest end first; a long stream ends after requests that arrived
            later.
    """

    cursor: str
    decisions: list[DecisionRow]


class TargetView(TypedDict):
    """One target in one decision.

    Attributes:
        target: Its name.
        probability: Predicted probability of a correct answer; None without a forecast.
        estimated_cost: Estimated cost; None where prices are unknown.
        score: The score of Equation 2 at the decision's lam; None without a forecast or a lam.
        place: Its rank, 1 for the first; None where it couldn't answer.
        excluded: Why it couldn't answer, in a few words; None where it could.
    """

    target: str
    probability: float | None
    estimated_cost: float | None
    score: float | None
    place: int | None
    excluded: str | None


class AttemptView(TypedDict):
    """One call of one target, as in `TargetAttempt`."""

    target: str
    end: AttemptEnd
    status: int | None
    seconds: float


class SwitchPoint(TypedDict):
    """The lam from which on, up or down, another target would win."""

    lam: float
    target: str


class Stretch(TypedDict):
    """An interval of lam in which one target wins: above `lam_from`, up to `lam_to`."""

    lam_from: float
    lam_to: float
    target: str


class Tokens(TypedDict):
    """Token counts of the answer, as far as known; cached tokens are part of input."""

    input: int | None
    cached: int | None
    output: int | None
    reasoning: int | None
    estimated: bool


class Timings(TypedDict):
    """Times since the request arrived; `forecast` is the part of `decision` for the forecast."""

    decision: float
    forecast: float | None
    first_byte: float | None
    total: float


class InsteadView(TypedDict):
    """What a request would have cost at the baseline, with its 95 % interval where known."""

    baseline: str
    cost: float
    low: float | None
    high: float | None


class DecisionDetail(TypedDict):
    """Everything about one decision.

    Attributes:
        decision: The row.
        targets: Every target, in the order of the decision, the excluded ones last.
        attempts: Every call, in order.
        path: The winners over lam from 0 to 1; empty without a forecast.
        below: The next winner for lower lam, and from which lam on; None if there is none.
        above: The next winner for higher lam, likewise.
        tokens: Token counts of the answer.
        timings: The times of the request.
        router: The fingerprint of the router that decided; empty where none did.
        version: Its version, for people; None where it has none.
        version_step: When and why that version came to decide; None where unknown.
        policy: The kind of its policy; empty where no router decided.
        policy_target: The target that the policy alone would have chosen; None without a forecast.
        lam_asked: The requested trade-off, before budgets.
        novelty: The share of train rows that are closer to the other train rows than this request.
        scored: The part of the request that the encoder read.
        input_tokens: Estimated input tokens of the whole request.
        in_session: Whether it belongs to a conversation.
        key: The name of the client's key; None where the gateway has no keys.
        instead: What it would have cost at the baseline; None where that isn't known.
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
    version: str | None
    version_step: str | None
    policy: str
    policy_target: str | None
    lam_asked: float | None
    novelty: float | None
    scored: Scored
    input_tokens: int
    in_session: bool
    key: str | None
    instead: InsteadView | None


class RangeView(TypedDict):
    """An estimate with its 95 % interval."""

    value: float | None
    low: float | None
    high: float | None


class DeductionView(TypedDict):
    """What routing itself cost, of one kind; `dollars` is None where it isn't counted."""

    kind: str
    dollars: float | None
    items: int


class SavingsView(TypedDict):
    """The savings against one target alone, as in `gateway.receipts.Savings`."""

    since: float
    baseline: str
    chosen_by: str
    requests: int
    spent: float
    at_baseline: float
    saved: RangeView
    share: RangeView
    net: RangeView
    deducted: list[DeductionView]
    expected: float | None
    expected_baseline: float | None
    expected_gain: RangeView
    observed: RangeView
    scored: int
    notes: list[str]


class SavingsPanel(TypedDict):
    """The savings, or why they aren't known."""

    problem: str | None
    savings: SavingsView | None


class FigureView(TypedDict):
    """One number that a step rests on."""

    name: str
    value: str


class StepView(TypedDict):
    """A step of a version.

    Attributes:
        at: When it was taken.
        words: What happened, by whom and why.
        evidence: What it rests on; empty for an operator's.
    """

    at: float
    words: str
    evidence: list[FigureView]


class VersionsView(TypedDict):
    """The versions of a router.

    Attributes:
        serving: The versions that serve, for people; None where the router has no versions.
        versions: How many there are.
        steps: The latest steps, the newest first.
    """

    serving: str | None
    versions: int
    steps: list[StepView]


NONE = VersionsView(serving=None, versions=0, steps=[])
"""A router without versions."""
