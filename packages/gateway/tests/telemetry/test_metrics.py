"""Metrics as Prometheus reads them, drift by hand, health."""

import asyncio
import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, strategies as st
from prometheus_client import REGISTRY, CollectorRegistry, Counter, generate_latest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as openmetrics
from prometheus_client.parser import text_string_to_metric_families

from benchmarks._soak_audit import audit
from packages.gateway.tests.telemetry.receipts import RECEIPT, attempt, receipt, render_text
from prefill_router.endpoints import Usage
from prefill_router_gateway.forecast import Drift, DriftWatch, stability_index
from prefill_router_gateway.telemetry import (
    GAUGES,
    BudgetLeft,
    EventLoopLag,
    Gauge,
    GaugeReadings,
    Health,
    HealthFinding,
    Metrics,
    check_encoder,
    check_receipts,
    check_shared,
    check_targets,
    render_metrics,
)

OPENMETRICS = "application/openmetrics-text; version=1.0.0"
Samples = dict[tuple[str, tuple[tuple[str, str], ...]], float]


def read_samples(metrics: Metrics, readings: GaugeReadings | None = None) -> Samples:
    body, kind = render_metrics(metrics.export(readings or GaugeReadings()))
    assert kind.startswith("text/plain; version=0.0.4")
    return {
        (
            sample.name.removeprefix("prefill_router_"),
            tuple(sorted(sample.labels.items())),
        ): sample.value
        for family in text_string_to_metric_families(body.decode())
        for sample in family.samples
    }


def read_value(samples: Samples, name: str, **labels: str) -> float | None:
    return samples.get((name, tuple(sorted(labels.items()))))


def test_a_request_is_counted() -> None:
    metrics = Metrics(["small", "large"])
    metrics.observe(RECEIPT)
    metrics.observe(RECEIPT)
    samples = read_samples(metrics)
    labels = {"endpoint": "chat", "target": "small", "outcome": "answered", "reason": "policy"}
    assert read_value(samples, "requests_total", **labels) == 2
    tokens = [
        read_value(samples, "tokens_total", target="small", kind=k) for k in ("input", "cached")
    ]
    assert tokens == [200, 80]
    assert read_value(samples, "tokens_total", target="small", kind="output") == 100
    assert read_value(samples, "tokens_total", target="small", kind="reasoning") is None
    assert read_value(samples, "dollars_total", target="small") == 0.004
    assert read_value(samples, "estimated_dollars_total", target="small") == 0.002
    assert read_value(samples, "attempts_total", target="small", end="answered") == 2
    for stage, seconds in (
        ("decision", 0.06),
        ("forecast", 0.04),
        ("first_byte", 0.5),
        ("total", 4),
    ):
        where = {"stage": stage, "target": "small"}
        assert read_value(samples, "stage_seconds_sum", **where) == pytest.approx(seconds)
        assert read_value(samples, "stage_seconds_count", **where) == 2
    assert read_value(samples, "stage_seconds_bucket", stage="total", target="small", le="1.0") == 0
    assert read_value(samples, "stage_seconds_bucket", stage="total", target="small", le="2.5") == 2


def test_failures_are_counted_where_they_happened() -> None:
    metrics = Metrics(["small", "large"])
    ends = (
        attempt("small", "overloaded"),
        attempt("small", "silence"),
        attempt("large", "connect"),
    )
    failure = receipt(
        choice={"reason": "fallback", "fallback": "deadline"},
        outcome={"kind": "failed", "target": None, "status": 502, "attempts": ends, "usage": None},
    )
    metrics.observe(replace(failure, cost=None, forecast_seconds=None))
    samples = read_samples(metrics)
    labels = {"endpoint": "chat", "target": "none", "outcome": "failed", "reason": "fallback"}
    assert read_value(samples, "requests_total", **labels) == 1
    assert read_value(samples, "fallbacks_total", reason="deadline") == 1
    assert read_value(samples, "attempts_total", target="small", end="silence") == 1
    assert read_value(samples, "retries_total", target="small") == 1
    assert read_value(samples, "failovers_total", target="large") == 1
    assert read_value(samples, "failovers_total", target="small") is None
    assert read_value(samples, "unpriced_requests_total", target="none") == 1
    assert read_value(samples, "stage_seconds_count", stage="forecast", target="small") is None


