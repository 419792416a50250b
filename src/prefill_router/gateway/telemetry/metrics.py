"""Metrics for Prometheus: some are counted once for each request, gauges are read when asked."""

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
    """What is left of a budget.

    Attributes:
        key: Whose; empty for the whole gateway's.
        per: In each hour or day.
        dollars: How many it has.
        left: How many are left, not below 0.
    """

    key: str
    per: Literal["hour", "day"]
    dollars: float
    left: float


@final
@dataclass(frozen=True, kw_only=True)
class GaugeReadings:
    """Where the numbers are read that nobody counts request by request.

    Each is called when metrics are asked for, on the event loop, and must be quick. Names become
    label values, so they must be few and never a client's.

    Attributes:
        gateway: What they are read from, for gauges that are registered from elsewhere.
        in_flight: Requests under way.
        streams: Streams open.
        held_bytes: Bytes of requests' bodies that are held.
        queue: Requests that wait for a forecast.
        fallback_share: Of the last minute's decisions, those without a forecast.
        lam: The lam in force where a request names none, after budgets; None for none.
        breakers: The state of each target's breaker.
        forecasts: Counters of forecasting by name, such as `batches`, `cache_hits`, `restarts`.
        receipts: Counters of receipts by name, such as `kept`, `lost`.
        receipts_waiting: Receipts that wait to be kept.
        budgets: What is left of each budget.
        drift: How far requests have drifted; None while that can't be told.
        router: What is told of the router: `fingerprint`, `policy`, `encoder`, ...
    """

    gateway: Any = None
    in_flight: Callable[[], int] = lambda: 0
    streams: Callable[[], int] = lambda: 0
    held_bytes: Callable[[], int] = lambda: 0
    queue: Callable[[], int] = lambda: 0
    fallback_share: Callable[[], float] = lambda: 0.0
    lam: Callable[[], float | None] = lambda: None
    breakers: Callable[[], Mapping[str, BreakerState]] = lambda: {}
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
    """A number that is read when metrics are asked for.

    Attributes:
        name: Of the metric, without the prefix that all have.
        told: What it says.
        read: Reads it: a number; by label values where there are labels, each a text or, of several
            labels, a tuple; None where nothing is told of it now, not even that there is such one.
        labels: Their names.
        only_grows: Whether it is a counter.
    """

    name: str
    told: str
    read: _Read
    labels: tuple[str, ...] = ()
    only_grows: bool = False

    def family(self, readings: GaugeReadings) -> Metric | None:
        """The metric as it is now."""
        value = self.read(readings)
        if value is None:
            return None
        kind = CounterMetricFamily if self.only_grows else GaugeMetricFamily
        found = kind(f"{PREFIX}{self.name}", self.told, labels=self.labels)
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
    Gauge("requests_in_flight", "Requests under way.", lambda read: read.in_flight()),
    Gauge("streams_open", "Streams that are open.", lambda read: read.streams()),
    Gauge("held_bytes", "Bytes of bodies that are held.", lambda read: read.held_bytes()),
    Gauge("forecast_queue", "Requests waiting for a forecast.", lambda read: read.queue()),
    Gauge(
        "fallback_share",
        "Of the last minute's decisions, those without a forecast.",
        lambda read: read.fallback_share(),
    ),
    Gauge(
        "lam",
        "The trade-off in force where a request names none, after budgets.",
        lambda read: {} if (lam := read.lam()) is None else lam,
    ),
    Gauge(
        "breaker_state",
        "A target's breaker: 0 closed, 1 half open, 2 open.",
        lambda read: {name: _STATES[state] for name, state in read.breakers().items()},
        ("target",),
    ),
    Gauge(
        "forecast_events",
        "What forecasting did, by kind.",
        lambda read: read.forecasts(),
        ("kind",),
        only_grows=True,
    ),
    Gauge(
        "receipt_events",
        "What became of receipts, by kind.",
        lambda read: read.receipts(),
        ("kind",),
        only_grows=True,
    ),
    Gauge("receipts_waiting", "Receipts waiting to be kept.", lambda read: read.receipts_waiting()),
    Gauge(
        "budget_dollars",
        "US dollars of a budget; an empty key is the whole gateway.",
        lambda read: {(b.key, b.per): b.dollars for b in read.budgets()},
        ("key", "per"),
    ),
    Gauge(
        "budget_left_dollars",
        "US dollars that are left of it in this hour or day.",
        lambda read: {(b.key, b.per): b.left for b in read.budgets()},
        ("key", "per"),
    ),
    Gauge(
        "drift",
        "Population stability index of a feature of the latest requests.",
        _of_drift("by_feature"),
        ("feature",),
    ),
    Gauge("drift_mean", "The mean of them.", _of_drift("mean")),
    Gauge("drift_largest", "The largest of them.", _of_drift("largest")),
    Gauge("drift_requests", "Of so many requests.", _of_drift("requests")),
)
GAUGES: dict[str, Gauge] = {gauge.name: gauge for gauge in _GAUGES}
"""Every gauge by its name; one that is put here is told at `/metrics` from then on."""


