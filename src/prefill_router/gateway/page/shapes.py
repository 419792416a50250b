"""The JSON that the page reads of the gateway's state, its targets, spending and trade-off.

That of decisions is in `decision_shapes`. Times `at` are seconds since 1970, durations are seconds,
money is US dollars, prices are dollars per million tokens, and shares and probabilities lie in
[0, 1]. A value that isn't known is null. Numbers are finite. No prompt and no key is ever part of
any of them.
"""

from typing import Literal, TypedDict

from prefill_router.targets import Ability, Endpoint

State = Literal["ready", "degraded", "not_ready"]
Breaker = Literal["closed", "half_open", "open"]


class Overview(TypedDict):
    """What the head of the page says of the gateway.

    Attributes:
        state: Whether it answers as it should.
        problems: Why not, one sentence each; empty when ready.
        router: The router's fingerprint; None where none is loaded.
        policy: The kind of its policy; None as `router`.
        encoder: The encoder's name; None as `router`.
        lam: The trade-off of a request that names none, after budgets.
        lam_set: The same before budgets: what was applied last, or configured.
        lam_configured: What the settings say.
        requests_last_hour: How many came.
        fallback_share: Of the last minute's decisions that needed a forecast, those without one.
        uptime_seconds: Since the process began.
        version: Of this package.
    """

    state: State
    problems: list[str]
    router: str | None
    policy: str | None
    encoder: str | None
    lam: float
    lam_set: float
    lam_configured: float
    requests_last_hour: int
    fallback_share: float
    uptime_seconds: float
    version: str


class MinuteView(TypedDict):
    """The requests of one minute.

    Attributes:
        at: When it begins.
        requests: How many came.
        failed: That failed or broke off.
        fallbacks: That were decided without a forecast.
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
        until: When the present minute ends.
        minutes: By rising time; those without a request are left out.
    """

    until: float
    minutes: list[MinuteView]


class TargetHealth(TypedDict):
    """One target: how it does, and what it can do.

    Attributes:
        target: Its name.
        provider: Who serves it.
        breaker: Whether it is asked: `open` is not, `half_open` tries one request.
        retry_in: Until an open breaker tries again; None otherwise.
        requests: Calls since `Targets.since`.
        failures: Those of them that failed.
        first_byte_p50: Median until the first byte of an answer; None without answers.
        first_byte_p95: The same for the 95th percentile.
        input_price: None where unknown; so are the next two.
        cached_input_price: None where cached tokens cost what others do.
        output_price: None where unknown.
        context_tokens: None for no known limit.
        accepts: What it can do beside answering texts.
        serves: The calls that it serves.
    """

    target: str
    provider: str
    breaker: Breaker
    retry_in: float | None
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
        prices_date: The day of the prices, an ISO 8601 date; None where it isn't known.
        since: From when on calls are counted: an hour ago, or less where so many requests came
            that not all of them are remembered.
        targets: One for each.
    """

    prices_date: str | None
    since: float
    targets: list[TargetHealth]


class FeatureDrift(TypedDict):
    """The population stability index of one watched feature."""

    feature: str
    psi: float


class DriftView(TypedDict):
    """How far the requests have moved from what the router learned from.

    Attributes:
        watched: Whether the router keeps a reference of its train rows.
        requests: How many are counted.
        needed: From how many on there are figures.
        mean: Mean index; None before `needed`, or without a reference.
        features: By falling index; empty as `mean`.
    """

    watched: bool
    requests: int
    needed: int
    mean: float | None
    features: list[FeatureDrift]


class TargetSpend(TypedDict):
    """What one target took; its cost is None where it isn't known of any answered request."""

    target: str
    requests: int
    cost: float | None


class KeySpend(TypedDict):
    """What one client's key asked for; None for requests without a key, and for unknown costs."""

    key: str | None
    requests: int
    cost: float | None


class SingleTargetView(TypedDict):
    """What the compared requests would have cost at one target alone, estimated."""

    target: str
    cost: float


class SpendWindow(TypedDict):
    """Spending since one moment.

    Attributes:
        since: From when on.
        requests: How many came.
        cost: What they cost, as observed, where it is known; None where it is of none.
        unknown: Answered requests whose cost isn't known.
        by_target: Those that took anything, the dearest first.
        by_key: Whose requests they were, the dearest first.
        compared: How many answered requests `at_best` and `at_dearest` hold: the latest of those
            that know every present target's cost.
        compared_cost: What these cost; their estimates where nothing was observed.
        at_best: The single target with the greatest expected accuracy on these requests; None
            where there is no forecast to tell.
        at_dearest: The single target that would have cost most; None where prices are unknown.
    """

    since: float
    requests: int
    cost: float | None
    unknown: int
    by_target: list[TargetSpend]
    by_key: list[KeySpend]
    compared: int
    compared_cost: float
    at_best: SingleTargetView | None
    at_dearest: SingleTargetView | None


class BudgetView(TypedDict):
    """One budget, and what is left of it.

    Attributes:
        key: The name of the key it is for; None for the whole gateway.
        per: Its window.
        dollars: All of it.
        spent: In this window.
        soften_from: The share from which on lam falls.
        stop: Whether requests are refused once all is spent.
        resets_at: When the next window begins.
    """

    key: str | None
    per: Literal["hour", "day"]
    dollars: float
    spent: float
    soften_from: float
    stop: bool
    resets_at: float


class Spend(TypedDict):
    """Spending of the last hour and of this day (UTC), and the budgets."""

    hour: SpendWindow
    day: SpendWindow
    budgets: list[BudgetView]


class CurvePoint(TypedDict):
    """What the recorded requests would give at one lam.

    Attributes:
        lam: The trade-off.
        accuracy: Mean probability of the chosen targets.
        cost: Expected dollars per 1,000 requests; None where prices are unknown.
    """

    lam: float
    accuracy: float
    cost: float | None


class Single(TypedDict):
    """What the recorded requests would give at one target alone; as `CurvePoint`."""

    target: str
    accuracy: float
    cost: float


class CurveView(TypedDict):
    """The accuracy-cost curve of the recorded traffic, expected.

    Attributes:
        since: The first request that counts; None where there is none.
        requests: How many have a forecast, and count.
        points: By rising lam, from 0 to 1; empty where no request counts.
        singles: Every target alone.
    """

    since: float | None
    requests: int
    points: list[CurvePoint]
    singles: list[Single]


class Move(TypedDict):
    """So many recorded requests would go from one target to another."""

    origin: str
    to: str
    requests: int


class WhatIf(TypedDict):
    """What another lam would have changed for the recorded requests.

    Attributes:
        now: At the lam that is set, before budgets.
        then: At the lam that is asked about.
        requests: How many count.
        changed: How many of them would have had another target.
        moves: From whom to whom, the most frequent first.
    """

    now: CurvePoint
    then: CurvePoint
    requests: int
    changed: int
    moves: list[Move]


class LamSet(TypedDict):
    """What was applied: the trade-off now, and the one before it."""

    lam: float
    before: float