def test_costs_are_counted_beside_the_estimate_of_the_target_that_answered() -> None:
    metrics = Metrics(["small", "large"])
    estimates = {"choice": {"estimated_cost": {"small": 0.001, "large": 0.01}}}
    metrics.observe(replace(receipt(**estimates, outcome={"target": "large"}), cost=0.03))
    metrics.observe(replace(receipt(**estimates), cost=0.5, cost_is_estimated=True))
    metrics.observe(replace(receipt(choice={"estimated_cost": {}}), cost=0.5))
    samples = read_samples(metrics)
    assert read_value(samples, "observed_dollars_total", target="large") == 0.03
    assert read_value(samples, "expected_dollars_total", target="large") == 0.01
    assert read_value(samples, "observed_dollars_total", target="small") is None


def test_feedback_is_counted_with_its_sum() -> None:
    metrics = Metrics([])
    for score in (1.0, 0.25):
        metrics.count_score(score)
    samples = read_samples(metrics)
    assert read_value(samples, "feedback_total") == 2
    assert read_value(samples, "feedback_score_total") == 1.25


def test_token_counts_that_cannot_be_true_are_not_counted() -> None:
    metrics = Metrics(("small", "large"))
    usage = Usage(input_tokens=-5, cached_tokens=None, output_tokens=3, reasoning_tokens=-1)
    metrics.observe(receipt(outcome={"usage": usage}))
    samples = read_samples(metrics)
    assert read_value(samples, "tokens_total", target="small", kind="output") == 3
    for kind in ("input", "cached", "reasoning"):
        assert read_value(samples, "tokens_total", target="small", kind=kind) is None


def test_labels_are_never_a_clients_words() -> None:
    metrics = Metrics(["small"])
    odd = receipt(
        choice={"order": ("evil {}\n",), "estimated_cost": {}},
        outcome={"target": "evil {}\n", "attempts": (attempt("evil {}\n"),)},
    )
    metrics.observe(replace(odd, requested="a secret name", key="a secret key"))
    body = render_text(metrics)
    assert "evil" not in body
    assert "secret" not in body
    assert read_value(read_samples(metrics), "attempts_total", target="other", end="answered") == 1
    metrics.use_targets(["small", "evil {}\n"])
    metrics.observe(odd)
    assert (
        read_value(read_samples(metrics), "attempts_total", target="evil {}\n", end="answered") == 1
    )


def test_refusals_are_counted_by_status() -> None:
    metrics = Metrics([])
    for status in (401, 401, 413):
        metrics.count_refusal(status)
    samples = read_samples(metrics)
    assert read_value(samples, "refusals_total", status="401") == 2
    assert read_value(samples, "refusals_total", status="413") == 1


def test_gauges_show_the_readings() -> None:
    readings = GaugeReadings(
        in_flight=7,
        streams=5,
        queue=3,
        lam=0.25,
        breakers={"small": "closed", "large": "open", "third": "half_open"},
        forecasts={"batches": 11, "cache_hits": 4},
        receipts={"kept": 9, "lost": 1},
        receipts_waiting=2,
        shared={"down": True, "replicas": 3, "losses": 1},
        budgets=[BudgetLeft(key="", per="day", dollars=10, left=2.5)],
        drift=Drift(requests=300, by_feature={"length": 0.3}, mean=0.3, largest=0.3),
        router={"fingerprint": "abc"},
    )
    samples = read_samples(Metrics(["small"]), readings)
    assert read_value(samples, "requests_in_flight") == 7
    assert read_value(samples, "streams_open") == 5
    assert read_value(samples, "forecast_queue") == 3
    assert read_value(samples, "lam") == 0.25
    states = [read_value(samples, "breaker_state", target=t) for t in ("small", "third", "large")]
    assert states == [0, 1, 2]
    assert read_value(samples, "forecast_events_total", kind="cache_hits") == 4
    assert read_value(samples, "receipt_events_total", kind="lost") == 1
    assert read_value(samples, "receipts_waiting") == 2
    names = ("shared_down", "shared_replicas", "shared_losses_total")
    assert [read_value(samples, name) for name in names] == [1, 3, 1]
    assert read_value(samples, "budget_left_dollars", key="", per="day") == 2.5
    assert read_value(samples, "budget_dollars", key="", per="day") == 10
    assert read_value(samples, "drift", feature="length") == 0.3
    assert read_value(samples, "drift_largest") == 0.3
    assert read_value(samples, "router_info", fingerprint="abc") == 1
    assert [name for name, _ in samples if name == "build_info"]


