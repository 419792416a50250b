"""The JSON of the page's API: the gateway's state, decisions, savings and versions.

Times `at` are seconds since 1970, durations are seconds, money
is US dollars, prices are dollars per million tokens, and shares and probabilities lie in [0, 1].
Unknown values are null. Numbers are finite. None of them ever contains a prompt or a key.
"""

from typing import Literal, TypedDict

from prefill_router.agents import RequestKind
from prefill_router.endpoints import BreakerState
from prefill_router.targets import Ability, Endpoint
from prefill_router_gateway.records import AttemptEnd, FallbackReason, OutcomeKind, Reason, Scored

State = Literal["ready", "degraded", "not_ready"]


class SharedView(TypedDict):
    """State that replicas share.

    Attributes:
        replicas: How many there are.
        away_since: Since when the shared database can't be used; None if it can.
    """

    replicas: int
    away_since: float | None


class Overview(TypedDict):
    """The gateway's state at the top of the page.

    Attributes:
        state: Whether it works as it should.
        problems: The problems, one sentence each; empty when ready.
        router: The router's fingerprint; None where none is loaded.
        serving: The versions that serve; None where the router has none.
        policy: The kind of its policy; None where no router is loaded.
        encoder: The encoder's name; None where no router is loaded.
        lam: The trade-off of a request that gives none, after budgets.
        lam_set: The trade-off before budgets, as set on the page or in the settings.
        lam_configured: The trade-off in the settings, or else the router's own.
        lam_reason: Where that comes from.
        requests_last_hour: Requests in the last hour.
        fallback_share: The share of the last minute's decisions that needed a forecast and had
            none.
        shared: What is shared with other replicas; None for a gateway by itself.
        uptime_seconds: Time since the process started.
        version: The version of this package.
    """

    state: State
    problems: list[str]
    router: str | None
    serving: str | None
    policy: str | None
    encoder: str | None
    lam: float
    lam_set: float
    lam_configured: float
    lam_reason: str
    requests_last_hour: int
    fallback_share: float
    shared: SharedView | None
    uptime_seconds: float
    version: str


class MinuteView(TypedDict):
    """The requests of one minute.

    Attributes:
        at: When it begins.
        requests: Requests that arrived.
        failed: Requests that failed or broke off.
        fallbacks: Requests that were decided without a forecast.
        cost: US dollars, as far as known.
    """

    at: float
    requests: int
    failed: int
    fallbacks: int
    cost: float


class Timeline(TypedDict):
    """The last hour, minute by minute.

    Attributes:
        until: When the current minute ends.
        minutes: The minutes in order of time; those without a request are left out.
    """

    until: float
    minutes: list[MinuteView]


class TargetHealth(TypedDict):
    """One target: its performance and its capabilities.

    Attributes:
        target: Its name.
        provider: Its provider.
        breaker: The state of its circuit breaker: `open` blocks calls, `half_open` tries one.
        retry_in: The time until an open breaker tries again; None otherwise.
        last_failure: What came of the latest failed call since `Targets.since`, and what to do;
            None without one.
        requests: Calls since `Targets.since`.
        failures: Failed calls among them.
        first_byte_p50: Median time to the first byte of an answer; None without answers.
        first_byte_p95: 95th percentile of the time to the first byte; None without answers.
        input_price: The price of input tokens; None where unknown.
        cached_input_price: The price of cached input tokens; None where it equals `input_price`.
        output_price: The price of output tokens; None where unknown.
        context_tokens: The context length; None for no known limit.
        accepts: Its abilities other than answering texts.
        serves: The endpoints that it serves.
    """

    target: str
    provider: str
    breaker: BreakerState
    retry_in: float | None
    last_failure: str | None
    requests: int
    failures: int
    first_byte_p50: float | None
    first_byte_p95: float | None
    input_price: float | None
    cached_input_price: float | None
    output_price: float | None
    context_tokens: int | None
    accepts: list[Ability]
    serves: list[Endpoint]


class Targets(TypedDict):
    """The pool's targets, in its order.

    Attributes:
        prices_date: The date of the prices in ISO 8601; None where unknown.
        since: The time since which calls are counted: an hour ago, or less where there were more
            requests than are remembered.
        targets: The targets.
    """

    prices_date: str | None
    since: float
    targets: list[TargetHealth]


class FeatureDrift(TypedDict):
    """The population stability index of one watched feature."""

    feature: str
    psi: float


