"""How hard providers are asked, and what the ledger lets through."""

from __future__ import annotations

import asyncio
import random
import threading
import time
from collections.abc import Coroutine, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from collecting import PRICES, ask, models, pool_of, tasks
from hypothesis import given, settings, strategies as st

from prefill_router.data import Prompt
from prefill_router.errors import ConfigError, FailureKind, UpstreamError
from prefill_router.harness import Run
from prefill_router.harness.collecting.budget import Ledger
from prefill_router.harness.collecting.circuit import Circuit
from prefill_router.harness.collecting.collect import collect
from prefill_router.harness.collecting.limits import Bucket, Gate
from prefill_router.harness.collecting.options import CollectOptions
from prefill_router.harness.collecting.retrying import Retrying
from prefill_router.harness.collecting.schedule import Lane, Question
from prefill_router.minipool.server import Faults, Rule, serve
from prefill_router.targets import Pool, Provider, RequestOptions, Target
from prefill_router.upstream import Reply, Usage


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
    bucket = Bucket(each_minute, burst=max(share * each_minute, 1.0), now=now)
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
    bucket, now = Bucket(600, burst=60, now=0.0), 0.0
    for _ in range(601):
        now += bucket.wait(1, now)
        bucket.take(1)
    assert now == pytest.approx(60, rel=0.01)


def test_a_call_larger_than_a_burst_waits_for_a_full_bucket_and_is_paid_off() -> None:
    bucket = Bucket(1000, burst=200, now=0.0)
    assert bucket.wait(5000, 0.0) == 0
    bucket.take(5000)
    assert bucket.wait(1, 0.0) == pytest.approx(60 * 4801 / 801)
    bucket.take(-4800)  # it was shorter than expected
    assert bucket.wait(1, 0.0) == pytest.approx(60 / 801)


def provider(**options: Any) -> Provider:
    return Provider(name="p", base_url="http://127.0.0.1:1/v1", **options)


def test_a_gate_narrows_once_for_calls_that_were_together_and_widens_again() -> None:
    gate = Gate(provider(concurrency=16))
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
        gate, inside, most = Gate(provider(concurrency=3)), 0, 0

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


def test_a_paused_gate_lets_nothing_through() -> None:
    async def work() -> None:
        gate = Gate(provider())
        start = gate.now()
        gate.pause(0.2)
        gate.pause(0.1)  # the longer one counts
        await gate.pace(1)
        assert gate.now() - start >= 0.2

    run(work())


@dataclass
class Notes:
    """What a ledger has noted on the disk."""

    noted: list[float]
    delay: float = 0.0

    def __call__(self, dollars: float) -> asyncio.Future[None]:
        noted = asyncio.get_running_loop().create_future()

        def done() -> None:
            self.noted.append(dollars)
            noted.set_result(None)

        asyncio.get_running_loop().call_later(self.delay, done)
        return noted


@pytest.mark.parametrize("seed", range(20))
def test_no_call_begins_that_could_pass_the_limit_and_all_are_noted_before(seed: int) -> None:
    async def work() -> None:
        chance = random.Random(seed)
        limit, notes = chance.uniform(1, 10), Notes([], 0.001)
        ledger = Ledger(limit, charged=chance.uniform(0, limit), expose=notes)
        recorded, open_calls, refused = ledger.charged, 0.0, 0

        async def call() -> None:
            nonlocal recorded, open_calls, refused
            most = chance.uniform(0, 0.5)
            if not await ledger.reserve(most):
                refused += 1
                return
            open_calls += most
            assert recorded + open_calls <= limit
            assert notes.noted[-1] >= open_calls - 1e-9  # on the disk before the call
            await asyncio.sleep(chance.uniform(0, 0.003))
            real = chance.uniform(0, most)
            ledger.settle(most, real)
            open_calls += real - most
            await asyncio.sleep(0)
            ledger.recorded(real)
            open_calls -= real
            recorded += real

        async with asyncio.timeout(20):
            await asyncio.gather(*(call() for _ in range(80)))
        assert recorded <= limit
        assert refused or recorded + 40 > limit
        await ledger.close()
        assert notes.noted[-1] == 0.0

    run(work())


