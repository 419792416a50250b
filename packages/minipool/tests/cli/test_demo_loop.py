"""From an empty folder to a version that serves, with no label given and a judge that errs."""

import json
import signal
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from packages.router.tests.commands import check_refused
from prefill_router.data import Message, Query
from prefill_router.errors import ConfigError
from prefill_router.grading import judge_prompt, read_verdict
from prefill_router.router import VersionRegistry
from prefill_router.runs import Task
from prefill_router_minipool import make_tasks
from prefill_router_minipool.cli.demo_loop import (
    DEFAULT,
    ERRS,
    JUDGE,
    LEARNED,
    StandInJudge,
    run_loop,
)

pytestmark = pytest.mark.slow

BUDGET = 0.05
QUESTIONS = 480


LOOP = """
import sys
from functools import partial
from pathlib import Path

import prefill_router_gateway.learning.rollout as trial
from prefill_router.fitting import Recipe, cross_fitting, effort
from prefill_router.predictors import TrunkConfig
from prefill_router_gateway.cli import learn
from prefill_router_minipool.cli import demo_loop


def serve_three(job):
    pool = job.folder / "pool.yaml"
    serve = ("minipool", "serve", "--port", 0, "--only", "abacus,scribe,atlas")
    return job.serving(*serve, "--write-pool", pool, is_ready=lambda _: pool.is_file())


learn._lower_priority = lambda **_: None
demo_loop.serving_pool = serve_three
demo_loop._WAVES = 6
cross_fitting.FOLDS = 3
effort.Recipe = partial(Recipe, predictor=TrunkConfig(seeds=2, keep=1))
trial.RolloutSettings = partial(
    trial.RolloutSettings, least_live=5, share=0.5, first_margin=0.6, margin=0.6
)
questions, budget = int(sys.argv[2]), float(sys.argv[3])
demo_loop.run_loop(Path(sys.argv[1]), questions=questions, budget=budget, seed=0, as_json=True)
"""
"""A loop of three targets that no other test holds up. Its candidates have fewer networks, and have
to prove less in fewer requests of their own; what proves how much has tests of its own.
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    demo_folder = tmp_path_factory.mktemp("loop") / "loop"
    command = [sys.executable, "-c", LOOP, str(demo_folder), str(QUESTIONS), str(BUDGET)]
    process = subprocess.run(command, capture_output=True, text=True, check=False)
    assert process.returncode == 0, process.stderr
    assert json.loads(process.stdout)["version"]
    return demo_folder


@pytest.fixture(scope="module")
def verdict(folder: Path) -> dict[str, Any]:
    output: dict[str, Any] = json.loads((folder / "loop.json").read_text())
    return output


def test_a_version_that_is_worth_it_takes_over(folder: Path, verdict: dict[str, Any]) -> None:
    state = VersionRegistry.at(folder / "versions").state()
    assert state.current == verdict["version"]
    verdict_of_version = state[verdict["version"]].verdict
    assert verdict_of_version is not None
    assert verdict_of_version["word"] == "worth it"
    events = [step.event for step in state.steps if step.version == verdict["version"]]
    assert events[:4] == ["added", "shadow", "share", "promoted"]
    assert verdict["fitted_on"] < verdict["questions"] <= QUESTIONS


def test_its_gain_is_nearly_that_of_true_labels(verdict: dict[str, Any]) -> None:
    assert verdict["true_labels"] - verdict["best_mix"] > 0.1
    assert verdict["share_of_gain"] > 0.7
    best = verdict["systems"][LEARNED]["per_target"][DEFAULT]
    assert verdict["learned"] > best["accuracy"]["upper"]
    assert verdict["cost"] < best["mean_cost"]["value"]
    assert verdict["systems"][LEARNED]["queries"] == QUESTIONS // 2


def test_no_label_is_given_and_the_ledger_stays_within_the_budget(
    folder: Path, verdict: dict[str, Any]
) -> None:
    with closing(sqlite3.connect(folder / "receipts.sqlite")) as store:
        (dollars,) = store.execute("SELECT SUM(dollars) FROM receipt_charges").fetchone()
        (side,) = store.execute("SELECT SUM(cost) FROM receipt_side_answers").fetchone()
        costs = store.execute("SELECT source, SUM(cost) FROM receipt_labels GROUP BY source")
        labels = dict(costs.fetchall())
        assert store.execute("SELECT COUNT(*) FROM receipt_feedback").fetchone() == (0,)
    assert list(labels) == [f"judge:{JUDGE}"]
    assert dollars == pytest.approx(side + sum(labels.values()), abs=1e-9)
    assert dollars == pytest.approx(verdict["spent"], abs=1e-9)
    assert dollars <= BUDGET


def test_the_picture_and_its_data(folder: Path, verdict: dict[str, Any]) -> None:
    del verdict
    assert (folder / "loop.png").read_bytes().startswith(b"\x89PNG")
    assert LEARNED in (folder / "loop.csv").read_text()


def test_a_folder_with_anything_in_it_is_refused(tmp_path: Path) -> None:
    (tmp_path / "labels.csv").touch()
    check_refused("isn't empty", "demo", "--loop", "--out", tmp_path)


def test_a_budget_that_is_too_small_ends_without_a_version_and_isnt_passed(tmp_path: Path) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("prefill_router_gateway.cli.learn._lower_priority", lambda **_: None)
        patch.setattr("prefill_router_minipool.cli.demo_loop._WAVES", 2)
        with pytest.raises(ConfigError, match="no version serves after 40 questions"):
            run_loop(tmp_path / "loop", questions=40, budget=0.0005, seed=0, as_json=True)
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL
    with closing(sqlite3.connect(tmp_path / "loop" / "receipts.sqlite")) as store:
        (dollars,) = store.execute("SELECT SUM(dollars) FROM receipt_charges").fetchone()
    assert 0 < dollars <= 0.0005


def test_the_judge_errs_in_a_tenth_of_the_cases_and_always_in_the_same() -> None:
    tasks = make_tasks(1000, seed=0)
    judge = StandInJudge({task.prompt: task.answer for task in tasks})

    def verdict(question: str, answer: str) -> float:
        asked = Query("q", (Message("user", question),))
        task = Task(query=asked, grader="judge", options={"rubric": "right"})
        found = read_verdict(judge(judge_prompt("judge", task, answer, soft=False)), soft=False)
        assert found is not None
        return found.score

    cases = [(task, answer) for task in tasks for answer in (task.answer, "no idea")]
    off = [verdict(task.prompt, answer) != (answer == task.answer) for task, answer in cases]
    assert sum(off) / len(off) == pytest.approx(ERRS, abs=0.02)
    assert off == [verdict(t.prompt, answer) != (answer == t.answer) for t, answer in cases]
