"""Whole runs, and how hard providers are asked in them."""

from __future__ import annotations

import asyncio
import threading
import time
from pathlib import Path

import pytest

from packages.lab.tests.collection.runs import PRICES, ask, models, pool_of, tasks, two_providers
from prefill_router.data import Prompt
from prefill_router.endpoints import Reply, Usage
from prefill_router.runs import Run
from prefill_router.targets import Pool, Provider, RequestOptions, Target
from prefill_router_lab.collection.job import collect
from prefill_router_lab.collection.plan import CollectOptions
from prefill_router_minipool.server import Faults, Rule, serve

pytestmark = pytest.mark.slow


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
    assert why == "small returns no answers (first_token_timeout)"
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
        in_flight, over = [0], threading.Event()

        def watch() -> None:
            while not over.is_set():
                in_flight.append(server.stats().in_flight)
                time.sleep(0.002)

        watcher = threading.Thread(target=watch)
        watcher.start()
        ask(tmp_path / "run", pool_of(server, ["small"], concurrency=5), tasks(80))
        over.set()
        watcher.join()
    assert max(in_flight) == 5


def test_a_real_rate_limit_is_met_by_a_limit_of_ours(tmp_path: Path) -> None:
    # 120 at once and 20 a second are ours; 10 more are the half second by which the first call,
    # which opens the connection, may arrive late beside the others
    faults = Faults(rules=[Rule(kind="rate", per_second=20.0, burst=130)])
    with serve(models(["small"]), faults=faults) as server:
        pool = pool_of(server, ["small"], concurrency=16, requests_per_minute=1200.0)
        ask(tmp_path / "run", pool, tasks(160))
        assert not server.stats().faults
        assert len(server.log) == 160


def test_a_real_rate_limit_without_one_of_ours_loses_nothing(tmp_path: Path) -> None:
    faults = Faults(rules=[Rule(kind="rate", per_second=40.0, burst=5, form="ms")])
    with serve(models(["small"]), faults=faults) as server:
        pool = pool_of(server, ["small"], concurrency=16)
        summary = ask(tmp_path / "run", pool, tasks(80))
        assert summary.answered == 80
        assert summary.calls < 80 * 4  # it learned to ask less: otherwise there are over 500


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