def test_what_is_given_up_stays_noted() -> None:
    async def work() -> None:
        notes = Notes([])
        ledger = Ledger(None, charged=0.0, expose=notes)
        assert await ledger.reserve(2.0)
        assert await ledger.reserve(1.0)
        ledger.settle(2.0, 2.0)  # cancelled: it may have been billed
        ledger.settle(1.0, 0.25)
        ledger.recorded(0.25)
        await ledger.close()
        assert notes.noted[-1] == pytest.approx(2.0)

    run(work())


def test_waits_grow_or_are_what_the_provider_says() -> None:
    retrying = Retrying(5, 1.0, random.Random(0))
    failures: list[str | None] = []
    for made in range(1, 5):
        failures.append("server_error")
        waits = [retrying.wait(failure("server_error"), failures) or 0.0 for _ in range(300)]
        assert max(waits) <= 2 ** (made - 1)
        assert max(waits) > 0.9 * 2 ** (made - 1)
        assert min(waits) < 0.1 * 2 ** (made - 1)
    told = [retrying.wait(failure("rate_limited", after=30.0), failures) or 0 for _ in range(99)]
    assert 30.0 <= min(told) < max(told) <= 31.0
    assert retrying.wait(failure("server_error"), [*failures, "server_error"]) is None
    assert retrying.wait(failure("refused", retriable=False), ["refused"]) is None
    again = Retrying(5, 1.0, random.Random(0))
    assert again.wait(failure("connect"), ["connect"]) == Retrying().wait(failure("connect"), [""])
    with pytest.raises(ConfigError):
        Retrying(0)
    assert Retrying(9999).wait(failure("connect"), ["connect"] * 3000) is not None


def test_calls_refused_for_the_rate_are_no_attempts_for_a_long_while() -> None:
    retrying, refusal = Retrying(3, 0.0, random.Random(0)), failure("rate_limited")
    assert retrying.wait(refusal, ["rate_limited"] * 11) is not None
    assert retrying.wait(refusal, ["rate_limited"] * 12) is None
    assert retrying.wait(refusal, ["server_error", "rate_limited", "server_error"]) is not None
    assert retrying.wait(failure("connect"), ["connect", "rate_limited", *["connect"] * 2]) is None


def test_a_lane_gives_what_is_due_first_and_ends_when_all_is_finished() -> None:
    async def work() -> None:
        drawn: list[str] = []

        def new() -> Iterator[Question]:
            for number in range(100):
                drawn.append(str(number))
                yield Question("t", str(number))

        lane, seen = Lane(new(), width=2), []

        async def worker() -> None:
            while (question := await lane.next()) is not None:
                seen.append(question.query_id)
                assert len(drawn) - len(set(seen)) <= 2 * 4 + 2  # drawn as needed
                if seen.count(question.query_id) < 3:
                    lane.again(question, 0.001)
                else:
                    lane.finish()

        async with asyncio.timeout(20):
            await asyncio.gather(worker(), worker())
        assert sorted(seen) == sorted(3 * drawn)
        assert await lane.next() is None

    run(work())


def test_a_provider_that_nothing_reaches_is_left_after_half_a_minute() -> None:
    now = [0.0]
    circuit = Circuit(two_providers(), clock=lambda: now[0])
    for kind in ("connect", "overloaded", "connect", "connect_timeout"):
        circuit.failed("a0", failure(kind), question="q")  # type: ignore[arg-type]
        now[0] += 20  # the last two are within half a minute
    assert circuit.postponed("a0") is None
    circuit.failed("a1", failure("connect"), question="q")
    assert circuit.postponed("a0") == circuit.postponed("a1") == "a can't be reached"
    assert circuit.postponed("b0") is None
    again = Circuit(two_providers(), clock=lambda: now[0])
    for _ in range(3):
        again.failed("a0", failure("connect"), question="q")
        now[0] += 20
        again.answered("a1")
    assert again.postponed("a0") is None


