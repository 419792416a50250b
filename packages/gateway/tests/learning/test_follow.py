"""`learn --follow` as a process: its rounds, its priority, and its end at any moment."""

import json
import os
import random
import signal
import sqlite3
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from packages.gateway.tests.learning.traffic import SKILL, answer, pools, write_traffic
from packages.router.tests.commands import refused
from packages.router.tests.fakes.answering_server import answering
from packages.router.tests.forks import forks
from packages.router.tests.programs import running
from prefill_router.router import VersionRegistry
from prefill_router.targets import write_pool
from prefill_router_gateway.receipts import CHARGES, labelled_samples

pytestmark = pytest.mark.slow

PROGRAM = "packages.gateway.tests.learning.learning_program"
REQUESTS, TURNS, AT_ONCE = 20, 6, 8
RECIPE = """
features: complexity
predictor: {kind: logistic, c: 1.0, scaling: each}
shrinkage: false
"""
SIGNALS = {
    signal.SIGINT: (130,),
    signal.SIGTERM: (130, -signal.SIGTERM),  # the last: before the command has begun
    signal.SIGKILL: (-signal.SIGKILL,),
}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, list[dict[str, Any]]]]:
    """A folder with pools and a recipe, and the questions that the targets got."""
    folder = tmp_path_factory.mktemp("follow")
    with answering(answer) as (base_url, seen):
        for pool, name in zip(pools(base_url), ("pool", "judge"), strict=True):
            write_pool(pool, folder / f"{name}.yaml")
        (folder / "recipe.yaml").write_text(RECIPE)
        yield folder, seen


def learn(made: Path, folder: Path, *more: object) -> list[str]:
    """The arguments of the command, for a database in a folder."""
    given: dict[str, object] = {
        "--receipts": folder / "receipts.sqlite",
        "--pool": made / "pool.yaml",
        "--judge": made / "judge.yaml",
        "--versions": folder / "versions",
        "--encoder": "fake",
        "--recipe": made / "recipe.yaml",
        "--least-labels": 10,
        "--per-day": 1,
        "--anchors-every": 0,  # nothing is asked twice
    }
    return ["learn", *(str(part) for pair in given.items() for part in pair), *map(str, more)]


def idle_threads(process: int) -> list[bool]:
    """Which threads of a process Linux runs in idle moments alone."""
    tasks = [int(task.name) for task in Path(f"/proc/{process}/task").iterdir()]
    return [os.sched_getscheduler(task) == os.SCHED_IDLE for task in tasks]


def nice_of(process: int) -> set[int]:
    """The priorities of a process's threads."""
    tasks = Path(f"/proc/{process}/task").iterdir()
    return {int((task / "stat").read_text().rpartition(")")[2].split()[16]) for task in tasks}


def begin_in_time(process: int) -> None:
    """Let a learner that waits for idle moments, of which tests leave few, compute as they do."""
    while not all(idle_threads(process)):
        time.sleep(0.01)
    assert len(idle_threads(process)) > 1
    while any(idle_threads(process)):
        for task in Path(f"/proc/{process}/task").iterdir():
            os.sched_setscheduler(int(task.name), os.SCHED_OTHER, os.sched_param(0))


def test_a_rubric_that_is_not_text_is_refused_with_its_place(
    made: tuple[Path, list[dict[str, Any]]], tmp_path: Path
) -> None:
    rubric = tmp_path / "rubric.txt"
    rubric.write_bytes("Vollständig".encode("latin-1"))
    refused("rubric.txt: not UTF-8 at byte 6", *learn(made[0], tmp_path, "--rubric", rubric))


