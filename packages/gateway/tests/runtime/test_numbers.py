"""The page's numbers of targets, from the recent requests."""

import time
from typing import Any

import pytest

from packages.gateway.tests.receipts.example_receipts import example_receipt
from prefill_router.endpoints import Breakers
from prefill_router.targets import Pool, Target
from prefill_router_gateway import Receipt
from prefill_router_gateway.page.views import failing, health
from prefill_router_gateway.receipts import RecentRequests
from prefill_router_gateway.records import TargetAttempt

MOST = 2000
BASE_URL = "http://127.0.0.1:9/v1"
POOL = Pool(tuple(Target(name=name, base_url=BASE_URL) for name in ("small", "large")))


def build_receipt(number: int, *attempts: TargetAttempt, **fields: float) -> Receipt:
    outcome: dict[str, Any] = {
        "target": "large",
        "attempts": attempts,
        "first_byte_seconds": 0.1 * number,
    }
    return example_receipt(number, outcome=outcome, **fields)


def test_a_target_that_was_passed_over_was_not_called() -> None:
    skip = TargetAttempt(target="small", end="breaker_open", status=None, seconds=0.0)
    failure = TargetAttempt(target="small", end="server_error", status=500, seconds=0.1)
    refusal = TargetAttempt(target="small", end="refused", status=400, seconds=0.1)
    answer = TargetAttempt(target="large", end="answered", status=200, seconds=0.2)
    receipts = [
        build_receipt(1, skip, answer),
        build_receipt(2, failure, answer),
        build_receipt(3, refusal),
    ]
    breakers = Breakers(failures=5, seconds=10)
    small, large = (health(POOL, name, breakers, receipts) for name in POOL.names)
    assert (small["requests"], small["failures"]) == (2, 1)
    assert (large["requests"], large["failures"]) == (2, 0)
    assert small["first_byte_p50"] is None
    assert large["first_byte_p50"] == pytest.approx(0.2)


def test_calls_count_from_where_on_all_are_remembered() -> None:
    now, recent = time.time(), RecentRequests()
    recent.add(build_receipt(1, at=now - 4000))
    recent.add(build_receipt(2, at=now - 1000))
    since, receipts = recent.last_hour()
    assert now - 3600 <= since <= time.time() - 3600
    assert [r.choice.id for r in receipts] == [build_receipt(2).choice.id]
    recent.fill(build_receipt(number, at=now - 500) for number in range(MOST))
    since, receipts = recent.last_hour()
    assert since == now - 500
    assert len(receipts) == MOST


def test_a_target_that_fails_often_is_told() -> None:
    failure = TargetAttempt(target="small", end="server_error", status=500, seconds=0.1)
    answer = TargetAttempt(target="large", end="answered", status=200, seconds=0.2)
    good = TargetAttempt(target="small", end="answered", status=200, seconds=0.2)
    breakers = Breakers(failures=5, seconds=10)

    def find_notes(bad: int, well: int) -> list[str]:
        receipts = [build_receipt(n, failure, answer) for n in range(bad)]
        receipts += [build_receipt(bad + n, good) for n in range(well)]
        return failing([health(POOL, name, breakers, receipts) for name in POOL.names])

    assert find_notes(28, 72) == ["28% of the last 100 calls of small failed"]
    assert find_notes(1, 99) == []
    assert find_notes(5, 5) == []  # too few calls to report


def test_minutes_count_what_came_failed_and_had_no_forecast() -> None:
    now, recent = time.time(), RecentRequests()
    minute = now // 60 * 60
    for number, at in enumerate((minute - 7200, minute - 60, minute - 59, minute)):
        recent.add(example_receipt(number, at=at, cost=0.5))
    recent.add(example_receipt(9, at=minute - 61, cost=None, outcome={"kind": "failed"}))
    recent.add(example_receipt(10, at=minute, choice={"fallback": "deadline"}))
    first, second = recent.minutes()
    assert (first.requests, first.failed, first.fallbacks, first.cost) == (2, 0, 0, 1.0)
    assert (second.requests, second.failed, second.fallbacks) == (3, 1, 1)
    assert recent.requests_last_hour() == 5


def test_requests_are_found_by_a_part_of_them() -> None:
    recent = RecentRequests()
    recent.fill(build_receipt(number) for number in range(9))
    receipts = recent.since(
        None, 2, selects=lambda receipt: receipt.choice.id > build_receipt(3).choice.id
    )
    assert [r.choice.id for r in receipts] == [build_receipt(n).choice.id for n in (8, 7)]
