"""The command line, from prompts to batches and back."""

import json
from dataclasses import replace
from pathlib import Path

import polars as pl
import pytest

from packages.router.tests.commands import check_malformed, check_refused, run, run_ok
from packages.router.tests.importers.truth import write_csv, write_jsonl
from prefill_router.targets import Pool, Provider, read_pool, write_pool

pytestmark = pytest.mark.slow


@pytest.fixture
def prompts(tmp_path: Path) -> Path:
    rows = [{"prompt": f"Question {i}: {'why ' * (i % 20)}?"} for i in range(60)]
    return write_jsonl(tmp_path / "prompts.jsonl", rows)


def test_from_prompts_to_batches_and_back(workspace: Path, prompts: Path, tmp_path: Path) -> None:
    out = tmp_path / "batches"
    words = ("assign", workspace / "router", prompts, "--out", out, "--format", "openai")
    budget = 0.01
    limited = ("--budget", budget, "--at-most", "target-2=20%", "--data", workspace / "answers")
    summary = json.loads(run_ok(*words, *limited, "--json"))
    assert summary.pop("out") == str(out)
    assert summary == json.loads((out / "assignment.json").read_text())
    assert summary["prompts"] == 60
    assert summary["expected_cost"] <= budget
    assert summary["targets"]["target-2"]["prompts"] <= 12
    assert summary["expected_right"] + summary["gap"] == pytest.approx(summary["bound"])
    corrected = summary["accuracy"]["corrected"]
    assert corrected["lower"] <= corrected["value"] <= corrected["upper"]
    table = pl.read_parquet(out / "assignment.parquet")
    query_ids = [
        json.loads(line)["custom_id"]
        for figures in summary["targets"].values()
        for name in figures["files"]
        for line in (out / name).read_text().splitlines()
    ]
    assert sorted(query_ids) == sorted(table["id"])
    usage = {"prompt_tokens": 30, "completion_tokens": 100}
    results = write_jsonl(
        tmp_path / "results.jsonl",
        [
            {"custom_id": name, "response": {"status_code": 200, "body": {"usage": usage}}}
            for name in query_ids
        ],
    )
    rows = [{"id": name, "correct": n % 2} for n, name in enumerate(query_ids)]
    labels = write_csv(tmp_path / "labels.csv", rows)
    check = ("check-assignment", out, results)
    check_result = json.loads(run_ok(*check, "--labels", labels, "--json"))
    assert check_result["total"]["observed"] == 0.5
    assert check_result["total"]["answered"] == 60
    assert "no answer has a label" in run_ok(*check)


def test_what_is_shown_and_the_same_again(workspace: Path, prompts: Path, tmp_path: Path) -> None:
    words = ("assign", workspace / "router", prompts, "--out", tmp_path / "batches")
    result = run(*words, "--budget", 0.01)
    assert result.code == 0, result.err
    assert "target-0" in result.out
    assert "lines: 60 of 60" in result.err
    first = {p.name: p.read_bytes() for p in (tmp_path / "batches").iterdir()}
    run_ok(*words, "--budget", 0.01)
    assert {p.name: p.read_bytes() for p in (tmp_path / "batches").iterdir()} == first
    check_refused("pass --overwrite", *words, "--budget", 0.012)
    run_ok(*words, "--budget", 0.012, "--overwrite")
    check_refused(
        "isn't an assignment", *words[:4], workspace / "answers", "--budget", 1, "--overwrite"
    )


def test_a_pool_file_says_where_targets_are_and_the_router_what_they_cost(
    workspace: Path, prompts: Path, tmp_path: Path
) -> None:
    pool = read_pool(workspace / "answers" / "pool.yaml")
    claude = Provider(name="a", base_url="https://a.example/v1", dialect="anthropic")
    moved = tuple(replace(t, provider="a", input_price=9.0) for t in pool)
    write_pool(Pool(moved, providers=(claude,)), tmp_path / "pool.yaml")
    out = tmp_path / "batches"
    words = ("assign", workspace / "router", prompts, "--budget", 0.01, "--out", out)
    result = run(*words, "--pool", tmp_path / "pool.yaml")
    assert result.code == 0, result.err
    assert "has other prices; the router's count" in " ".join(result.err.split())
    line = json.loads((out / "target-0.jsonl").read_text().splitlines()[0])
    assert line["params"]["model"] == "target-0"
    summary = json.loads((out / "assignment.json").read_text())
    assert [t["input_price"] for t in summary["pool"]["targets"]] == [t.input_price for t in pool]


@pytest.mark.parametrize("limit", ["target-0", "target-0=-1", "target-0=101%", "target-0=x", "=1"])
def test_limits_that_are_no_numbers(
    limit: str, workspace: Path, prompts: Path, tmp_path: Path
) -> None:
    words = ("assign", workspace / "router", prompts, "--out", tmp_path / "out", "--budget", 1)
    check_malformed("--at-most is", *words, "--at-most", limit)


def test_what_can_not_be_assigned(workspace: Path, prompts: Path, tmp_path: Path) -> None:
    words = ("assign", workspace / "router", prompts, "--out", tmp_path / "out", "--budget")
    check_refused(r"cheapest assignment costs \$0\.0", *words, 0)
    check_refused("unknown targets.*did you mean", *words, 1, "--at-most", "target-9=1")
    none = [part for k in range(3) for part in ("--at-most", f"target-{k}=10")]
    check_refused("leave room for 30 of 60 prompts", *words, 1, *none)
    check_refused("no such folder", *words, 1, "--data", tmp_path / "gone")
    assert not (tmp_path / "out").exists()
