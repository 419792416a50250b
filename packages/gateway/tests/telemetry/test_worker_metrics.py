"""The metrics of several workers as those of one gateway."""

from packages.gateway.tests.telemetry.receipts import receipt
from prefill_router_gateway.telemetry import GAUGES, PREFIX, GaugeReadings, Metrics
from prefill_router_gateway.telemetry.metrics import counters_of, merged

SUMS = {f"{PREFIX}{name}" for name, gauge in GAUGES.items() if gauge.is_sum}


def worker(requests: int, *, in_flight: int, lam: float) -> Metrics:
    readings = GaugeReadings(
        in_flight=lambda: in_flight,
        lam=lambda: lam,
        breakers=lambda: {"small": "open" if in_flight else "closed"},
        forecasts=lambda: {"encoded": requests},
        router=lambda: {"fingerprint": "f"},
    )
    metrics = Metrics(["small"], readings=readings)
    for _ in range(requests):
        metrics.observe(receipt())
    return metrics


def lines(metrics: Metrics, families: list[list[object]]) -> dict[str, float]:
    text = metrics.render("", families)[0].decode()
    rows = (row.rsplit(" ", 1) for row in text.splitlines() if not row.startswith("#"))
    return {name.removeprefix(PREFIX): float(value) for name, value in rows}


def test_counters_and_loads_are_added_and_of_states_the_worst_counts() -> None:
    a, b = worker(2, in_flight=3, lam=0.5), worker(5, in_flight=0, lam=0.5)
    found = lines(a, merged([a.export(), b.export()], sums=SUMS))
    assert sum(n for name, n in found.items() if name.startswith("requests_total")) == 7
    counts = [n for name, n in found.items() if name.startswith("stage_seconds_count")]
    assert max(counts) == 7
    assert found["requests_in_flight"] == 3
    assert found["lam"] == 0.5
    assert found['breaker_state{target="small"}'] == 2
    assert found['forecast_events_total{kind="encoded"}'] == 7
    assert found['router_info{fingerprint="f"}'] == 1


def test_one_worker_alone_has_what_it_renders_itself() -> None:
    alone = worker(3, in_flight=2, lam=0.25)
    own, _ = alone.render("")
    through, _ = alone.render("", merged([alone.export()], sums=SUMS))
    assert sorted(own.splitlines()) == sorted(through.splitlines())


def test_what_a_worker_that_ended_had_counted_stays_but_not_its_load() -> None:
    ended, lives = worker(4, in_flight=9, lam=0.5), worker(1, in_flight=1, lam=0.5)
    found = lines(lives, merged([counters_of(ended.export()), lives.export()], sums=SUMS))
    assert sum(n for name, n in found.items() if name.startswith("requests_total")) == 5
    assert found["requests_in_flight"] == 1
