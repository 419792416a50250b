"""Collecting, stopped at 30 random moments: what had arrived is kept, nothing of it is asked
again, and the run ends with exactly the answers of one that nothing has stopped.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from packages.lab.tests.collection.runs import (
    expected_texts,
    pool_of,
    rows,
    tasks,
    texts,
    write_tasks_file,
)
from prefill_router.runs import Run
from prefill_router.targets import write_pool

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[4]
RUNS, STOPS = 3, 10
TASKS, CONCURRENCY, DELAY = 40, 4, 0.02
SIGNALS = {
    signal.SIGKILL: (0, -signal.SIGKILL),
    signal.SIGINT: (0, 130, -signal.SIGINT),
    signal.SIGTERM: (0, 130, -signal.SIGTERM),  # the last: before asking, or after it
}
SPENT = "error: nothing was asked (the spending limit)"
Command = Callable[..., int]


@contextmanager
def program(name: str, *arguments: str, log: Path) -> Iterator[subprocess.Popen[str]]:
    with (
        log.open("w") as errors,
        subprocess.Popen(
            [sys.executable, "-m", f"packages.lab.tests.collection.{name}", *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
        ) as process,
    ):
        yield process


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("work")
    write_tasks_file(folder / "tasks.jsonl", TASKS)
    with program("server", str(DELAY), log=folder / "server") as server:
        assert server.stdout
        address = server.stdout.readline().strip()
        write_pool(pool_of(address, concurrency=CONCURRENCY), folder / "pool.yaml")
        yield folder


@pytest.fixture(scope="module")
def command(folder: Path) -> Iterator[Command]:
    with program("killed_run", log=folder / "log") as stem:

        def collect(
            out: Path, *, number: int = 0, seconds: float = 0.0, limit: float = 50.0
        ) -> int:
            assert stem.stdin
            assert stem.stdout
            files = ["--pool", folder / "pool.yaml", "--tasks", folder / "tasks.jsonl"]
            arguments = ["collect", *files, "--out", out, "--max-cost", limit]
            stem.stdin.write(json.dumps([[str(a) for a in arguments], number, seconds]) + "\n")
            stem.stdin.flush()
            code, _ = json.loads(stem.stdout.readline())
            log = (folder / "log").read_text()[-3000:]
            ends = SIGNALS[signal.Signals(number)] if number else (0,)
            spent = code == 1 and log.rstrip().splitlines()[-1].startswith(SPENT)
            assert code in ends or spent, log
            return int(code)

        yield collect


def test_it_ends_as_if_nothing_had_happened(command: Command, folder: Path) -> None:
    begin = time.perf_counter()
    command(folder / "whole")
    took = time.perf_counter() - begin
    all_texts = texts(folder / "whole")
    assert all_texts == expected_texts(tasks(TASKS))
    chance, stopped, partial, risks = random.Random(0), 0, 0, list[float]()
    for turn in range(RUNS):
        run, count = folder / f"run-{turn}", 0
        for stop in range(STOPS):
            number = list(SIGNALS)[(turn + stop) % len(SIGNALS)]
            seconds = chance.uniform(0.0, 2.2 * took / STOPS)
            stopped += command(run, number=number, seconds=seconds) != 0
            if (run / "run.json").is_file():
                answer_texts = texts(run)
                assert answer_texts.items() <= all_texts.items()
                assert len(answer_texts) >= count  # what was kept stays
                partial += count < len(answer_texts) < len(all_texts)
                count = len(answer_texts)
        command(run)
        assert texts(run) == all_texts
        ((answers,),) = rows(run, "SELECT COUNT(*) FROM answers")
        assert answers == len(all_texts)  # none was asked twice
        risks.append(check_risk(run))
    assert max(risks) > 0  # else nothing was under way when it was stopped
    assert stopped > RUNS * STOPS / 4  # else little was interrupted
    assert partial > RUNS


def check_risk(run: Path) -> float:
    """The dollars that calls under way when a process was stopped may have cost, within bounds."""
    ((sessions,),) = rows(run, "SELECT COUNT(DISTINCT session) FROM exposure")
    with Run.open(run) as held:
        spent, at_risk = held.spent, held.at_risk
    most = 1.5 * CONCURRENCY * (1200 * 10 + 50 * 40) / 1e6
    assert 0 <= at_risk <= sessions * most  # how much depends on when it was stopped
    ((answers,),) = rows(run, "SELECT COUNT(*) FROM answers")
    # The most that one call may cost is more than an answer does.
    assert at_risk == 0 or spent / answers < at_risk
    return at_risk


def test_it_keeps_the_limit_over_interruptions(command: Command, folder: Path) -> None:
    run, chance, limit, at_risk = folder / "limited", random.Random(1), 0.05, 0.0
    for turn in range(30):
        number = list(SIGNALS)[turn % len(SIGNALS)]
        # later and later: a slow machine hasn't asked anything in the first of these times
        seconds = chance.uniform(0.2, 0.6) * 1.2 ** max(0, turn - 7)
        command(run, number=number, seconds=seconds, limit=limit)
        if (run / "run.json").is_file():
            with Run.open(run) as held:
                assert held.spent + held.at_risk <= limit
                at_risk = held.at_risk
        if turn >= 7 and at_risk > 0:
            break
    assert at_risk > 0  # else nothing was under way when it was stopped


FULL = """
import resource, signal, sys
sys.dont_write_bytecode = True  # it would be cut off, and found by all others
from prefill_router.cli import main
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[1]), int(sys.argv[1])))
del sys.argv[1]
main()
"""
"""A process that can write no file larger than its first argument, as on a full disk."""


@pytest.mark.parametrize("size", [600, 50_000, 150_000])
def test_disk_without_room(command: Command, folder: Path, tmp_path: Path, size: int) -> None:
    run = tmp_path / "run"
    files = ["--pool", folder / "pool.yaml", "--tasks", folder / "tasks.jsonl", "--out", run]
    line = [sys.executable, "-c", FULL, str(size), "collect", *files]
    result = subprocess.run(line, capture_output=True, text=True, timeout=120, check=False)
    assert result.returncode == 1, result.stderr
    assert "Traceback" not in result.stderr
    assert "error: " in result.stderr
    count = len(texts(run)) if (run / "run.json").is_file() else 0
    assert count < 2 * TASKS
    if size > 100_000:
        assert count > 0
        assert "same command goes on" in result.stderr
    command(run)
    assert texts(run) == expected_texts(tasks(TASKS))
