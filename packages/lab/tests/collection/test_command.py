"""`prefill-router collect`: what it prints, and how it ends."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from packages.lab.tests.collection.runs import (
    expected_texts,
    models,
    pool_of,
    tasks,
    texts,
    write_tasks_file,
)
from packages.router.tests.commands import check_malformed, check_refused, run, run_ok
from prefill_router.targets import write_pool
from prefill_router_minipool.server import Faults, Rule, Server, serve

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with serve(models()) as running:
        yield running


@pytest.fixture
def command(server: Server, tmp_path: Path) -> list[object]:
    write_pool(pool_of(server), tmp_path / "pool.yaml")
    write_tasks_file(tmp_path / "tasks.jsonl", 20)
    files = ("--pool", tmp_path / "pool.yaml", "--tasks", tmp_path / "tasks.jsonl")
    return ["collect", *files, "--out", tmp_path / "run"]


def test_collects_and_goes_on(server: Server, command: list[object], tmp_path: Path) -> None:
    before = len(server.log)
    output = json.loads(run_ok(*command, "--sample", 8, "--only", "small", "--json"))
    assert (output["calls"], output["answered"]) == (8, 8)
    assert output["targets"] == [
        {"target": "small", "answered": 8, "missing": {}, "not_asked": 0, "missing_before": 0}
    ]
    assert output["cost"] == pytest.approx(output["spent"])
    output = json.loads(run_ok(*command, "--sample", 12, "--only", "small", "--json"))
    assert output["calls"] == 4  # the larger sample holds the smaller
    shown = run_ok(*command)
    assert "small" in shown
    assert len(server.log) - before == 40
    assert texts(tmp_path / "run") == expected_texts(tasks(20))
    again = run(*command)
    assert again.code == 0
    assert "nothing is left to ask" in again.err


def test_dry_run(server: Server, command: list[object], tmp_path: Path) -> None:
    before = len(server.log)
    output = json.loads(run_ok(*command, "--dry-run", "--json", "--assume-output-tokens", 10))
    assert output["calls"] == 40
    assert 0 < output["dollars"] < output["most_dollars"]
    shown = run_ok(*command, "--dry-run")
    assert "40 calls" in shown
    assert not (tmp_path / "run").exists()
    assert len(server.log) == before


def test_dry_run_without_prices_tells_no_sum(
    server: Server, command: list[object], tmp_path: Path
) -> None:
    write_pool(pool_of(server, priced=False), tmp_path / "pool.yaml")
    shown = run_ok(*command, "--dry-run")
    assert "40 calls, ? estimated, ? if every" in " ".join(shown.split())
    assert "$" not in shown


def test_limit(command: list[object]) -> None:
    output = json.loads(run_ok(*command, "--max-cost", 0.01, "--json"))
    assert output["spent"] + output["at_risk"] <= 0.01
    assert output["not_asked"]
    assert output["limit_that_would_do"] > 0.01
    stopped = run(*command, "--max-cost", 0.01)
    assert stopped.code == 1  # nothing more fits
    assert "error: nothing was asked (the spending limit)" in stopped.err
    assert "the spending limit" in stopped.out
    assert "would do" in stopped.out
    enough = output["limit_that_would_do"]
    assert json.loads(run_ok(*command, "--max-cost", enough, "--json"))["not_asked"] == {}


def test_what_cannot_be_used(command: list[object], tmp_path: Path) -> None:
    check_refused("unknown targets", *command, "--only", "nobody")
    check_malformed("--retry is 'maybe'", *command, "--retry", "maybe")
    check_malformed("--max-cost is -1", *command, "--max-cost", -1)
    check_malformed("--sample is 0", *command, "--sample", 0)
    check_malformed("--attempts is 0", *command, "--attempts", 0)
    check_refused("no such file", *command[:3], "--tasks", tmp_path / "gone.jsonl", *command[5:])
    (tmp_path / "tasks.jsonl").write_text("")
    check_refused("", *command)
    assert not (tmp_path / "run").exists()


def test_nothing_answered_is_an_error(tmp_path: Path, command: list[object]) -> None:
    with serve(models(), faults=Faults(rules=[Rule(kind="unauthorized")])) as server:
        write_pool(pool_of(server), tmp_path / "pool.yaml")
        result = run(*command)
        calls = len(server.log)
    assert result.code == 1
    assert "40 unauthorised" in result.err
    assert "check the pool's endpoints, models and keys" in result.err
    assert "unauthorised" in result.out
    assert calls <= 16  # each of 8 workers found out at most once or twice