@final
class Gauges(Collector):
    """Turns readings into the metrics of all `GAUGES`.

    Args:
        readings: Where the numbers are read.
    """

    def __init__(self, readings: GaugeReadings) -> None:
        self._readings = readings

    def collect(self) -> Iterator[Metric]:
        """The metrics as they are now; what several gauges need is read once."""
        had = self._readings
        readings = replace(had, budgets=cache(had.budgets), drift=cache(had.drift))
        families = (gauge.family(readings) for gauge in GAUGES.values())
        yield from (family for family in families if family is not None)
        build = {"version": __version__, "python": platform.python_version()}
        yield InfoMetricFamily(f"{PREFIX}build", "What is running.", value=build)
        router = dict(had.router())
        if router:
            yield InfoMetricFamily(f"{PREFIX}router", "The router in use.", value=router)


OTHER = "other"
"""What a target is called that the pool doesn't have, or no longer."""
NOBODY = "none"
"""In place of a target where none was asked."""
_TOKENS = ("input", "cached", "output", "reasoning")
_SECONDS = (
    *(0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5),
    *(1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0),
)


@final
class _Registry(CollectorRegistry):
    """Tells no `_created`: half of all lines would be moments at which counting began.

    The library has a switch for this, but it is that of the whole process.
    """

    def collect(self) -> Iterator[Metric]:
        for metric in super().collect():
            metric.samples = [s for s in metric.samples if not s.name.endswith("_created")]
            yield metric


@final
class Metrics:
    """What Prometheus is told; it keeps its own registry.

    Values of labels are the pool's targets and words of the gateway, never what a client sent.

    Args:
        targets: The pool's targets.
        readings: Where the numbers are read that nobody counts request by request.
    """

    def __init__(self, targets: Iterable[str], *, readings: GaugeReadings | None = None) -> None:
        self._registry = _Registry()
        self._targets = frozenset(targets)
        self._registry.register(Gauges(readings or GaugeReadings()))
        count = self._counter
        self._requests = count(
            "requests", "Requests that ended.", "endpoint", "target", "outcome", "reason"
        )
        self._tokens = count("tokens", "Tokens; cached are of the input.", "target", "kind")
        self._dollars = count("dollars", "US dollars, where costs are known.", "target")
        self._estimated = count(
            "estimated_dollars", "US dollars that decisions expected to spend.", "target"
        )
        self._unpriced = count("unpriced_requests", "Requests of unknown cost.", "target")
        self._fallbacks = count("fallbacks", "Decisions without a forecast.", "reason")
        self._attempts = count("attempts", "Calls of targets, by their end.", "target", "end")
        self._retries = count("retries", "Further calls of the same target.", "target")
        self._failovers = count("failovers", "Calls of the next target, once one failed.", "target")
        self._passed = count(
            "plain_calls", "Calls that were passed on undecided.", "call", "target", "outcome"
        )
        self._refusals = count("refusals", "Requests that were refused undecided.", "status")
        seconds = Histogram(
            f"{PREFIX}stage_seconds",
            "Seconds of each stage.",
            ("stage", "target"),
            registry=self._registry,
            buckets=_SECONDS,
        )
        self._seconds: Callable[..., Histogram] = cache(seconds.labels)

    def use_targets(self, targets: Iterable[str]) -> None:
        """Go on with another pool's targets; what was counted stays."""
        self._targets = frozenset(targets)

    def refused(self, status: int) -> None:
        """Count a request that was refused before a target was chosen."""
        self._refusals(str(status)).inc()

    def passed(self, call: str, outcome: RequestOutcome) -> None:
        """Count a plain call that ended; it decided nothing and cost nothing."""
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
        """All metrics, and their content type, in the format that an `Accept` header asks for."""
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
                if tokens is not None and tokens > 0:  # a target may report what can't be true
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
            if before == attempt.target:
                self._retries(name).inc()
            elif before is not None:
                self._failovers(name).inc()
            before = attempt.target

    def _name(self, target: str | None) -> str:
        if target is None:
            return NOBODY
        return target if target in self._targets else OTHER

    def _counter(self, name: str, told: str, *labels: str) -> Callable[..., Counter]:
        made = Counter(f"{PREFIX}{name}", told, labels, registry=self._registry)
        return cache(made.labels)  # finding a child anew takes longer than counting
