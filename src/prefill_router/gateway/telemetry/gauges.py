"""The metrics that are read when they are asked for (Prometheus)."""

import platform
from collections.abc import Iterable, Iterator
from typing import final

from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    InfoMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from prefill_router import __version__
from prefill_router.gateway.telemetry.readings import Numbers, Readings

PREFIX = "prefill_router_"
_STATES = {"closed": 0.0, "half_open": 1.0, "open": 2.0}
_Rows = Iterable[tuple[tuple[str, ...], float]]


@final
class Gauges(Collector):
    """Turns `Readings` into metrics.

    Args:
        readings: Where the numbers are read.
    """

    def __init__(self, readings: Readings) -> None:
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
