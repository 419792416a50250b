"""How hard providers are asked, and what the ledger lets through."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Coroutine, Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st

from packages.lab.tests.collection.runs import two_providers
from prefill_router.endpoints.breakers import CircuitBreaker
from prefill_router.endpoints.rate_limits import ProviderGate, TokenBucket
from prefill_router.endpoints.retries import Retries, RetryPolicy
from prefill_router.endpoints.spending import SpendingLedger
from prefill_router.errors import ConfigError, FailureKind, UpstreamError
from prefill_router.targets import Provider
from prefill_router_lab.collection.plan import ProviderQueue, Question


def run(work: Coroutine[Any, Any, None]) -> None:
    asyncio.run(work)


def failure(
    kind: FailureKind, *, after: float | None = None, retriable: bool = True
) -> UpstreamError:
    return UpstreamError("no", failure=kind, retry_after=after, retriable=retriable, billed="no")


@given(
    st.integers(1, 10_000),
    st.lists(st.floats(0, 20), min_size=1, max_size=300),
    st.floats(0.0, 1.0),
)
@settings(max_examples=60, deadline=None)
def test_a_bucket_lets_no_more_through_in_any_minute(
    each_minute: int, gaps: list[float], share: float
) -> None:
    now = 1000.0
    bucket = TokenBucket(each_minute, burst=max(share * each_minute, 1.0), now=now)
    passed: list[float] = []
    for gap in gaps:
        now += gap
        now += bucket.wait(1, now)
        bucket.wait(1, now)  # asking again changes nothing
        bucket.take(1)
        passed.append(now)
    for number, start in enumerate(passed):
        within = [at for at in passed[number:] if at < start + 60 - 1e-6]
        assert len(within) <= each_minute + 1e-6


def test_a_bucket_lets_through_all_that_it_may() -> None:
    bucket, now = TokenBucket(600, burst=60, now=0.0), 0.0
    for _ in range(601):
        now += bucket.wait(1, now)
        bucket.take(1)
    assert now == pytest.approx(60, rel=0.01)


def test_a_call_larger_than_a_burst_waits_for_a_full_bucket_and_is_paid_off() -> None:
    bucket = TokenBucket(1000, burst=200, now=0.0)
    assert bucket.wait(5000, 0.0) == 0
    bucket.take(5000)
    assert bucket.wait(1, 0.0) == pytest.approx(60 * 4801 / 801)
    bucket.take(-4800)  # it was shorter than expected
    assert bucket.wait(1, 0.0) == pytest.approx(60 / 801)


def provider(**options: Any) -> Provider:
    return Provider(name="p", base_url="http://127.0.0.1:1/v1", **options)


def test_a_gate_narrows_once_for_calls_that_were_together_and_widens_again() -> None:
    gate = ProviderGate(provider(concurrency=16))
    began = gate.now()
    gate.narrow(began)
    assert gate.window == 8
    gate.narrow(began)  # begun before
    assert gate.window == 8
    for _ in range(10):
        gate.narrow(gate.now())
    assert gate.window == 1
    for _ in range(500):
        gate.widen()
    assert gate.window == 16


def test_a_gate_lets_waiting_calls_in_as_places_come_free() -> None:
    async def work() -> None:
        gate, inside, most = ProviderGate(provider(concurrency=3)), 0, 0

        async def call() -> None:
            nonlocal inside, most
            await gate.enter()
            inside += 1
            most = max(most, inside)
            await asyncio.sleep(0.001)
            inside -= 1
            gate.leave()

        async with asyncio.timeout(20):
            await asyncio.gather(*(call() for _ in range(50)))
        assert most == 3

    run(work())


def test_a_place_goes_on_to_the_next_when_who_was_called_is_cancelled() -> None:
    async def work() -> None:
        gate = ProviderGate(provider(concurrency=1))
        await gate.enter()
        called, behind = (asyncio.create_task(gate.enter()) for _ in range(2))
        await asyncio.sleep(0)
        gate.leave()
        called.cancel()
        async with asyncio.timeout(5):
            await behind
        assert called.cancelled()

    run(work())


def test_a_paused_gate_lets_nothing_through() -> None:
    async def work() -> None:
        gate = ProviderGate(provider())
        start = gate.now()
        gate.pause(0.2)
        gate.pause(0.1)  # the longer one counts
        await gate.pace(1)
        assert gate.now() - start >= 0.2

    run(work())


@dataclass
class Notes:
    """What is on the disk of a ledger: dollars exposed, and charges of recorded calls."""

    delay: float = 0.0
    exposed: float = 0.0
    charged: float = 0.0
    most: float = 0.0

    def __call__(self, change: float) -> asyncio.Future[None]:
        noted = asyncio.get_running_loop().create_future()

        def note() -> None:
            self.exposed += change
            self.most = max(self.most, self.charged + self.exposed)
            noted.set_result(None)

        asyncio.get_running_loop().call_later(self.delay, note)
        return noted


@pytest.mark.parametrize("seed", range(20))
def test_no_call_begins_that_could_pass_the_limit_and_all_are_noted_before(seed: int) -> None:
    async def work() -> None:
        chance = random.Random(seed)
        limit = chance.uniform(1, 10)
        notes = Notes(0.001, charged=chance.uniform(0, limit))
        ledger = SpendingLedger(limit, charged=notes.charged, expose=notes)
        recorded, open_calls, refused = ledger.charged, 0.0, 0

        async def call() -> None:
            nonlocal recorded, open_calls, refused
            most = chance.uniform(0, 0.5)
            if not await ledger.reserve(most):
                refused += 1
                return
            open_calls += most
            assert recorded + open_calls <= limit
            assert notes.exposed >= open_calls - 1e-9  # on the disk before the call
            await asyncio.sleep(chance.uniform(0, 0.003))
            real = chance.uniform(0, most)
            ledger.settle(most, real)
            open_calls += real - most
            await asyncio.sleep(chance.uniform(0, 0.002))
            notes.charged += real  # on the disk some time before the ledger hears of it
            notes.exposed -= real
            open_calls -= real
            recorded += real
            await asyncio.sleep(chance.uniform(0, 0.002))
            ledger.mark_recorded(real)

        async with asyncio.timeout(20):
            await asyncio.gather(*(call() for _ in range(80)))
        assert recorded <= limit
        assert refused or recorded + 40 > limit
        await ledger.close()
        assert notes.exposed == pytest.approx(0.0, abs=1e-9)
        assert notes.most <= limit + 1e-9  # whenever it is stopped, the next run counts no more

    run(work())


def test_what_is_given_up_stays_noted() -> None:
    async def work() -> None:
        notes = Notes()
        ledger = SpendingLedger(None, charged=0.0, expose=notes)
        assert await ledger.reserve(2.0)
        assert await ledger.reserve(1.0)
        ledger.settle(2.0, 2.0)  # cancelled: it may have been billed
        ledger.settle(1.0, 0.25)
        notes.exposed -= 0.25
        ledger.mark_recorded(0.25)
        await ledger.close()
        assert notes.exposed == pytest.approx(2.0)

    run(work())


def test_waits_grow_or_are_what_the_provider_says() -> None:
    retrying = RetryPolicy(5, 1.0, random.Random(0))
    failures: list[str | None] = []
    for attempt in range(1, 5):
        failures.append("server_error")
        waits = [retrying.wait(failure("server_error"), failures) or 0.0 for _ in range(300)]
        assert max(waits) <= 2 ** (attempt - 1)
        assert max(waits) > 0.9 * 2 ** (attempt - 1)
        assert min(waits) < 0.1 * 2 ** (attempt - 1)
    delays = [retrying.wait(failure("rate_limited", after=30.0), failures) or 0 for _ in range(99)]
    assert 30.0 <= min(delays) < max(delays) <= 31.0
    assert retrying.wait(failure("server_error"), [*failures, "server_error"]) is None
    assert retrying.wait(failure("refused", retriable=False), ["refused"]) is None
    first = {RetryPolicy().wait(failure("connect"), ["connect"]) for _ in range(3)}
    assert len(first) == 3  # clients that fail together don't retry together
    with pytest.raises(ConfigError):
        RetryPolicy(0)
    assert RetryPolicy(9999).wait(failure("connect"), ["connect"] * 3000) is not None


def test_calls_refused_for_the_rate_are_no_attempts_for_a_long_while() -> None:
    retrying, refusal = RetryPolicy(3, 0.0, random.Random(0)), failure("rate_limited")
    assert retrying.wait(refusal, ["rate_limited"] * 11) is not None
    assert retrying.wait(refusal, ["rate_limited"] * 12) is None
    assert retrying.wait(refusal, ["server_error", "rate_limited", "server_error"]) is not None
    assert retrying.wait(failure("connect"), ["connect", "rate_limited", *["connect"] * 2]) is None


def test_a_lane_gives_what_is_due_first_and_ends_when_all_is_finished() -> None:
    async def work() -> None:
        numbers: list[str] = []

        def new() -> Iterator[Question]:
            for number in range(100):
                numbers.append(str(number))
                yield Question("t", str(number))

        lane, question_ids = ProviderQueue(new(), width=2), []

        async def worker() -> None:
            while (question := await lane.next()) is not None:
                question_ids.append(question.query_id)
                assert len(numbers) - len(set(question_ids)) <= 2 * 4 + 2  # drawn as needed
                if question_ids.count(question.query_id) < 3:
                    lane.again(question, 0.001)
                else:
                    lane.finish()

        async with asyncio.timeout(20):
            await asyncio.gather(worker(), worker())
        assert sorted(question_ids) == sorted(3 * numbers)
        assert await lane.next() is None

    run(work())


def test_a_provider_that_nothing_reaches_is_left_after_half_a_minute() -> None:
    now = [0.0]
    circuit = CircuitBreaker(two_providers(), clock=lambda: now[0])
    for kind in ("connect", "overloaded", "connect", "connect_timeout"):
        circuit.record_failure("a0", failure(kind), question="q")  # type: ignore[arg-type]
        now[0] += 20  # the last two are within half a minute
    assert circuit.reason_to_postpone("a0") is None
    circuit.record_failure("a1", failure("connect"), question="q")
    assert (
        circuit.reason_to_postpone("a0") == circuit.reason_to_postpone("a1") == "a can't be reached"
    )
    assert circuit.reason_to_postpone("b0") is None
    again = CircuitBreaker(two_providers(), clock=lambda: now[0])
    for _ in range(3):
        again.record_failure("a0", failure("connect"), question="q")
        now[0] += 20
        again.record_answer("a1")
    assert again.reason_to_postpone("a0") is None


@pytest.mark.parametrize("kind", ["rate_limited", "overloaded", "first_token_timeout"])
def test_a_target_that_gives_no_answers_is_left_after_a_while(kind: FailureKind) -> None:
    now = [0.0]
    circuit = CircuitBreaker(two_providers(), clock=lambda: now[0])
    for number in range(4):
        circuit.record_failure("b0", failure(kind), question=f"q{number}")
        assert circuit.reason_to_postpone("b0") is None
        now[0] += 200
        circuit.record_answer("b1")  # it has nothing to do with the other target
    circuit.record_failure("b0", failure("server_error"), question="q4")
    assert circuit.reason_to_postpone("b0") == "b0 returns no answers (server_error)"
    assert circuit.reason_to_postpone("b1") is None


def test_one_hard_question_ends_nothing_and_an_answer_begins_anew() -> None:
    now = [0.0]
    circuit = CircuitBreaker(two_providers(), clock=lambda: now[0])
    for number in range(8):
        circuit.record_failure("b0", failure("first_token_timeout"), question=f"q{number % 2}")
        now[0] += 600
    assert circuit.reason_to_postpone("b0") is None
    circuit.record_answer("b0")
    for number in range(3):
        circuit.record_failure("b0", failure("first_token_timeout"), question=f"q{number}")
        now[0] += 250
    assert circuit.reason_to_postpone("b0") is None


def test_a_refused_key_or_model_is_a_targets_own() -> None:
    circuit = CircuitBreaker(two_providers())
    for _ in range(3):  # such as 403 for a model that the key doesn't open
        circuit.record_failure("a0", failure("unauthorised", retriable=False), question="q")
    assert circuit.reason_to_stop("a0") == "unauthorised"
    assert circuit.reason_to_stop("a1") is None


def test_retries_end_with_the_last_error() -> None:
    retries, refusal = Retries(RetryPolicy(3, 0.0, patience=1)), failure("rate_limited")
    assert [retries.wait(refusal) for _ in range(2)] == [0.0, 0.0]
    with pytest.raises(UpstreamError) as last:
        retries.wait(refusal)
    assert last.value is refusal
    with pytest.raises(UpstreamError):
        Retries(RetryPolicy(), longest=30.0).wait(failure("overloaded", after=31.0))
    with pytest.raises(UpstreamError):
        Retries(RetryPolicy()).wait(failure("refused", retriable=False))
