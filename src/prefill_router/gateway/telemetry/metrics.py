"""Metrics for Prometheus: counters updated once per request, and gauges read on each scrape."""

import platform
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, Literal, final

from prometheus_client import CollectorRegistry, Counter, Histogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, InfoMetricFamily, Metric
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector

from prefill_router import __version__
from prefill_router.gateway.records import Receipt, RequestOutcome
from prefill_router.gateway.telemetry.recent import Drift

BreakerState = Literal["closed", "half_open", "open"]


@final
@dataclass(frozen=True, kw_only=True)
class BudgetLeft:
    """What remains of a budget.

    Attributes:
        key: The name of its key; empty for the whole gateway.
        per: Its window.
        dollars: Its amount in US dollars.
        left: The remaining US dollars, at least 0.
    """

    key: str
    per: Literal["hour", "day"]
    dollars: float
    left: float


@final
@dataclass(frozen=True, kw_only=True)
class GaugeReadings:
    """The functions that gauges read, for numbers that aren't counted per request.

    Each is called on every scrape, on the event loop, and must be quick. Names become label
    values, so they must be few and never come from a client.

    Attributes:
        gateway: The gateway, for gauges that are registered elsewhere.
        in_flight: Requests in flight.
        streams: Open streams.
        held_bytes: Bytes of request bodies in memory.
        queue: Requests that wait for a forecast.
        fallback_share: The share of the last minute's decisions without a forecast.
        lam: The lam of requests that give none, after budgets; None for none.
        breakers: The state of each target's breaker.
        deployment_breakers: The same of each endpoint of the targets that have several.
        forecasts: Counters of forecasting by name, for example `batches`, `cache_hits`.
        receipts: Counters of receipts by name, for example `kept`, `lost`.
        receipts_waiting: Receipts in the queue.
        budgets: What remains of each budget.
        drift: The drift of requests; None while there are too few.
        router: Labels of the router: `fingerprint`, `policy`, `encoder`, ...
    """

    gateway: Any = None
    in_flight: Callable[[], int] = lambda: 0
    streams: Callable[[], int] = lambda: 0
    held_bytes: Callable[[], int] = lambda: 0
    queue: Callable[[], int] = lambda: 0
    fallback_share: Callable[[], float] = lambda: 0.0
    lam: Callable[[], float | None] = lambda: None
    breakers: Callable[[], Mapping[str, BreakerState]] = lambda: {}
    deployment_breakers: Callable[[], Mapping[str, BreakerState]] = lambda: {}
    forecasts: Callable[[], Mapping[str, float]] = lambda: {}
    receipts: Callable[[], Mapping[str, float]] = lambda: {}
    receipts_waiting: Callable[[], int] = lambda: 0
    budgets: Callable[[], Sequence[BudgetLeft]] = lambda: ()
    drift: Callable[[], Drift | None] = lambda: None
    router: Callable[[], Mapping[str, str]] = lambda: {}


_Read = Callable[[GaugeReadings], float | Mapping[Any, float] | None]


@final
@dataclass(frozen=True)
class Gauge:
    """A metric that is read on each scrape.

    Attributes:
        name: The metric's name, without the common prefix.
        description: Its help text.
        read: Reads its value: a number; with labels, numbers by label value, which is a text or,
            for several labels, a tuple; None to leave the metric out.
        labels: The names of its labels.
        only_grows: Whether it is a counter.
    """

    name: str
    description: str
    read: _Read
    labels: tuple[str, ...] = ()
    only_grows: bool = False

    def family(self, readings: GaugeReadings) -> Metric | None:
        """The metric with its current value; None to leave it out."""
        value = self.read(readings)
        if value is None:
            return None
        kind = CounterMetricFamily if self.only_grows else GaugeMetricFamily
        found = kind(f"{PREFIX}{self.name}", self.description, labels=self.labels)
        rows = value if isinstance(value, Mapping) else {(): value}
        for labels, number in rows.items():
            found.add_metric((labels,) if isinstance(labels, str) else labels, number)
        return found


PREFIX = "prefill_router_"
_STATES = {"closed": 0.0, "half_open": 1.0, "open": 2.0}


def _of_drift(field: str) -> _Read:
    def read(readings: GaugeReadings) -> Any:
        drift = readings.drift()
        return None if drift is None else getattr(drift, field)

    return read