@pytest.mark.parametrize("kind", ["rate_limited", "overloaded", "first_token_timeout"])
def test_a_target_that_gives_no_answers_is_left_after_a_while(kind: FailureKind) -> None:
    now = [0.0]
    circuit = Circuit(two_providers(), clock=lambda: now[0])
    for number in range(4):
        circuit.failed("b0", failure(kind), question=f"q{number}")
        assert circuit.postponed("b0") is None
        now[0] += 200
        circuit.answered("b1")  # it has nothing to do with the other target
    circuit.failed("b0", failure("server_error"), question="q4")
    assert circuit.postponed("b0") == "b0 gives no answers (server_error)"
    assert circuit.postponed("b1") is None


def test_one_hard_question_ends_nothing_and_an_answer_begins_anew() -> None:
    now = [0.0]
    circuit = Circuit(two_providers(), clock=lambda: now[0])
    for number in range(8):
        circuit.failed("b0", failure("first_token_timeout"), question=f"q{number % 2}")
        now[0] += 600
    assert circuit.postponed("b0") is None
    circuit.answered("b0")
    for number in range(3):
        circuit.failed("b0", failure("first_token_timeout"), question=f"q{number}")
        now[0] += 250
    assert circuit.postponed("b0") is None


def test_a_refused_key_or_model_is_a_targets_own() -> None:
    circuit = Circuit(two_providers())
    for _ in range(3):  # such as 403 for a model that the key doesn't open
        circuit.failed("a0", failure("unauthorised", retriable=False), question="q")
    assert circuit.refused("a0") == "unauthorised"
    assert circuit.refused("a1") is None


def test_a_server_that_takes_calls_and_answers_none_does_not_hold_a_run(tmp_path: Path) -> None:
    faults = Faults(rules=[Rule(kind="stall", seconds=60.0, model="small")])
    with serve(models(), faults=faults) as server:
        pool = pool_of(server, first_token_seconds=1.0, concurrency=4)
        summary = ask(tmp_path / "run", pool, tasks(400), patience_seconds=0.5, limit=100.0)
    small, large = summary.targets
    assert large.answered == 400
    assert small.answered == 0
    assert small.not_asked > 300
    ((why, number),) = summary.not_asked.items()
    assert why == "small gives no answers (first_token_timeout)"
    assert number == small.not_asked


class Counting:
    """An asker that counts calls at once, of each provider, and remembers when they began."""

    def __init__(self, pool: Pool, seconds: float, *, tokens: int = 10) -> None:
        self.pool, self.seconds, self.tokens = pool, seconds, tokens
        self.inside: dict[str, int] = {}
        self.most: dict[str, int] = {}
        self.began: dict[str, list[float]] = {}

    async def __aenter__(self) -> Counting:
        return self

    async def __aexit__(self, *_: object) -> None:
        pass

    async def ask(self, target: str, prompt: Prompt, /) -> Reply:
        name = self.pool.provider_of(target).name
        self.inside[name] = self.inside.get(name, 0) + 1
        self.most[name] = max(self.most.get(name, 0), self.inside[name])
        self.began.setdefault(name, []).append(time.monotonic())
        await asyncio.sleep(self.seconds)
        self.inside[name] -= 1
        return Reply(text=str(prompt), usage=Usage(input_tokens=5, output_tokens=self.tokens - 5))


def two_providers(**second: Any) -> Pool:
    return Pool(
        tuple(
            Target(name=f"{name}{i}", provider=name, input_price=1.0, output_price=1.0)
            for name in ("a", "b")
            for i in range(2)
        ),
        None,
        (
            Provider(name="a", base_url="http://127.0.0.1:1/v1", concurrency=3),
            Provider(name="b", base_url="http://127.0.0.1:1/v1", **second),
        ),
    )


