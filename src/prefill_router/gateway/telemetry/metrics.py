"""Metrics for Prometheus, counted once for each request."""

from collections.abc import Callable, Iterable, Iterator
from functools import cache
from typing import final

from prometheus_client import CollectorRegistry, Counter, Histogram, Metric
from prometheus_client.exposition import choose_encoder

from prefill_router.gateway.outcome import Outcome
from prefill_router.gateway.receipts.receipt import Receipt
from prefill_router.gateway.telemetry.gauges import PREFIX, Gauges
from prefill_router.gateway.telemetry.readings import Readings

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

    def __init__(self, targets: Iterable[str], *, readings: Readings | None = None) -> None:
        self._registry = _Registry()
        self._targets = frozenset(targets)
        self._registry.register(Gauges(readings or Readings()))
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

    def passed(self, call: str, outcome: Outcome) -> None:
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
