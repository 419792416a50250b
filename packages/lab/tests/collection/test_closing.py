"""What a run says when it ends: how the questions stand, which limit would do, and how it exits."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from packages.lab.tests.collection.runs import (
    Canned,
    models,
    pool_of,
    rows,
    tasks,
    texts,
    write_tasks_file,
)
from packages.router.tests.commands import run
from packages.router.tests.programs import run_program
from prefill_router.data import Prompt
from prefill_router.endpoints import Reply
from prefill_router.errors import UpstreamError
from prefill_router.runs import Answer
from prefill_router.targets import write_pool
from prefill_router_lab.collection.collector import OVER_LIMIT, CollectionTally
from prefill_router_lab.collection.job import CollectionSummary, collect
from prefill_router_lab.collection.plan import CollectOptions
from prefill_router_minipool.server import Faults, Rule, serve

pytestmark = pytest.mark.slow


class Breaking(Canned):
    """Breaks every third answer off, so that it may have been billed in full."""

    def __init__(self) -> None:
        self.calls = 0

    async def ask(self, target: str, prompt: Prompt, /) -> Reply:
        self.calls += 1
        if self.calls % 3 == 0:
            raise UpstreamError("broken", failure="broken_off", retriable=True, billed="perhaps")
        return await super().ask(target, prompt)


def test_the_limit_that_would_do_counts_what_goes_at_risk(tmp_path: Path) -> None:
    pool = pool_of("http://127.0.0.1:1/v1", ["small"], max_tokens=10_000, concurrency=1)
    asker, questions = Breaking(), tasks(300)[40:]

    def collect_until(limit: float) -> CollectionSummary:
        options = CollectOptions(limit=limit, backoff_seconds=0.0)
        return collect(tmp_path / "run", pool, questions, asker=asker, options=options)

    first = collect_until(0.6)
    enough = first.limit_that_would_do
    assert 0 < first.answered < 40
    assert enough is not None
    risk = first.at_risk / first.answered
    assert enough > 0.6 + 200 * risk  # else all is thought to be free of risk from now on
    assert enough < 0.6 + 400 * risk
    second = collect_until(enough)
    assert second.not_asked == {}
    assert second.spent + second.at_risk <= enough


def test_no_money_rounds_away(tmp_path: Path) -> None:
    notes: list[str] = []

    def advance(amount: float = 1, *, note: str = "") -> None:
        del amount
        notes.append(note)

    tally = CollectionTally(advance)
    for cost in (0.0000036, 0.0021, 0.5):
        tally.count_answer(Answer(target="a", query_id="q", reply=Reply(text=""), cost=cost))
        tally.show()
    assert [note for i, note in enumerate(notes) if note not in notes[:i]] == [
        "$0.00000360",
        "$0.00210",
        "$0.502",
    ]
    with serve(models(["small"])) as server:
        write_pool(pool_of(server, ["small"]), tmp_path / "pool.yaml")
        write_tasks_file(tmp_path / "tasks.jsonl", 1)
        files = ("--pool", tmp_path / "pool.yaml", "--tasks", tmp_path / "tasks.jsonl")
        done = run("collect", *files, "--out", tmp_path / "run", "--assume-output-tokens", 1)
    amounts = re.findall(r"\$[0-9.]+", done.out + done.err)
    assert len(amounts) >= 6
    assert all(float(amount[1:]) > 0 for amount in amounts)
    ((cost,),) = rows(tmp_path / "run", "SELECT cost FROM answers")
    assert float(amounts[-1][1:]) == pytest.approx(cost, rel=0.05)


def test_one_of_a_thing_is_not_many(tmp_path: Path) -> None:
    write_pool(pool_of("http://127.0.0.1:1/v1", ["small"]), tmp_path / "pool.yaml")
    write_tasks_file(tmp_path / "tasks.jsonl", 1)
    files = ("--pool", tmp_path / "pool.yaml", "--tasks", tmp_path / "tasks.jsonl")
    result = run("collect", *files, "--out", tmp_path / "run", "--max-cost", 0.00001)
    assert "1 call, " in result.err
    assert "0 calls in" in result.out
    assert "1 question not asked: the spending limit" in result.out


def standing(summary: CollectionSummary) -> list[tuple[int, int, int, int]]:
    return [
        (row.answered, sum(row.missing.values()), row.not_asked, row.missing_before)
        for row in summary.targets
    ]


def test_each_question_is_counted_once(tmp_path: Path) -> None:
    pool = pool_of("http://127.0.0.1:1/v1", ["small"], concurrency=1)
    options = CollectOptions(attempts=1)

    def collect_until(count: int, limit: float | None = None) -> CollectionSummary:
        chosen = replace(options, limit=limit)
        return collect(tmp_path / "run", pool, tasks(count), asker=Breaking(), options=chosen)

    first = collect_until(3)  # the third breaks off
    assert standing(first) == [(2, 1, 0, 0)]
    stopped = collect_until(8, limit=first.spent + first.at_risk)
    assert stopped.calls == 0
    assert stopped.not_asked == {OVER_LIMIT: 6}
    assert standing(stopped) == [(2, 0, 6, 1)]
    last = collect_until(8)
    assert last.missing == {"broken_off": 2, "context_too_long": 1}
    assert standing(last) == [(5, 3, 0, 0)]
    assert standing(collect_until(8)) == [(7, 1, 0, 0)]  # what is too long isn't asked again


def test_a_limit_that_stops_everything_is_an_error(tmp_path: Path) -> None:
    write_pool(pool_of("http://127.0.0.1:1/v1", ["small"]), tmp_path / "pool.yaml")
    write_tasks_file(tmp_path / "tasks.jsonl", 24)
    files = ("--pool", tmp_path / "pool.yaml", "--tasks", tmp_path / "tasks.jsonl")
    result = run("collect", *files, "--out", tmp_path / "run", "--max-cost", 0.00001)
    assert result.code == 1
    assert "24 questions not asked: the spending limit" in result.out
    assert result.err.splitlines()[-1].startswith("error: nothing was asked (the spending limit)")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_run_says_how_it_stands(tmp_path: Path, number: signal.Signals) -> None:
    write_tasks_file(tmp_path / "tasks.jsonl", 30)
    stall = Rule(kind="stall", seconds=60.0, requests=tuple(range(5, 30)))
    with serve(models(["small"]), faults=Faults(rules=[stall])) as server:
        write_pool(pool_of(server, ["small"], concurrency=2), tmp_path / "pool.yaml")
        files = ("--pool", tmp_path / "pool.yaml", "--tasks", tmp_path / "tasks.jsonl")
        line = [sys.executable, "-c", "from prefill_router.cli import main; main()", "collect"]
        with run_program(
            [*line, *files, "--out", tmp_path / "run"],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        ) as process:
            until = time.monotonic() + 60
            while server.stats().in_flight < 2 or len(texts(tmp_path / "run")) < 5:
                assert time.monotonic() < until
                time.sleep(0.02)
            process.send_signal(number)
            out, err = process.communicate(timeout=60)
    assert process.returncode == 130, err
    row = next(line.split() for line in out.splitlines() if line.startswith("small"))
    assert row[1:4] == ["5", "0", "25"]
    assert "5 calls in" in out
    assert "the run has cost $" in out
    assert "more may have been billed" in out  # the two that were under way
    assert "25 questions not asked: interrupted" in out
    assert err.splitlines()[-1].startswith("interrupted; what was finished is kept")