def test_openmetrics_is_given_to_those_who_ask_for_it() -> None:
    metrics = Metrics(["small"])
    metrics.observe(RECEIPT)
    body, kind = render_metrics(metrics.export(GaugeReadings()), OPENMETRICS)
    assert kind.startswith("application/openmetrics-text; version=1.0.0")
    names = {family.name for family in openmetrics(body.decode())}
    assert {
        "prefill_router_requests",
        "prefill_router_build",
        "prefill_router_streams_open",
    } <= names


@pytest.mark.parametrize("accept", ["", OPENMETRICS])
def test_when_counting_began_isnt_told_here_and_still_is_elsewhere(accept: str) -> None:
    metrics = Metrics(["small"])
    metrics.observe(RECEIPT)
    body = render_text(metrics, accept=accept)
    assert "_total{" in body
    assert "_bucket{" in body
    assert "_created" not in body
    others = CollectorRegistry()
    Counter("others", "Of who embeds the gateway.", registry=others).inc()
    assert b"others_created" in generate_latest(others)


def test_the_global_registry_is_left_alone() -> None:
    Metrics(["small"]).observe(RECEIPT)
    Metrics(["small"]).observe(RECEIPT)  # a second object in the process must not clash
    assert not [f.name for f in REGISTRY.collect() if f.name.startswith("prefill_router")]


def test_the_index_by_hand() -> None:
    even = [20] * 10
    assert stability_index(even) == pytest.approx(0)
    # all 200 values in one bin: shares 200.5 / 205 and nine of 0.5 / 205
    full_bin, empty_bin = 200.5 / 205, 0.5 / 205
    by_hand = (full_bin - 0.1) * math.log(full_bin / 0.1) + 9 * (empty_bin - 0.1) * math.log(
        empty_bin / 0.1
    )
    assert stability_index([200, *[0] * 9]) == pytest.approx(by_hand)
    # 5 % of the weight moves between two bins; counts are so large that 0.5 is negligible
    counts = [10**9] * 8 + [15 * 10**8, 5 * 10**8]
    by_hand = 0.05 * math.log(1.5) - 0.05 * math.log(0.5)
    assert stability_index(counts) == pytest.approx(by_hand, rel=1e-6)


@given(st.lists(st.integers(0, 1000), min_size=10, max_size=10))
def test_the_index_is_never_negative_and_has_no_order(counts: list[int]) -> None:
    assert stability_index(counts) >= -1e-12
    assert stability_index(counts[::-1]) == pytest.approx(stability_index(counts))


def test_drift_looks_at_the_latest_requests_alone() -> None:
    random = np.random.default_rng(0)
    rows = [tuple(map(int, random.integers(0, 10, 2))) for _ in range(500)]
    watch = DriftWatch(["length", "digits"], window=250)
    for row in rows[:199]:
        watch.add(row)
    assert watch.report() is None
    for row in rows[199:]:
        watch.add(row)
    watch.add(())
    watch.add((1, 2, 3))
    report = watch.report()
    assert report is not None
    assert report.requests == 250
    for n, name in enumerate(("length", "digits")):
        counts = np.bincount([row[n] for row in rows[-250:]], minlength=10)
        assert report.by_feature[name] == pytest.approx(stability_index(counts.tolist()))
    assert report.mean == pytest.approx(sum(report.by_feature.values()) / 2)
    assert report.largest == max(report.by_feature.values())
    assert report.largest < 0.25
    for _ in range(250):
        watch.add((0, 4))
    assert watch.report().mean > 0.25  # type: ignore[union-attr]


def test_nothing_to_watch_is_nothing_to_report() -> None:
    watch = DriftWatch([])
    for _ in range(300):
        watch.add(())
    assert watch.report() is None


