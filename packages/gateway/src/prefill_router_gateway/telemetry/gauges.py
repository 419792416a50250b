"""Gauges for Prometheus, which are read on each scrape."""

import platform
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal, final

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, InfoMetricFamily, Metric

from prefill_router import __version__
from prefill_router.endpoints import BreakerState
from prefill_router_gateway.forecast import Drift


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
    """What gauges show at one scrape: the numbers that aren't counted per request.

    Names become label values, so they must be few and never come from a client.

    Attributes:
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
        shared: Numbers of the shared state: `down`, `replicas`, `losses`; empty without one.
        learning: US dollars spent on scores and side answers, by kind.
        drift: The drift of requests; None while there are too few.
        router: Labels of the router: `fingerprint`, `policy`, `encoder`, ...
        versions: The share of conversations that each of the router's versions decides on.
    """

    in_flight: int = 0
    streams: int = 0
    held_bytes: int = 0
    queue: int = 0
    fallback_share: float = 0.0
    lam: float | None = None
    breakers: Mapping[str, BreakerState] = field(default_factory=dict)
    deployment_breakers: Mapping[str, BreakerState] = field(default_factory=dict)
    forecasts: Mapping[str, float] = field(default_factory=dict)
    receipts: Mapping[str, float] = field(default_factory=dict)
    receipts_waiting: int = 0
    budgets: Sequence[BudgetLeft] = ()
    shared: Mapping[str, float] = field(default_factory=dict)
    learning: Mapping[str, float] = field(default_factory=dict)
    drift: Drift | None = None
    router: Mapping[str, str] = field(default_factory=dict)
    versions: Mapping[str, float] = field(default_factory=dict)


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
        is_sum: Whether the values of several workers are added; the largest counts otherwise.
    """

    name: str
    description: str
    read: _Read
    labels: tuple[str, ...] = ()
    only_grows: bool = False
    is_sum: bool = False

    def family(self, readings: GaugeReadings) -> Metric | None:
        """The metric with its current value; None to leave it out."""
        value = self.read(readings)
        if value is None:
            return None
        kind = CounterMetricFamily if self.only_grows else GaugeMetricFamily
        metric = kind(f"{PREFIX}{self.name}", self.description, labels=self.labels)
        rows = value if isinstance(value, Mapping) else {(): value}
        for labels, number in rows.items():
            metric.add_metric((labels,) if isinstance(labels, str) else labels, number)
        return metric


PREFIX = "prefill_router_"
_STATES = {"closed": 0.0, "half_open": 1.0, "open": 2.0}


def _of_drift(field: str) -> _Read:
    def read(readings: GaugeReadings) -> Any:
        drift = readings.drift
        return None if drift is None else getattr(drift, field)

    return read


_total = partial(Gauge, is_sum=True)
_GAUGES = (
    _total("requests_in_flight", "Requests in flight.", lambda read: read.in_flight),
    _total("streams_open", "Open streams.", lambda read: read.streams),
    _total("held_bytes", "Bytes of request bodies in memory.", lambda read: read.held_bytes),
    _total("forecast_queue", "Requests waiting for a forecast.", lambda read: read.queue),
    Gauge(
        "fallback_share",
        "Share of the last minute's decisions without a forecast.",
        lambda read: read.fallback_share,
    ),
    Gauge(
        "lam",
        "Trade-off of requests that give none, after budgets.",
        lambda read: {} if (lam := read.lam) is None else lam,
    ),
    Gauge(
        "breaker_state",
        "State of a target's breaker: 0 closed, 1 half open, 2 open.",
        lambda read: {name: _STATES[state] for name, state in read.breakers.items()},
        ("target",),
    ),
    Gauge(
        "deployment_breaker_state",
        "State of the breaker of one of a target's several endpoints, as in breaker_state.",
        lambda read: {name: _STATES[state] for name, state in read.deployment_breakers.items()},
        ("deployment",),
    ),
    Gauge(
        "forecast_events",
        "Events of forecasting, by kind.",
        lambda read: read.forecasts,
        ("kind",),
        only_grows=True,
    ),
    Gauge(
        "receipt_events",
        "Events of receipts, by kind.",
        lambda read: read.receipts,
        ("kind",),
        only_grows=True,
    ),
    _total("receipts_waiting", "Receipts in the queue.", lambda read: read.receipts_waiting),
    Gauge(
        "budget_dollars",
        "US dollars of a budget; an empty key means the whole gateway.",
        lambda read: {(b.key, b.per): b.dollars for b in read.budgets},
        ("key", "per"),
    ),
    Gauge(
        "budget_left_dollars",
        "US dollars of a budget that remain in this hour or day.",
        lambda read: {(b.key, b.per): b.left for b in read.budgets},
        ("key", "per"),
    ),
    Gauge(
        "shared_down",
        "Whether the database that replicas share can't be used: 1 or 0.",
        lambda read: read.shared.get("down"),
    ),
    Gauge(
        "shared_replicas",
        "Replicas that share a database, as last known.",
        lambda read: read.shared.get("replicas"),
    ),
    Gauge(
        "shared_losses",
        "How often the database that replicas share became unavailable.",
        lambda read: read.shared.get("losses"),
        only_grows=True,
    ),
    Gauge(
        "version_share",
        "Share of conversations that a version of the router decides on.",
        lambda read: read.versions,
        ("version",),
    ),
    Gauge(
        "savings_learning_dollars",
        "US dollars spent on judging answers and on side answers, of all receipts.",
        lambda read: read.learning,
        ("kind",),
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
    _total("drift_requests", "Requests that the drift is measured on.", _of_drift("requests")),
)
GAUGES: dict[str, Gauge] = {gauge.name: gauge for gauge in _GAUGES}
"""All gauges by name; gauges added here appear at `/metrics`."""


def gauge_metrics(readings: GaugeReadings) -> Iterator[Metric]:
    """The metrics of all `GAUGES`, with the values of these readings."""
    families = (gauge.family(readings) for gauge in GAUGES.values())
    yield from (family for family in families if family is not None)
    build = {"version": __version__, "python": platform.python_version()}
    yield InfoMetricFamily(f"{PREFIX}build", "Versions of the running gateway.", value=build)
    if readings.router:
        router = dict(readings.router)
        yield InfoMetricFamily(f"{PREFIX}router", "The router in use.", value=router)