_GAUGES = (
    Gauge("requests_in_flight", "Requests in flight.", lambda read: read.in_flight()),
    Gauge("streams_open", "Open streams.", lambda read: read.streams()),
    Gauge("held_bytes", "Bytes of request bodies in memory.", lambda read: read.held_bytes()),
    Gauge("forecast_queue", "Requests waiting for a forecast.", lambda read: read.queue()),
    Gauge(
        "fallback_share",
        "Share of the last minute's decisions without a forecast.",
        lambda read: read.fallback_share(),
    ),
    Gauge(
        "lam",
        "Trade-off of requests that give none, after budgets.",
        lambda read: {} if (lam := read.lam()) is None else lam,
    ),
    Gauge(
        "breaker_state",
        "State of a target's breaker: 0 closed, 1 half open, 2 open.",
        lambda read: {name: _STATES[state] for name, state in read.breakers().items()},
        ("target",),
    ),
    Gauge(
        "deployment_breaker_state",
        "State of the breaker of one of a target's several endpoints, as in breaker_state.",
        lambda read: {name: _STATES[state] for name, state in read.deployment_breakers().items()},
        ("deployment",),
    ),
    Gauge(
        "forecast_events",
        "Events of forecasting, by kind.",
        lambda read: read.forecasts(),
        ("kind",),
        only_grows=True,
    ),
    Gauge(
        "receipt_events",
        "Events of receipts, by kind.",
        lambda read: read.receipts(),
        ("kind",),
        only_grows=True,
    ),
    Gauge("receipts_waiting", "Receipts in the queue.", lambda read: read.receipts_waiting()),
    Gauge(
        "budget_dollars",
        "US dollars of a budget; an empty key means the whole gateway.",
        lambda read: {(b.key, b.per): b.dollars for b in read.budgets()},
        ("key", "per"),
    ),
    Gauge(
        "budget_left_dollars",
        "US dollars of a budget that remain in this hour or day.",
        lambda read: {(b.key, b.per): b.left for b in read.budgets()},
        ("key", "per"),
    ),
    Gauge(
        "drift",
        "Population stability index of a feature over the latest requests.",
        _of_drift("by_feature"),
        ("feature",),
    ),
    Gauge("drift_mean", "Mean population stability index of all features.", _of_drift("mean")),
    Gauge(
        "drift_largest", "Largest population stability index of a feature.", _of_drift("largest")
    ),
    Gauge("drift_requests", "Requests that the drift is measured on.", _of_drift("requests")),
)
GAUGES: dict[str, Gauge] = {gauge.name: gauge for gauge in _GAUGES}
"""All gauges by name; gauges added here appear at `/metrics`."""


@final
class Gauges(Collector):
    """Turns readings into the metrics of all `GAUGES`.

    Args:
        readings: The readings.
    """

    def __init__(self, readings: GaugeReadings) -> None:
        self._readings = readings

    def collect(self) -> Iterator[Metric]:
        """The metrics with current values; readings that several gauges need are read once."""
        had = self._readings
        readings = replace(had, budgets=cache(had.budgets), drift=cache(had.drift))
        families = (gauge.family(readings) for gauge in GAUGES.values())
        yield from (family for family in families if family is not None)
        build = {"version": __version__, "python": platform.python_version()}
        yield InfoMetricFamily(f"{PREFIX}build", "Versions of the running gateway.", value=build)
        router = dict(had.router())
        if router:
            yield InfoMetricFamily(f"{PREFIX}router", "The router in use.", value=router)


OTHER = "other"
"""The label of a target that isn't in the pool, or no longer."""
NOBODY = "none"
"""The label where no target was called."""
_TOKENS = ("input", "cached", "output", "reasoning")
_SECONDS = (
    *(0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5),
    *(1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0),
)


@final
class _Registry(CollectorRegistry):
    """Leaves out the `_created` samples, which would be half of all lines.

    The library's own switch for this applies to the whole process.
    """

    def collect(self) -> Iterator[Metric]:
        for metric in super().collect():
            metric.samples = [s for s in metric.samples if not s.name.endswith("_created")]
            yield metric


