"""The metrics of several workers as those of one gateway."""

from packages.gateway.tests.telemetry.receipts import receipt
from prefill_router_gateway.telemetry import (
    GAUGES,
    PREFIX,
    GaugeReadings,
    Metrics,
    PlainFamily,
    counters_of,
    merge_families,
    render_metrics,
)

SUMS = {f"{PREFIX}{name}" for name, gauge in GAUGES.items() if gauge.is_sum}


def build_families(requests: int, *, in_flight: int, lam: float) -> list[PlainFamily]:
    """The metric families that a worker exports."""
    metrics = Metrics(["small"])
    for _ in range(requests):
        metrics.observe(receipt())
    readings = GaugeReadings(
        in_flight=in_flight,
        lam=lam,
        breakers={"small": "open" if in_flight else "closed"},
        forecasts={"encoded": requests},
        router={"fingerprint": "f"},
    )
    return metrics.export(readings)


def read_values(families: list[PlainFamily]) -> dict[str, float]:
    text = render_metrics(families)[0].decode()
    rows = (row.rsplit(" ", 1) for row in text.splitlines() if not row.startswith("#"))
    return {name.removeprefix(PREFIX): float(value) for name, value in rows}


def test_counters_and_loads_are_added_and_of_states_the_worst_counts() -> None:
    a, b = build_families(2, in_flight=3, lam=0.5), build_families(5, in_flight=0, lam=0.5)
    values = read_values(merge_families([a, b], sums=SUMS))
    assert sum(n for name, n in values.items() if name.startswith("requests_total")) == 7
    counts = [n for name, n in values.items() if name.startswith("stage_seconds_count")]
    assert max(counts) == 7
    assert values["requests_in_flight"] == 3
    assert values["lam"] == 0.5
    assert values['breaker_state{target="small"}'] == 2
    assert values['forecast_events_total{kind="encoded"}'] == 7
    assert values['router_info{fingerprint="f"}'] == 1


def test_one_worker_alone_has_what_it_exports() -> None:
    families = build_families(3, in_flight=2, lam=0.25)
    assert read_values(merge_families([families], sums=SUMS)) == read_values(families)


def test_what_a_worker_that_ended_had_counted_stays_but_not_its_load() -> None:
    stopped_worker, lives = (
        build_families(4, in_flight=9, lam=0.5),
        build_families(1, in_flight=1, lam=0.5),
    )
    values = read_values(merge_families([counters_of(stopped_worker), lives], sums=SUMS))
    assert sum(n for name, n in values.items() if name.startswith("requests_total")) == 5
    assert values["requests_in_flight"] == 1