def test_rounds_follow_each_other_at_low_priority_until_a_signal(
    made: tuple[Path, list[dict[str, Any]]], tmp_path: Path
) -> None:
    write_traffic(tmp_path, REQUESTS)
    arguments = learn(made[0], tmp_path, "--follow", "--every", "0m", "--json")
    with (
        (tmp_path / "log").open("w+") as log,
        running(
            [sys.executable, "-m", PROGRAM, *arguments],
            stdout=subprocess.PIPE,
            stderr=log,
            env={**os.environ, "OPENBLAS_NUM_THREADS": "2"},  # so that a library starts a thread
        ) as process,
    ):
        assert process.stdout is not None
        begin_in_time(process.pid)
        first, second = (json.loads(process.stdout.readline()) for _ in range(2))
        write_traffic(tmp_path, REQUESTS + 3, first=REQUESTS)
        later: dict[str, int] = {}
        while not later:
            later = json.loads(process.stdout.readline())["labelling"]["answers"]
        process.terminate()
        process.communicate()
        log.seek(0)
        told = log.read()
    assert process.returncode == 130, told
    assert "interrupted; what was finished is kept" in told
    assert "Traceback" not in told
    assert first["labelling"]["answers"] == {"answered": REQUESTS}
    assert (first["version"], second["version"]) == ("0001", None)
    assert second["labelling"]["answers"] == {}
    assert later == {"answered": 3}


def test_a_single_round_yields_to_others_but_is_not_left_without(
    made: tuple[Path, list[dict[str, Any]]], tmp_path: Path
) -> None:
    write_traffic(tmp_path, REQUESTS)
    with running(
        [sys.executable, "-m", PROGRAM, *learn(made[0], tmp_path)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        while nice_of(process.pid) != {os.nice(0) + 10}:
            assert process.poll() is None
            time.sleep(0.01)
        assert not any(idle_threads(process.pid))
        process.kill()


def test_a_round_that_is_stopped_at_any_moment_goes_on_and_nothing_is_paid_twice(
    made: tuple[Path, list[dict[str, Any]]], tmp_path: Path
) -> None:
    folder, seen = made
    chance, stopped = random.Random(0), 0
    with forks(tmp_path / "log", PROGRAM) as run:
        whole = tmp_path / "whole"
        whole.mkdir()
        write_traffic(whole, REQUESTS)
        code, duration = run(learn(folder, whole), 0, 0)
        assert code == 0, (tmp_path / "log").read_text()
        for turn in range(TURNS):
            number = list(SIGNALS)[turn % len(SIGNALS)]
            place = tmp_path / str(turn)
            place.mkdir()
            url = write_traffic(place, REQUESTS)
            seen.clear()
            moment = chance.uniform(0.1, 0.9) * duration
            code, _ = run(learn(folder, place, "--follow"), number, moment)
            assert code in SIGNALS[number], (tmp_path / "log").read_text()[-2000:]
            stopped += bool(seen) and not VersionRegistry.at(place / "versions").state().versions
            code, _ = run(learn(folder, place), 0, 0)
            assert code == 0, (tmp_path / "log").read_text()[-2000:]
            asked = Counter(
                (one["model"], one["messages"][-1]["content"])
                for one in seen
                if one["model"] in SKILL
            )
            assert max(asked.values()) == 1
            assert sum(asked.values()) <= REQUESTS
            assert len(labelled(url)) >= REQUESTS - AT_ONCE
            with closing(sqlite3.connect(place / "receipts.sqlite")) as database:
                query = f"SELECT count(*) FROM {CHARGES} WHERE open = 1"
                ((unknown,),) = database.execute(query).fetchall()
                assert unknown <= AT_ONCE * 2
            assert [
                one.name for one in VersionRegistry.at(place / "versions").state().versions
            ] == ["0001"]
            left = [path.name for path in place.rglob(".*") if not path.name.endswith(".lock")]
            assert not left
    assert stopped
    assert "Traceback" not in (tmp_path / "log").read_text()


def labelled(url: str) -> set[str]:
    """The requests of which both answers are labelled."""
    found = labelled_samples(url)
    return {
        name for name, one in found.items() if {label.target for label in one.labels} == set(SKILL)
    }
