"""Metrics for Prometheus: some are counted once for each request, gauges are read when asked."""

import platform
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Literal, final

from prometheus_client import CollectorRegistry, Counter, Histogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, InfoMetricFamily, Metric
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector

from prefill_router import __version__
from prefill_router.gateway.records import Receipt, RequestOutcome
from prefill_router.gateway.telemetry.recent import Drift

BreakerState = Literal["closed", "half_open", "open"]
Numbers = Mapping[str, float]


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


def _nothing() -> Numbers:
    return {}


def _none() -> None:
    return None


@final
@dataclass(frozen=True, kw_only=True)
class GaugeReadings:
    """Where the numbers are read that nobody counts request by request.

    Each is called when metrics are asked for, on the event loop, and must be quick. Names become
    label values, so they must be few and never a client's.

    Attributes:
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

    in_flight: Callable[[], int] = lambda: 0
    streams: Callable[[], int] = lambda: 0
    held_bytes: Callable[[], int] = lambda: 0
    queue: Callable[[], int] = lambda: 0
    fallback_share: Callable[[], float] = lambda: 0.0
    lam: Callable[[], float | None] = _none
    breakers: Callable[[], Mapping[str, BreakerState]] = lambda: {}
    forecasts: Callable[[], Numbers] = _nothing
    receipts: Callable[[], Numbers] = _nothing
    receipts_waiting: Callable[[], int] = lambda: 0
    budgets: Callable[[], Sequence[BudgetLeft]] = lambda: ()
    drift: Callable[[], Drift | None] = _none
    router: Callable[[], Mapping[str, str]] = lambda: {}


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
        self._seconds = self._histogram("stage_seconds", "Seconds of each stage.")

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

    def _histogram(self, name: str, told: str) -> Callable[..., Histogram]:
        labels = ("stage", "target")
        made = Histogram(f"{PREFIX}{name}", told, labels, registry=self._registry, buckets=_SECONDS)
        return cache(made.labels)


PREFIX = "prefill_router_"
_STATES = {"closed": 0.0, "half_open": 1.0, "open": 2.0}
_Rows = Iterable[tuple[tuple[str, ...], float]]


@final
class Gauges(Collector):
    """Turns `GaugeReadings` into metrics.

    Args:
        readings: Where the numbers are read.
    """

    def __init__(self, readings: GaugeReadings) -> None:
        self._read = readings

    def collect(self) -> Iterator[Metric]:
        """The metrics as they are now."""
        read = self._read
        yield _gauge("requests_in_flight", "Requests under way.", rows=[((), read.in_flight())])
        yield _gauge("streams_open", "Streams that are open.", rows=[((), read.streams())])
        yield _gauge("held_bytes", "Bytes of bodies that are held.", rows=[((), read.held_bytes())])
        yield _gauge(
            "forecast_queue", "Requests waiting for a forecast.", rows=[((), read.queue())]
        )
        yield _gauge(
            "fallback_share",
            "Of the last minute's decisions, those without a forecast.",
            rows=[((), read.fallback_share())],
        )
        lam = read.lam()
        yield _gauge(
            "lam",
            "The trade-off in force where a request names none, after budgets.",
            rows=[] if lam is None else [((), lam)],
        )
        yield _gauge(
            "breaker_state",
            "A target's breaker: 0 closed, 1 half open, 2 open.",
            labels=("target",),
            rows=[((name,), _STATES[state]) for name, state in read.breakers().items()],
        )
        yield _events("forecast_events", "What forecasting did, by kind.", read.forecasts())
        yield _events("receipt_events", "What became of receipts, by kind.", read.receipts())
        yield _gauge(
            "receipts_waiting", "Receipts waiting to be kept.", rows=[((), read.receipts_waiting())]
        )
        yield from self._budgets()
        yield from self._drift()
        yield from self._told()

    def _budgets(self) -> Iterator[Metric]:
        budgets = list(self._read.budgets())
        labels = ("key", "per")
        yield _gauge(
            "budget_dollars",
            "US dollars of a budget; an empty key is the whole gateway.",
            labels=labels,
            rows=[((b.key, b.per), b.dollars) for b in budgets],
        )
        yield _gauge(
            "budget_left_dollars",
            "US dollars that are left of it in this hour or day.",
            labels=labels,
            rows=[((b.key, b.per), b.left) for b in budgets],
        )

    def _drift(self) -> Iterator[Metric]:
        drift = self._read.drift()
        if drift is None:
            return
        yield _gauge(
            "drift",
            "Population stability index of a feature of the latest requests.",
            labels=("feature",),
            rows=[((name,), value) for name, value in drift.by_feature.items()],
        )
        yield _gauge("drift_mean", "The mean of them.", rows=[((), drift.mean)])
        yield _gauge("drift_largest", "The largest of them.", rows=[((), drift.largest)])
        yield _gauge("drift_requests", "Of so many requests.", rows=[((), drift.requests)])

    def _told(self) -> Iterator[Metric]:
        build = {"version": __version__, "python": platform.python_version()}
        yield InfoMetricFamily(f"{PREFIX}build", "What is running.", value=build)
        router = dict(self._read.router())
        if router:
            yield InfoMetricFamily(f"{PREFIX}router", "The router in use.", value=router)


def _gauge(name: str, told: str, *, labels: tuple[str, ...] = (), rows: _Rows) -> Metric:
    found = GaugeMetricFamily(f"{PREFIX}{name}", told, labels=labels)
    for values, value in rows:
        found.add_metric(values, value)
    return found


def _events(name: str, told: str, numbers: Numbers) -> Metric:
    found = CounterMetricFamily(f"{PREFIX}{name}", told, labels=("kind",))
    for kind, value in numbers.items():
        found.add_metric((kind,), value)
    return found