def test_providers_are_asked_beside_each_other(tmp_path: Path) -> None:
    pool = two_providers(concurrency=7)
    asker = Counting(pool, 0.005)
    summary = collect(tmp_path / "run", pool, tasks(40), asker=asker)
    assert summary.answered == 160
    assert asker.most == {"a": 3, "b": 7}
    quick, slow = asker.began["b"], asker.began["a"]
    assert len([at for at in quick if at < slow[len(slow) // 2]]) > 60  # none waits for the other


def test_calls_a_minute(tmp_path: Path) -> None:
    pool = two_providers(concurrency=16, requests_per_minute=600.0)
    asker = Counting(pool, 0.0)
    collect(tmp_path / "run", pool.select(["b0"]), tasks(75), asker=asker)
    began = asker.began["b"]
    for number, at in enumerate(began):
        assert number + 1 <= 60 + (at - began[0]) * 10 + 1
    assert began[-1] - began[0] >= 1.4  # 15 more than the 60 at once


@pytest.mark.parametrize(
    ("expected", "used", "least", "most"),
    [(1200, 10, 0.0, 30.0), (100, 500, 1.0, 30.0)],  # by expectation 75 s, and no wait at all
)
def test_tokens_a_minute_go_by_what_was_used(
    tmp_path: Path, expected: int, used: int, least: float, most: float
) -> None:
    pool = two_providers(concurrency=2, tokens_per_minute=12_000.0)  # 2,400 at once, 160 a second
    options = CollectOptions(assume_output_tokens=expected)
    asker = Counting(pool, 0.0, tokens=used)
    calls = 12 if expected > used else 7
    collect(tmp_path / "run", pool.select(["b0"]), tasks(calls), asker=asker, options=options)
    began = asker.began["b"]
    assert least <= began[-1] - began[0] < most


def test_concurrency_as_the_server_sees_it(tmp_path: Path) -> None:
    slow = Faults(rules=[Rule(kind="delay", seconds=0.02)])
    with serve(models(["small"]), faults=slow) as server:
        seen, over = [0], threading.Event()

        def watch() -> None:
            while not over.is_set():
                seen.append(server.stats().in_flight)
                time.sleep(0.002)

        watcher = threading.Thread(target=watch)
        watcher.start()
        ask(tmp_path / "run", pool_of(server, ["small"], concurrency=5), tasks(80))
        over.set()
        watcher.join()
    assert max(seen) == 5


def test_a_real_rate_limit_is_met_by_a_limit_of_ours(tmp_path: Path) -> None:
    faults = Faults(rules=[Rule(kind="rate", per_second=20.0, burst=120)])
    with serve(models(["small"]), faults=faults) as server:
        pool = pool_of(server, ["small"], concurrency=16, requests_per_minute=1200.0)
        ask(tmp_path / "run", pool, tasks(150))
        assert not server.stats().faults
        assert len(server.log) == 150


def test_a_real_rate_limit_without_one_of_ours_loses_nothing(tmp_path: Path) -> None:
    faults = Faults(rules=[Rule(kind="rate", per_second=40.0, burst=5, form="ms")])
    with serve(models(["small"]), faults=faults) as server:
        pool = pool_of(server, ["small"], concurrency=16)
        summary = ask(tmp_path / "run", pool, tasks(80))
        assert summary.answered == 80
        assert summary.calls < 80 * 3  # it learned to ask less


def test_what_was_at_risk_can_be_settled(tmp_path: Path) -> None:
    rule = Rule(kind="break", times=2)
    with serve(models(["small"]), faults=Faults(rules=[rule])) as server:
        pool = pool_of(server, ["small"], concurrency=1)
        first = ask(tmp_path / "run", pool, tasks(1))
        assert first.at_risk > PRICES["small"][0] * 1e-3
        limit = first.spent + first.at_risk
        assert ask(tmp_path / "run", pool, tasks(2), limit=limit).not_asked
        second = ask(tmp_path / "run", pool, tasks(2), limit=limit, settled=True)
        assert (second.answered, second.at_risk, second.not_asked) == (1, 0.0, {})
    with Run.open(tmp_path / "run") as run:
        assert run.at_risk == 0.0


def test_the_most_possible_of_a_long_answer_fits_one_by_one(tmp_path: Path) -> None:
    pool = Pool(
        (
            Target(
                name="b0",
                provider="b",
                input_price=0.0,
                output_price=1.0,
                request=RequestOptions(max_tokens=100_000),
            ),
        ),
        None,
        (Provider(name="b", base_url="http://127.0.0.1:1/v1", concurrency=16),),
    )
    asker = Counting(pool, 0.002)
    options = CollectOptions(limit=0.35)
    summary = collect(tmp_path / "run", pool, tasks(50), asker=asker, options=options)
    assert summary.answered == 50  # each costs 5e-6 and can cost 0.1
    assert asker.most == {"b": 3}