@final
class Metrics:
    """The metrics for Prometheus, in a registry of their own.

    Label values are the pool's targets and the gateway's own words, never what a client sent.

    Args:
        targets: The pool's targets.
        readings: The readings of gauges.
    """

    def __init__(self, targets: Iterable[str], *, readings: GaugeReadings | None = None) -> None:
        self._registry = _Registry()
        self._targets = frozenset(targets)
        self._registry.register(Gauges(readings or GaugeReadings()))
        count = self._counter
        self._requests = count(
            "requests", "Completed requests.", "endpoint", "target", "outcome", "reason"
        )
        self._tokens = count("tokens", "Tokens; cached ones are part of input.", "target", "kind")
        self._dollars = count("dollars", "US dollars spent, where costs are known.", "target")
        self._estimated = count(
            "estimated_dollars", "US dollars that decisions estimated.", "target"
        )
        self._unpriced = count("unpriced_requests", "Requests of unknown cost.", "target")
        self._fallbacks = count("fallbacks", "Decisions without a forecast.", "reason")
        self._attempts = count("attempts", "Calls of targets, by how they ended.", "target", "end")
        self._deployment_attempts = count(
            "deployment_attempts",
            "Calls of endpoints of targets that have several, by how they ended.",
            *("deployment", "end"),
        )
        self._retries = count("retries", "Retries of the same endpoint of a target.", "target")
        self._failovers = count(
            "failovers", "Calls of the next endpoint or target after a failure.", "target"
        )
        self._passed = count("plain_calls", "Passthrough calls.", "call", "target", "outcome")
        self._refusals = count("refusals", "Requests refused before a decision.", "status")
        seconds = Histogram(
            f"{PREFIX}stage_seconds",
            "Duration of each stage in seconds.",
            ("stage", "target"),
            registry=self._registry,
            buckets=_SECONDS,
        )
        self._seconds: Callable[..., Histogram] = cache(seconds.labels)

    def use_targets(self, targets: Iterable[str]) -> None:
        """Use another pool's targets; counts are kept."""
        self._targets = frozenset(targets)

    def refused(self, status: int) -> None:
        """Count a request that was refused before a target was chosen."""
        self._refusals(str(status)).inc()

    def passed(self, call: str, outcome: RequestOutcome) -> None:
        """Count a passthrough call that ended; it has no decision and no cost."""
        self._passed(call, self._name(outcome.target), outcome.kind).inc()

    def observe(self, receipt: Receipt) -> None:
        """Count a request that ended."""
        outcome, choice = receipt.outcome, receipt.choice
        target = self._name(outcome.target)
        chosen = self._name(choice.order[0] if choice.order else None)
        self._requests(receipt.endpoint, target, outcome.kind, choice.reason).inc()
        if choice.fallback is not None:
            self._fallbacks(choice.fallback).inc()
        self._observe_costs(receipt, target, chosen)
        self._observe_attempts(receipt)
        self._seconds("decision", chosen).observe(receipt.decision_seconds)
        if receipt.forecast_seconds is not None:
            self._seconds("forecast", chosen).observe(receipt.forecast_seconds)
        if outcome.first_byte_seconds is not None:
            self._seconds("first_byte", target).observe(outcome.first_byte_seconds)
        if outcome.kind != "routed":
            self._seconds("total", target).observe(outcome.total_seconds)

    def render(self, accept: str = "") -> tuple[bytes, str]:
        """All metrics and their content type, in the format that an `Accept` header requests."""
        encode, kind = choose_encoder(accept)
        return encode(self._registry), kind

    def _observe_costs(self, receipt: Receipt, target: str, chosen: str) -> None:
        usage = receipt.outcome.usage
        if usage is not None:
            counts = (
                usage.input_tokens,
                usage.cached_tokens,
                usage.output_tokens,
                usage.reasoning_tokens,
            )
            for kind, tokens in zip(_TOKENS, counts, strict=True):
                if tokens is not None and tokens > 0:  # a target may report impossible counts
                    self._tokens(target, kind).inc(tokens)
        if receipt.cost is not None:
            self._dollars(target).inc(receipt.cost)
        elif receipt.outcome.attempts:
            self._unpriced(target).inc()
        choice = receipt.choice
        estimated = choice.estimated_cost.get(choice.order[0]) if choice.order else None
        if estimated is not None:
            self._estimated(chosen).inc(estimated)

    def _observe_attempts(self, receipt: Receipt) -> None:
        before = None
        for attempt in receipt.outcome.attempts:
            name = self._name(attempt.target)
            self._attempts(name, attempt.end).inc()
            if attempt.deployment is not None:
                self._deployment_attempts(attempt.deployment, attempt.end).inc()
            called = attempt.deployment or attempt.target
            if before == called:
                self._retries(name).inc()
            elif before is not None:
                self._failovers(name).inc()
            before = called

    def _name(self, target: str | None) -> str:
        if target is None:
            return NOBODY
        return target if target in self._targets else OTHER

    def _counter(self, name: str, description: str, *labels: str) -> Callable[..., Counter]:
        made = Counter(f"{PREFIX}{name}", description, labels, registry=self._registry)
        return cache(made.labels)  # looking up a child takes longer than counting
