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

from packages.gateway.tests.learning.traffic import SKILL, answer, build_pools, write_traffic
from packages.router.tests.commands import check_refused
from packages.router.tests.fakes.answering_server import serve_answers
from packages.router.tests.forks import forks
from packages.router.tests.programs import run_program
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
    signal.SIGTERM: (130, -signal.SIGTERM),  # the second: before the command handles signals
    signal.SIGKILL: (-signal.SIGKILL,),
}


@pytest.fixture(scope="module")
def learner_files(
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[tuple[Path, list[dict[str, Any]]]]:
    """A folder with pools and a recipe, and the bodies of requests to the targets."""
    folder = tmp_path_factory.mktemp("follow")
    with serve_answers(answer) as (base_url, bodies):
        for pool, name in zip(build_pools(base_url), ("pool", "judge"), strict=True):
            write_pool(pool, folder / f"{name}.yaml")
        (folder / "recipe.yaml").write_text(RECIPE)
        yield folder, bodies


def build_arguments(files: Path, folder: Path, *arguments: object) -> list[str]:
    """The arguments of the command, for a database in a folder."""
    options: dict[str, object] = {
        "--receipts": folder / "receipts.sqlite",
        "--pool": files / "pool.yaml",
        "--judge": files / "judge.yaml",
        "--versions": folder / "versions",
        "--encoder": "fake",
        "--recipe": files / "recipe.yaml",
        "--least-labels": 10,
        "--per-day": 1,
        "--anchors-every": 0,  # no anchor is repeated
    }
    return [
        "learn",
        *(str(part) for pair in options.items() for part in pair),
        *map(str, arguments),
    ]


def idle_threads(process: int) -> list[bool]:
    """For each thread of a process, whether Linux runs it only when the machine is idle."""
    tasks = [int(task.name) for task in Path(f"/proc/{process}/task").iterdir()]
    return [os.sched_getscheduler(task) == os.SCHED_IDLE for task in tasks]


def read_priorities(process: int) -> set[int]:
    """The priorities of a process's threads."""
    tasks = Path(f"/proc/{process}/task").iterdir()
    return {int((task / "stat").read_text().rpartition(")")[2].split()[16]) for task in tasks}


def run_at_normal_priority(process: int) -> None:
    """Set normal priority for a learner that waits for an idle machine; tests keep it busy."""
    while not all(idle_threads(process)):
        time.sleep(0.01)
    assert len(idle_threads(process)) > 1
    while any(idle_threads(process)):
        for task in Path(f"/proc/{process}/task").iterdir():
            os.sched_setscheduler(int(task.name), os.SCHED_OTHER, os.sched_param(0))


def test_a_rubric_that_is_not_text_is_refused_with_its_place(
    learner_files: tuple[Path, list[dict[str, Any]]], tmp_path: Path
) -> None:
    rubric = tmp_path / "rubric.txt"
    rubric.write_bytes("Vollständig".encode("latin-1"))
    check_refused(
        "rubric.txt: not UTF-8 at byte 6",
        *build_arguments(learner_files[0], tmp_path, "--rubric", rubric),
    )


def test_rounds_follow_each_other_at_low_priority_until_a_signal(
    learner_files: tuple[Path, list[dict[str, Any]]], tmp_path: Path
) -> None:
    write_traffic(tmp_path, REQUESTS)
    arguments = build_arguments(learner_files[0], tmp_path, "--follow", "--every", "0m", "--json")
    with (
        (tmp_path / "log").open("w+") as log,
        run_program(
            [sys.executable, "-m", PROGRAM, *arguments],
            stdout=subprocess.PIPE,
            stderr=log,
            env={**os.environ, "OPENBLAS_NUM_THREADS": "2"},  # so that a library starts a thread
        ) as process,
    ):
        assert process.stdout is not None
        run_at_normal_priority(process.pid)
        first, second = (json.loads(process.stdout.readline()) for _ in range(2))
        write_traffic(tmp_path, REQUESTS + 3, first=REQUESTS)
        answers: dict[str, int] = {}
        while not answers:
            answers = json.loads(process.stdout.readline())["labelling"]["answers"]
        process.terminate()
        process.communicate()
        log.seek(0)
        log_text = log.read()
    assert process.returncode == 130, log_text
    assert "interrupted; what was finished is kept" in log_text
    assert "Traceback" not in log_text
    assert first["labelling"]["answers"] == {"answered": REQUESTS}
    assert (first["version"], second["version"]) == ("0001", None)
    assert second["labelling"]["answers"] == {}
    assert answers == {"answered": 3}


def test_a_single_round_yields_to_others_but_is_not_left_without(
    learner_files: tuple[Path, list[dict[str, Any]]], tmp_path: Path
) -> None:
    write_traffic(tmp_path, REQUESTS)
    with run_program(
        [sys.executable, "-m", PROGRAM, *build_arguments(learner_files[0], tmp_path)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        while read_priorities(process.pid) != {os.nice(0) + 10}:
            assert process.poll() is None
            time.sleep(0.01)
        assert not any(idle_threads(process.pid))
        process.kill()


def test_a_round_that_is_stopped_at_any_moment_goes_on_and_nothing_is_paid_twice(
    learner_files: tuple[Path, list[dict[str, Any]]], tmp_path: Path
) -> None:
    folder, bodies = learner_files
    chance, stop_count = random.Random(0), 0
    with forks(tmp_path / "log", PROGRAM) as run:
        full_run = tmp_path / "whole"
        full_run.mkdir()
        write_traffic(full_run, REQUESTS)
        code, duration = run(build_arguments(folder, full_run), 0, 0)
        assert code == 0, (tmp_path / "log").read_text()
        for turn in range(TURNS):
            number = list(SIGNALS)[turn % len(SIGNALS)]
            run_folder = tmp_path / str(turn)
            run_folder.mkdir()
            url = write_traffic(run_folder, REQUESTS)
            bodies.clear()
            moment = chance.uniform(0.1, 0.9) * duration
            code, _ = run(build_arguments(folder, run_folder, "--follow"), number, moment)
            assert code in SIGNALS[number], (tmp_path / "log").read_text()[-2000:]
            stop_count += (
                bool(bodies) and not VersionRegistry.at(run_folder / "versions").state().versions
            )
            code, _ = run(build_arguments(folder, run_folder), 0, 0)
            assert code == 0, (tmp_path / "log").read_text()[-2000:]
            counts = Counter(
                (body["model"], body["messages"][-1]["content"])
                for body in bodies
                if body["model"] in SKILL
            )
            assert max(counts.values()) == 1
            assert sum(counts.values()) <= REQUESTS
            assert len(find_labelled(url)) >= REQUESTS - AT_ONCE
            with closing(sqlite3.connect(run_folder / "receipts.sqlite")) as database:
                query = f"SELECT count(*) FROM {CHARGES} WHERE open = 1"
                ((unknown,),) = database.execute(query).fetchall()
                assert unknown <= AT_ONCE * 2
            assert [
                version.name
                for version in VersionRegistry.at(run_folder / "versions").state().versions
            ] == ["0001"]
            leftovers = [
                path.name for path in run_folder.rglob(".*") if not path.name.endswith(".lock")
            ]
            assert not leftovers
    assert stop_count
    assert "Traceback" not in (tmp_path / "log").read_text()


def find_labelled(url: str) -> set[str]:
    """The ids of requests with labels of both answers."""
    samples = labelled_samples(url)
    return {
        name
        for name, sample in samples.items()
        if {label.target for label in sample.labels} == set(SKILL)
    }
