"""What Prometheus counts of each request.

The counters, and some gauges, of several workers are added, and shown as those of one gateway.
"""

from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import replace
from functools import cache
from typing import Any, final

from prometheus_client import CollectorRegistry, Counter, Histogram
from prometheus_client.core import Metric
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector
from prometheus_client.samples import Sample

from prefill_router_gateway.records import Receipt, RequestOutcome
from prefill_router_gateway.settings import SavingsSettings
from prefill_router_gateway.telemetry.gauges import PREFIX, GaugeReadings, gauge_metrics

PlainFamily = list[Any]
"""A metric as plain values: name, description, type, and samples of name, labels and value."""
_ADDED = ("counter", "histogram")


def plain_families(metrics: Iterable[Metric]) -> list[PlainFamily]:
    """Metrics as plain values."""
    return [
        [m.name, m.documentation, m.type, [[s.name, s.labels, s.value] for s in m.samples]]
        for m in metrics
    ]


def counters_of(families: Iterable[PlainFamily]) -> list[PlainFamily]:
    """What counts on after its worker has ended, so that no sum ever falls."""
    return [family for family in families if family[2] in _ADDED]


def merge_families(
    workers: Iterable[list[PlainFamily]], *, sums: Collection[str]
) -> list[PlainFamily]:
    """The metrics of several workers as those of one gateway.

    Args:
        workers: The metrics of each.
        sums: The gauges whose values are added; the largest counts of the others.
    """
    heads: dict[str, PlainFamily] = {}
    values: dict[str, dict[tuple[str, tuple[tuple[str, str], ...]], float]] = {}
    for name, description, kind, samples in (family for worker in workers for family in worker):
        heads.setdefault(name, [name, description, kind])
        totals = values.setdefault(name, {})
        for sample, labels, value in samples:
            place = sample, tuple(sorted(labels.items()))
            is_added = kind in _ADDED or name in sums
            before = totals.get(place)
            if before is None:
                totals[place] = value
            else:
                totals[place] = before + value if is_added else max(before, value)
    return [
        [*head, [[sample, dict(labels), n] for (sample, labels), n in values[name].items()]]
        for name, head in heads.items()
    ]


def render_metrics(families: Iterable[PlainFamily], accept: str = "") -> tuple[bytes, str]:
    """Metrics as Prometheus reads them, and their content type.

    Args:
        families: The metrics.
        accept: The `Accept` header, which requests a format.
    """
    registry = CollectorRegistry()
    registry.register(_PlainCollector(list(families)))
    encode, kind = choose_encoder(accept)
    return encode(registry), kind


@final
class _PlainCollector(Collector):
    def __init__(self, families: list[PlainFamily]) -> None:
        self._families = families

    def collect(self) -> Iterator[Metric]:
        for name, description, kind, samples in self._families:
            metric = Metric(name, description, kind)
            metric.samples = [Sample(*sample) for sample in samples]
            yield metric


