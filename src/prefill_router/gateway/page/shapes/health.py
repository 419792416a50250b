"""The JSON of the gateway's own state, its targets' and the traffic's drift."""

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


class Drift(TypedDict):
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