class DriftView(TypedDict):
    """How far the requests have drifted from the router's train rows.

    Attributes:
        watched: Whether the router has a reference of its train rows.
        requests: The number of requests that are compared.
        needed: The number of requests from which on there are figures.
        mean: The mean index; None before `needed` requests, or without a reference.
        features: The features by descending index; empty where `mean` is None.
    """

    watched: bool
    requests: int
    needed: int
    mean: float | None
    features: list[FeatureDrift]


class TargetSpend(TypedDict):
    """Spending on one target; its cost is None where no answered request has a known cost."""

    target: str
    requests: int
    cost: float | None


class KeySpend(TypedDict):
    """Spending of one key; `key` is None for requests without one, `cost` where unknown."""

    key: str | None
    requests: int
    cost: float | None


class SpendWindow(TypedDict):
    """Spending since a point in time.

    Attributes:
        since: The start of the window.
        requests: Requests in the window.
        cost: The sum of their observed costs where known; None where none is known.
        unknown: Answered requests whose cost is unknown.
        by_target: The targets that answered, the most expensive first.
        by_key: The keys of the requests, the most expensive first.
        baseline: The baseline of the compared requests, or several, in words; None where no
            receipt names one.
        compared: The number of requests that are compared with it, as in `SavingsView`.
        compared_cost: Their observed cost.
        at_baseline: Their estimated cost at the baseline; None without one.
    """

    since: float
    requests: int
    cost: float | None
    unknown: int
    by_target: list[TargetSpend]
    by_key: list[KeySpend]
    baseline: str | None
    compared: int
    compared_cost: float
    at_baseline: float | None


class BudgetView(TypedDict):
    """One budget, and what remains of it.

    Attributes:
        key: The name of its key; None for the whole gateway.
        per: Its window.
        dollars: Its amount.
        spent: What was spent in this window.
        soften_from: The spent share from which on lam is lowered.
        stop: Whether requests are refused once it is spent.
        resets_at: When the next window begins.
        leased: What is left of this replica's lease; None for a gateway by itself.
    """

    key: str | None
    per: Literal["hour", "day"]
    dollars: float
    spent: float
    soften_from: float
    stop: bool
    resets_at: float
    leased: float | None


class Spend(TypedDict):
    """Spending of the last hour and of this day (UTC), and the budgets."""

    hour: SpendWindow
    day: SpendWindow
    budgets: list[BudgetView]


class CurvePoint(TypedDict):
    """The expected result of the recorded requests at one lam.

    Attributes:
        lam: The trade-off.
        accuracy: Mean predicted probability of the chosen targets.
        cost: Expected dollars per 1,000 requests; None where prices are unknown.
    """

    lam: float
    accuracy: float
    cost: float | None


class Single(TypedDict):
    """The expected result of the recorded requests at one target alone, as in `CurvePoint`."""

    target: str
    accuracy: float
    cost: float


class CurveView(TypedDict):
    """The expected accuracy-cost curve of the recorded traffic.

    Attributes:
        since: The time of the first request with a forecast; None where there is none.
        requests: The number of requests with a forecast.
        points: The points by ascending lam, from 0 to 1; empty where there are no requests.
        singles: Every target alone.
    """

    since: float | None
    requests: int
    points: list[CurvePoint]
    singles: list[Single]


class Move(TypedDict):
    """The number of recorded requests that would move from one target to another."""

    origin: str
    to: str
    requests: int


class WhatIf(TypedDict):
    """What another lam would have changed for the recorded requests.

    Attributes:
        now: The result at the current lam, before budgets.
        then: The result at the other lam.
        requests: The number of requests with a forecast.
        changed: The number of them that would have had another target.
        moves: The changes of target, the most frequent first.
    """

    now: CurvePoint
    then: CurvePoint
    requests: int
    changed: int
    moves: list[Move]


class LamSet(TypedDict):
    """The trade-off that was set, and the one before."""

    lam: float
    before: float


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
        agent: The agent that sent the request; None where no agent's marks fit.
        kind: What the agent's request is for; None where no agent's marks fit.
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
    agent: str | None
    kind: RequestKind | None


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
    failure: str | None


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
        above: The same for higher lam.
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
        type: The agent's name of the kind of subagent that asks; None where it gives none.
        failing_steps: How many tools' results in a row had failed before it.
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
    type: str | None
    failing_steps: int
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
