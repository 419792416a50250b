"""The share of decisions without a forecast: counted, logged, and back to zero."""

import logging

import pytest
from prometheus_client.parser import text_string_to_metric_families

from packages.gateway.tests.telemetry.receipts import render_text
from prefill_router_gateway.forecast import FallbackWatch
from prefill_router_gateway.telemetry import GaugeReadings, HealthFinding, Metrics, check_forecasts


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def watch(clock: Clock) -> FallbackWatch:
    return FallbackWatch(clock=clock)


def test_share_is_of_the_last_minute(watch: FallbackWatch, clock: Clock) -> None:
    for lack in (None, None, "deadline", "queue_full", "no_text"):
        watch.add(lack)  # type: ignore[arg-type]
    clock.now += 30
    watch.add(None)
    report = watch.report()
    assert (report.decisions, report.share) == (5, 0.4)
    assert report.lacking == {"deadline": 1, "queue_full": 1}
    clock.now += 31
    assert watch.report().decisions == 1
    clock.now += 60
    assert (watch.report().decisions, watch.report().share) == (0, 0.0)


def test_many_without_a_forecast_degrade_the_gateway(watch: FallbackWatch) -> None:
    for _ in range(95):
        watch.add(None)
    for _ in range(5):
        watch.add("queue_full")
    assert check_forecasts(watch.report()) == HealthFinding("ok")
    for _ in range(20):
        watch.add("deadline")
    note = "21% of the last minute's 120 decisions had no forecast"
    why = "17% too late, 4% too many requests"
    assert check_forecasts(watch.report()) == HealthFinding("degraded", f"{note}: {why}")


def test_few_requests_are_no_alarm(watch: FallbackWatch) -> None:
    for _ in range(19):
        watch.add("deadline")
    assert check_forecasts(watch.report()) == HealthFinding("ok")


def test_log_says_once_that_it_begins_and_that_it_ends(
    watch: FallbackWatch, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "prefill_router_gateway")
    for second in range(200):
        clock.now += 1
        for number in range(10):
            watch.add("queue_full" if 50 <= second < 100 and number < 8 else None)
    first, last = caplog.records
    assert first.levelname == "WARNING"
    assert "had no forecast" in first.message
    assert last.message == "decisions have their forecasts again"


def test_share_is_a_metric() -> None:
    body = render_text(Metrics(["a"]), GaugeReadings(fallback_share=0.25))
    families = {f.name: f for f in text_string_to_metric_families(body)}
    assert families["prefill_router_fallback_share"].samples[0].value == 0.25
