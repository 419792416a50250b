"""The commands import and describe."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from prefill_router.cli import app
from prefill_router.data import read_dataset
from prefill_router.errors import PrefillRouterError

from .samples import SAMPLES, long_rows, wide_rows
from .truth import write_csv


def run(*arguments: str | Path) -> Result:
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


@pytest.fixture
def table(tmp_path: Path) -> Path:
    rows = [*long_rows(), long_rows()[0], {**long_rows()[0], "target": ""}]
    return write_csv(tmp_path / "answers.csv", rows)


def test_import_says_what_it_read_kept_and_left_out(table: Path, tmp_path: Path) -> None:
    result = run("import", "long", table, "--out", tmp_path / "out", "--skip-malformed")
    assert result.exit_code == 0, result.output
    assert "read 11 rows of 1 files" in result.output
    assert "kept 9, dropped 1 repeats and 1 malformed" in result.output
    assert f"{table}:14: target is empty" in result.output.replace("\n", "")
    assert "5 queries, 2 targets, 9 labels, 1 missing" in result.output
    assert len(read_dataset(tmp_path / "out")) == 5


def test_import_as_json(table: Path, tmp_path: Path) -> None:
    result = run("import", "long", table, "--out", tmp_path / "out", "--json", "--skip-malformed")
    summary = json.loads(result.stdout)
    assert summary["problems"] == [{"file": str(table), "line": 14, "reason": "target is empty"}]
    assert (summary["rows_read"], summary["rows_kept"], summary["duplicates"]) == (11, 9, 1)
    assert summary["dataset"]["queries"] == 5


def test_strict_writes_nothing(table: Path, tmp_path: Path) -> None:
    result = run("import", "long", table, "--out", tmp_path / "out", "--strict")
    assert isinstance(result.exception, PrefillRouterError)
    assert not (tmp_path / "out").exists()


def test_import_of_named_columns(tmp_path: Path) -> None:
    path = write_csv(tmp_path / "t.csv", wide_rows())
    result = run(
        *("import", "wide", path, "--out", tmp_path / "out", "--prompt-column", "asked"),
        *("--target-columns", "org/alpha, beta", "--correct-column", "{target} ok"),
        *("--cost-column", "{target} usd"),
    )
    assert result.exit_code == 0, result.output
    assert read_dataset(tmp_path / "out").recorded_cost[0].tolist() == [0.01, 0.002]


def test_describe_as_text_and_json(tmp_path: Path) -> None:
    sample = SAMPLES["llmrouterbench tree"]
    run("import", sample.format, *sample.write(tmp_path), "--out", tmp_path / "out")
    text = run("describe", tmp_path / "out")
    assert text.exit_code == 0, text.output
    for piece in (
        "5 queries",
        "best single target 75.0 % (beta)",
        "oracle 100.0 %, on the 4 queries",
        "disagreement",
    ):
        assert piece in text.output
    summary = json.loads(run("describe", tmp_path / "out", "--json").stdout)
    assert summary["regimes"]["disagreement"] == {"count": 3, "share": 0.6}
    assert summary["by_benchmark"]["made-up"]["oracle_accuracy"] == 1
    by = run("describe", tmp_path / "out", "--by", "benchmark")
    assert "accuracy by benchmark" in by.output


@pytest.mark.slow
def test_describe_the_real_answers(mmlu_pro: Path) -> None:
    summary = json.loads(run("describe", mmlu_pro, "--json").stdout)
    assert (summary["queries"], summary["distinct_prompts"]) == (9692, 9588)
    assert len(summary["targets"]) == 14
    assert len(summary["by_domain"]) == 14
    assert summary["best_single"] == "gemini-1.5-pro-002"
    assert sum(regime["count"] for regime in summary["regimes"].values()) == 9692
    assert sum(part["queries"] for part in summary["by_domain"].values()) == 9692


def test_one_label_makes_no_best_target(tmp_path: Path) -> None:
    rows = [{**row, "correct": 1 if n == 0 else None} for n, row in enumerate(long_rows())]
    run("import", "long", write_csv(tmp_path / "t.csv", rows), "--out", tmp_path / "out")
    result = run("describe", tmp_path / "out")
    assert "best single target unknown (fewer than two queries have" in result.output
