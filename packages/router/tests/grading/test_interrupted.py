"""A grading that is stopped at random moments ends as if it had not been; nothing is paid twice."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import polars as pl
import pytest

from packages.lab.tests.collection import killed_run
from packages.router.tests.grading.graded_runs import run_of, task
from prefill_router.data.storage import is_dataset
from prefill_router.targets import Pool, Provider, Target, write_pool
from prefill_router_minipool.server import Faults, Rule, ScriptedModel, serve

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[4]
ANSWERS, ROUNDS, AT_ONCE, SECONDS = 40, 12, 2, 0.3
"""All judgments take at least ANSWERS / AT_ONCE * SECONDS = 6 s, the stops at most 12 * 0.45 s."""
SIGNALS = {
    signal.SIGKILL: (0, -signal.SIGKILL),
    signal.SIGINT: (0, 130, -signal.SIGINT),
    signal.SIGTERM: (0, 130, -signal.SIGTERM),
}
YES, NO = '{"correct": "yes"}', '{"correct": "no"}'


def judge_answer(prompt: str) -> str:
    return YES if "right" in prompt.rsplit("answer to grade", 1)[1] else NO


@contextmanager
def start_stem(log: Path) -> Iterator[subprocess.Popen[str]]:
    with (
        log.open("w") as errors,
        subprocess.Popen(
            [sys.executable, "-m", killed_run.__name__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            env={**os.environ, "OMP_NUM_THREADS": "1", "POLARS_MAX_THREADS": "1"},
            cwd=ROOT,
        ) as stem,
    ):
        yield stem


def command(stem: subprocess.Popen[str], *arguments: object, number: int, seconds: float) -> int:
    assert stem.stdin
    assert stem.stdout
    stem.stdin.write(json.dumps([[str(a) for a in arguments], number, seconds]) + "\n")
    stem.stdin.flush()
    return int(json.loads(stem.stdout.readline())[0])


def test_stopped_at_random_moments(tmp_path: Path) -> None:
    chance, stopped = random.Random(0), 0
    tasks = {
        task(f"q{n}", grader="hle", answer="x"): {"small": f"{n} is {'right' if n % 3 else 'odd'}"}
        for n in range(ANSWERS)
    }
    folder, out, judge = run_of(tmp_path / "run", tasks), tmp_path / "out", tmp_path / "judge.yaml"
    slow = Faults(rules=[Rule(kind="stall", seconds=SECONDS)])
    with (
        serve([ScriptedModel("judge", judge_answer)], faults=slow) as server,
        start_stem(tmp_path / "log") as stem,
    ):
        provider = Provider(name="court", base_url=server.base_url, concurrency=AT_ONCE)
        pool = Pool((Target(name="judge", provider="court"),), providers=(provider,))
        write_pool(pool, judge)
        grade = ("grade", folder, "--out", out, "--judge", judge)
        for turn in range(ROUNDS):
            number = list(SIGNALS)[turn % 3]
            code = command(stem, *grade, number=number, seconds=chance.uniform(0.1, 0.45))
            assert code in SIGNALS[number], read_log(tmp_path)
            stopped += code != 0
            assert not out.exists() or is_dataset(out)
        while server.stats().in_flight:
            time.sleep(0.01)
        assert command(stem, *grade, number=0, seconds=0) == 0, read_log(tmp_path)
        assert ANSWERS <= len(server.log) <= ANSWERS + stopped * AT_ONCE
    assert stopped == ROUNDS  # no round can end by itself
    assert "Traceback" not in read_log(tmp_path)
    scores = pl.read_parquet(out / "grades.parquet")["score"].to_list()
    assert scores == [float(n % 3 > 0) for n in range(ANSWERS)]


def read_log(folder: Path) -> str:
    return (folder / "log").read_text()[-3000:]