OTHER = "other"
"""The label of a target that isn't in the pool, or no longer."""
NOBODY = "none"
"""The label where no target was called."""
_TOKENS = ("input", "cached", "output", "reasoning")
_SECONDS = (
    *(0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5),
    *(1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0),
)
_MOST_UNCOUNTED = 256
"""The most receipts whose savings aren't counted yet."""


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
    """

    def __init__(self, targets: Iterable[str]) -> None:
        self._registry = _Registry()
        self._targets = frozenset(targets)
        count = self._make_counter
        self._requests = count(
            "requests", "Completed requests.", "endpoint", "target", "outcome", "reason"
        )
        self._tokens = count("tokens", "Tokens; cached ones are part of input.", "target", "kind")
        self._dollars = count("dollars", "US dollars spent, where costs are known.", "target")
        self._estimated = count(
            "estimated_dollars", "US dollars that decisions estimated.", "target"
        )
        self._unpriced = count("unpriced_requests", "Requests of unknown cost.", "target")
        self._observed = count(
            "observed_dollars", "US dollars of answers whose cost had been estimated.", "target"
        )
        self._expected = count(
            "expected_dollars", "What had been estimated for them, with nothing cached.", "target"
        )
        self._add_outcome_counters()
        self._add_savings_counters()
        self._refusals = count("refusals", "Requests refused before a decision.", "status")
        seconds = Histogram(
            f"{PREFIX}stage_seconds",
            "Duration of each stage in seconds.",
            ("stage", "target"),
            registry=self._registry,
            buckets=_SECONDS,
        )
        self._seconds: Callable[..., Histogram] = cache(seconds.labels)
        self._uncounted: list[Receipt] = []
        self._encoder_prices = SavingsSettings()

    def _add_outcome_counters(self) -> None:
        count = self._make_counter
        self._feedback = count("feedback", "Scores of answers from clients.")
        self._scores = count("feedback_score", "The sum of these scores, each from 0 to 1.")
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

    def _add_savings_counters(self) -> None:
        count = self._make_counter
        self._saving_spent = count(
            "savings_spent_dollars",
            "US dollars spent on requests compared with a baseline.",
            "baseline",
        )
        self._saving_there = count(
            "savings_baseline_dollars", "What they would have cost there, estimated.", "baseline"
        )
        self._saving_unpriced = count(
            "savings_unpriced_requests", "Routed requests without a cost to compare.", "baseline"
        )
        self._deducted = count(
            "savings_deducted_dollars", "US dollars that routing itself cost, by kind.", "kind"
        )

    def use_targets(self, targets: Iterable[str]) -> None:
        """Use another pool's targets; counts are kept."""
        self._targets = frozenset(targets)

    def count_refusal(self, status: int) -> None:
        """Count a request that was refused before a target was chosen."""
        self._refusals(str(status)).inc()

    def count_passthrough(self, call: str, outcome: RequestOutcome) -> None:
        """Count a passthrough call that ended; it has no decision and no cost."""
        self._passed(call, self._label_target(outcome.target), outcome.kind).inc()

    def count_score(self, score: float) -> None:
        """Count a client's score of an answer, from 0 to 1."""
        self._feedback().inc()
        self._scores().inc(score)

    def use_encoder_prices(self, prices: SavingsSettings) -> None:
        """Count forecasts at other prices."""
        self._count_savings()
        self._encoder_prices = prices

    def observe(self, receipt: Receipt) -> None:
        """Count a request that ended."""
        outcome, choice = receipt.outcome, receipt.choice
        target = self._label_target(outcome.target)
        chosen_target = self._label_target(choice.order[0] if choice.order else None)
        self._requests(receipt.endpoint, target, outcome.kind, choice.reason).inc()
        if choice.fallback is not None:
            self._fallbacks(choice.fallback).inc()
        estimated = choice.estimated_cost.get(choice.order[0]) if choice.order else None
        if estimated is not None:
            self._estimated(chosen_target).inc(estimated)
        self._uncounted.append(receipt)
        if len(self._uncounted) >= _MOST_UNCOUNTED:
            self._count_savings()
        self._observe_outcome(receipt, target)
        self._seconds("decision", chosen_target).observe(receipt.decision_seconds)
        if receipt.forecast_seconds is not None:
            self._seconds("forecast", chosen_target).observe(receipt.forecast_seconds)

    def observe_report(self, receipt: Receipt) -> None:
        """Count the outcome of a request that was counted when it was decided."""
        self._observe_outcome(receipt, self._label_target(receipt.outcome.target))
        self._uncounted.append(replace(receipt, forecast_seconds=None))  # which was deducted then

    def export(self, readings: GaugeReadings) -> list[PlainFamily]:
        """All metrics as plain values, with gauges that show these readings."""
        self._count_savings()
        return plain_families([*gauge_metrics(readings), *self._registry.collect()])

    def _observe_outcome(self, receipt: Receipt, target: str) -> None:
        outcome, usage = receipt.outcome, receipt.outcome.usage
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
            self._compare_estimate(receipt, target)
        elif outcome.attempts:
            self._unpriced(target).inc()
        self._observe_attempts(receipt)
        if outcome.first_byte_seconds is not None:
            self._seconds("first_byte", target).observe(outcome.first_byte_seconds)
        if outcome.kind != "routed":
            self._seconds("total", target).observe(outcome.total_seconds)

    def _count_savings(self) -> None:
        """Count what was saved by the requests since the last time; no request waits for it."""
        counted, self._uncounted = self._uncounted, []
        for receipt in counted:
            baseline, waited = receipt.baseline, receipt.forecast_seconds
            spent = None if waited is None else self._encoder_prices.encoder_cost(1, waited)
            if spent is not None:
                self._deducted("encoder").inc(spent)
            if baseline is None or receipt.apart is not None:
                continue
            there = receipt.cost_at(baseline)
            if receipt.cost is None or there is None:
                self._saving_unpriced(baseline).inc()
            else:
                self._saving_spent(baseline).inc(receipt.cost)
                self._saving_there(baseline).inc(there)

    def _compare_estimate(self, receipt: Receipt, target: str) -> None:
        """Count a cost beside the estimate of the target that answered."""
        expected = receipt.choice.estimated_cost.get(receipt.outcome.target or "")
        if expected is not None and receipt.cost is not None and not receipt.cost_is_estimated:
            self._observed(target).inc(receipt.cost)
            self._expected(target).inc(expected)

    def _observe_attempts(self, receipt: Receipt) -> None:
        before = None
        for attempt in receipt.outcome.attempts:
            name = self._label_target(attempt.target)
            self._attempts(name, attempt.end).inc()
            if attempt.deployment is not None:
                self._deployment_attempts(attempt.deployment, attempt.end).inc()
            called = attempt.deployment or attempt.target
            if before == called:
                self._retries(name).inc()
            elif before is not None:
                self._failovers(name).inc()
            before = called

    def _label_target(self, target: str | None) -> str:
        if target is None:
            return NOBODY
        return target if target in self._targets else OTHER

    def _make_counter(self, name: str, description: str, *labels: str) -> Callable[..., Counter]:
        counter = Counter(f"{PREFIX}{name}", description, labels, registry=self._registry)
        if not labels:
            return lambda: counter
        return cache(counter.labels)  # looking up a child takes longer than counting