def test_health_tells_the_worst() -> None:
    states = {"a": HealthFinding("ok"), "b": HealthFinding("ok")}
    health = Health(
        alive={"a": lambda: states["a"]}, ready={"a": lambda: states["a"], "b": lambda: states["b"]}
    )
    assert health.ready().status == 200
    assert health.ready().value == {
        "state": "ready",
        "checks": {"a": {"state": "ok"}, "b": {"state": "ok"}},
    }
    states["b"] = HealthFinding("degraded", "slow")
    assert (health.ready().status, health.ready().value["state"]) == (200, "degraded")
    assert health.alive().value["state"] == "alive"
    states["a"] = HealthFinding("failed", "gone")
    assert (health.ready().status, health.ready().value["state"]) == (503, "not_ready")
    assert (health.alive().status, health.alive().value["state"]) == (503, "failing")
    assert health.ready().value["checks"]["b"]["note"] == "slow"


def test_what_the_checks_find() -> None:
    assert check_encoder("ready", fallback="prior").verdict == "ok"
    assert check_encoder("down", fallback="prior").verdict == "degraded"
    assert check_targets({"a": "closed", "b": "half_open"}).verdict == "ok"
    some = check_targets({"a": "closed", "large": "open", "b": "open"})
    assert (some.verdict, some.note) == ("degraded", "2 of 3 targets have failed: large, b")
    every = check_targets({"a": "open"})
    assert (every.verdict, every.note) == ("failed", "1 of 1 targets have failed: a")
    assert check_targets({}).verdict == "failed"
    assert check_receipts(healthy=True, lost=0).verdict == "ok"
    assert check_receipts(healthy=True, lost=1).verdict == "degraded"
    assert check_receipts(healthy=False, lost=0).verdict == "degraded"
    assert check_shared(is_in_step=True, is_out_of_lease=False).verdict == "ok"
    assert check_shared(is_in_step=False, is_out_of_lease=False).verdict == "degraded"
    assert check_shared(is_in_step=False, is_out_of_lease=True).verdict == "failed"


def test_an_event_loop_that_is_held_up_is_noticed() -> None:
    now = [0.0]
    pulse = EventLoopLag(clock=lambda: now[0])
    assert pulse.check().verdict == "failed"
    for _ in range(3):
        pulse.beat()
        now[0] += 0.5
    assert pulse.check() == HealthFinding("ok")
    now[0] += 7
    assert pulse.check().verdict == "failed"
    pulse.beat()
    assert pulse.check().verdict == "degraded"
    assert pulse.latest == pytest.approx(7)
    for _ in range(130):
        now[0] += 0.5
        pulse.beat()
    assert pulse.check() == HealthFinding("ok")


def test_the_pulse_beats_by_itself() -> None:
    async def run() -> HealthFinding:
        pulse = EventLoopLag()
        task = asyncio.create_task(pulse.run())
        await asyncio.sleep(0)
        finding = pulse.check()
        task.cancel()
        return finding

    assert asyncio.run(run()) == HealthFinding("ok")


def test_a_gauge_is_added_by_registering_it(monkeypatch: pytest.MonkeyPatch) -> None:
    kinds = Gauge(
        "open_files",
        "Files that are open.",
        lambda read: {"log": read.queue, "socket": 2.0},
        ("kind",),
    )
    monkeypatch.setitem(GAUGES, kinds.name, kinds)
    hidden = Gauge("hidden", "Nothing is told of it.", lambda read: read.lam)
    monkeypatch.setitem(GAUGES, hidden.name, hidden)
    samples = read_samples(Metrics(["small"]), GaugeReadings(queue=3))
    assert read_value(samples, "open_files", kind="log") == 3
    assert read_value(samples, "open_files", kind="socket") == 2
    assert "hidden" not in {name for name, _ in samples}


def test_an_audit_of_metrics_finds_lost_receipts() -> None:
    readings = GaugeReadings(receipts={"kept": 9, "lost": 2})
    text = render_metrics(Metrics(["small"]).export(readings))[0].decode()
    verdicts = audit({}, {}, {}, {}, text, set())
    assert verdicts["metrics and receipts"] == ["2 receipts were lost"]
