"""From a run to a dataset: what is written, what is kept, and what stops it."""

import json
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings, strategies as st

from packages.router.tests.commands import check_malformed, check_refused, run, run_ok
from packages.router.tests.grading.graded_runs import (
    POOL,
    answer,
    every_kind,
    make_run,
    run_of,
    task,
)
from prefill_router.data import read_dataset, write_dataset
from prefill_router.errors import ConfigError, CorruptError, DataError
from prefill_router.files import writer_lock
from prefill_router.grading import Settings, grade_run
from prefill_router.grading.grade_table import wilson
from prefill_router.grading.job import LOCK
from prefill_router.runs import Attempt
from prefill_router.runs.run import Run
from prefill_router.testing import make_routing_dataset

pytestmark = pytest.mark.slow


def grade(folder: Path, out: Path, **options: Any) -> dict[str, Any]:
    with Run.open(folder) as run:
        return grade_run(run, out, settings=Settings(**options)).to_dict()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return every_kind(tmp_path / "run")


def test_the_dataset_holds_what_was_asked_and_how_right_it_was(
    folder: Path, tmp_path: Path
) -> None:
    grade(folder, tmp_path / "out")
    dataset = read_dataset(tmp_path / "out")
    assert dataset.query_ids == ("a", "b", "c", "d", "f")  # no target was asked e
    assert dataset.pool == POOL
    missing = np.nan
    np.testing.assert_array_equal(
        dataset.correct, [[1, missing], [0, 1], [1, 0], [1, missing], [missing, missing]]
    )
    np.testing.assert_array_equal(
        dataset.recorded_cost,
        [[0.25, missing], [0.25, 0.5], [0.25, missing], [0.25, missing], [missing, 0.25]],
    )
    np.testing.assert_array_equal(
        dataset.output_tokens, [[3, missing], [3, missing], [3, 3], [3, missing], [missing, 3]]
    )
    np.testing.assert_array_equal(dataset.input_tokens[:, 0], [7, 7, 7, 7, missing])


def test_counts_of_tokens_are_those_of_the_call_that_answered(tmp_path: Path) -> None:
    late = Attempt(began="", seconds=9.0, failure="answer_timeout", cost=0.0, at_risk=0.5)
    exact = Attempt(began="", seconds=2.0, cost=0.25)
    untrue = Attempt(began="", seconds=2.0, cost=0.25, at_risk=0.5)
    after_another = {"cost_source": "estimate", "attempts": (late, exact)}
    folder = make_run(
        tmp_path / "run",
        [task("a", answer="4")],
        [
            answer("small", "a", "4", **after_another),
            answer("large", "a", "4", cost_source="estimate", attempts=(untrue,)),
        ],
    )
    grade(folder, tmp_path / "out")
    dataset = read_dataset(tmp_path / "out")
    np.testing.assert_array_equal(dataset.output_tokens, [[3, np.nan]])
    np.testing.assert_array_equal(dataset.recorded_cost, [[0.25, 0.25]])


def test_each_answer_has_a_row_with_its_reason(folder: Path, tmp_path: Path) -> None:
    grade(folder, tmp_path / "out")
    rows = pl.read_parquet(tmp_path / "out" / "grades.parquet")
    assert rows.select("query_id", "target", "missing").rows() == [
        ("a", "small", None),
        ("a", "large", "rate_limited"),
        ("b", "small", None),
        ("b", "large", None),
        ("c", "small", None),
        ("c", "large", None),
        ("d", "small", None),
        ("f", "large", "unfit_task"),
    ]
    first = rows.row(0, named=True)
    assert first["extracted"] == "4"
    assert (first["finish_reason"], first["first_token_seconds"], first["seconds"]) == (
        "stop",
        0.5,
        1.0,
    )


def test_the_counts(folder: Path, tmp_path: Path) -> None:
    report = grade(folder, tmp_path / "out")
    small, large = report["targets"]
    assert (small["graded"], small["correct"], small["truncated"]) == (4, 3, 1)
    assert small["missing"] == {"not_asked": 2}
    assert small["median_seconds"] == 2.0
    assert large["missing"] == {"not_asked": 2, "rate_limited": 1, "unfit_task": 1}
    assert (large["cost"], large["mean_cost"]) == (0.75, 0.5)
    assert report["graders"]["number"] == {"version": 1}
    assert report["graders"]["mmlu_pro"] == {"version": 1, "setting": "wrong"}
    assert json.loads((tmp_path / "out" / "grading.json").read_bytes()) == report


def test_grading_again_gives_the_same_files(folder: Path, tmp_path: Path) -> None:
    def content() -> dict[str, bytes]:
        return {path.name: path.read_bytes() for path in (tmp_path / "out").iterdir()}

    grade(folder, tmp_path / "out", jobs=2)
    before = content()
    raw = (folder / "run.sqlite").read_bytes()
    grade(folder, tmp_path / "out")
    assert content() == before
    grade(folder, tmp_path / "out", fresh=True)
    assert content() == before
    assert (folder / "run.sqlite").read_bytes() == raw


def test_dear_verdicts_are_kept_by_content(tmp_path: Path) -> None:
    pytest.importorskip("math_verify", reason="the package math-verify isn't installed")
    question = task("d", grader="math", answer=r"\frac{1}{2}")
    folder = run_of(tmp_path / "run", {question: {"small": "so $0.5$"}})
    with Run.open(folder) as run:
        assert grade_run(run, tmp_path / "out").reused == 0
        assert grade_run(run, tmp_path / "out").reused == 1
        assert grade_run(run, tmp_path / "out", settings=Settings(fresh=True)).reused == 0
    database = sqlite3.connect(folder / "grades.sqlite")
    with database:
        database.execute("UPDATE grades SET score = 0")
    database.close()
    report = grade(folder, tmp_path / "out")
    assert report["targets"][0]["correct"] == 0  # it was really taken from there
    assert grade(folder, tmp_path / "out", fresh=True)["targets"][0]["correct"] == 1


def test_a_grader_can_be_left_out(folder: Path, tmp_path: Path) -> None:
    report = grade(folder, tmp_path / "out", skip=frozenset({"number", "normalised"}))
    assert report["targets"][0]["missing"] == {"not_asked": 2, "skipped": 2}
    assert report["skipped"] == ["normalised", "number"]
    with pytest.raises(ConfigError, match="no grader 'nonsense'"):
        grade(folder, tmp_path / "out", skip=frozenset({"nonsense"}))


def test_what_a_grader_lacks_is_told_before_any_work(tmp_path: Path) -> None:
    folder = run_of(
        tmp_path / "run",
        {
            task("a", answer="4"): {"small": "4"},
            task("b", grader="hle", answer="x"): {"small": "x"},
        },
    )
    with pytest.raises(ConfigError, match="--judge"):
        grade(folder, tmp_path / "out")
    assert not (tmp_path / "out").exists()
    assert grade(folder, tmp_path / "out", skip=frozenset({"hle"}))["targets"][0]["graded"] == 1


def test_all_graders_that_lack_a_judge_are_told_at_once(tmp_path: Path) -> None:
    tasks = {
        task("a", answer="4"): {"small": "4"},
        task("b", grader="hle", answer="x"): {"small": "x", "large": None},
        task("c", grader="judge", rubric="Polite?"): {"large": "x"},
    }
    folder = run_of(tmp_path / "run", tasks)
    with pytest.raises(ConfigError, match=r"judge and hle need .* --skip judge --skip hle$"):
        grade(folder, tmp_path / "out")


def test_without_an_answer_to_judge_no_judge_is_needed(tmp_path: Path) -> None:
    tasks = {
        task("a", answer="4"): {"small": "4"},
        task("b", grader="hle", answer="x"): {"small": None},
        task("c", grader="judge", rubric="Polite?"): {},
    }
    report = grade(run_of(tmp_path / "run", tasks), tmp_path / "out")
    assert report["targets"][0]["missing"] == {"not_asked": 1, "rate_limited": 1}
    assert list(report["graders"]) == ["exact"]


def test_runs_that_give_no_dataset(tmp_path: Path) -> None:
    empty = make_run(tmp_path / "empty", [task("a", answer="4")], [])
    with pytest.raises(DataError, match="no answers yet"):
        grade(empty, tmp_path / "out")
    odd = run_of(tmp_path / "odd", {task("a", grader="nonsense"): {"small": "4"}})
    with pytest.raises(ConfigError, match="no grader 'nonsense'"):
        grade(odd, tmp_path / "out")
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "notes.txt").write_text("keep me")
    with pytest.raises(DataError, match="isn't a dataset"):
        grade(empty, tmp_path / "mine")


def test_a_dataset_and_what_stands_beside_it_are_written_together_or_not_at_all(
    tmp_path: Path,
) -> None:
    def add(folder: Path) -> None:
        (folder / "more.txt").write_text("more")

    def fail(folder: Path) -> None:
        add(folder)
        raise OSError("no room")

    dataset = make_routing_dataset(queries=4)
    with pytest.raises(OSError, match="no room"):
        write_dataset(dataset, tmp_path / "out", also=fail)
    assert not (tmp_path / "out").exists()
    write_dataset(dataset, tmp_path / "out", also=add)
    assert (tmp_path / "out" / "more.txt").read_text() == "more"
    with pytest.raises(OSError, match="no room"):
        write_dataset(make_routing_dataset(queries=8), tmp_path / "out", also=fail)
    assert len(read_dataset(tmp_path / "out")) == 4


def test_damaged_verdicts_are_told(tmp_path: Path) -> None:
    pytest.importorskip("math_verify", reason="the package math-verify isn't installed")
    folder = run_of(tmp_path / "run", {task("a", grader="math", answer="1"): {"small": "1"}})
    (folder / "grades.sqlite").write_bytes(b"nonsense" * 1000)
    with pytest.raises(CorruptError, match="remove it"):
        grade(folder, tmp_path / "out")


def test_a_run_is_graded_once_at_a_time(folder: Path, tmp_path: Path) -> None:
    with writer_lock(folder, LOCK, wait=False), pytest.raises(ConfigError, match="is grading"):
        grade(folder, tmp_path / "out")


def test_answers_of_targets_that_left_the_pool_are_left_out(tmp_path: Path) -> None:
    folder = make_run(
        tmp_path / "run",
        [task("a", answer="4")],
        [answer("small", "a", "4"), answer("large", "a", "4")],
    )
    manifest = json.loads((folder / "run.json").read_bytes())
    del manifest["pool"]["targets"][1]
    (folder / "run.json").write_text(json.dumps(manifest))
    report = grade(folder, tmp_path / "out")
    assert report["left_out"] == 1
    assert [target["target"] for target in report["targets"]] == ["small"]


def write_function(folder: Path, body: str) -> str:
    (folder / "mine.py").write_text(f"def grade(task, answer):\n    {body}\n")
    return f"{folder / 'mine.py'}:grade"


@pytest.mark.parametrize(
    ("body", "score", "missing"),
    [
        ("return task['answer'][0] in answer", 1.0, None),
        ("return 0.25", 0.25, None),
        ("import numpy; return numpy.float32(0.5)", 0.5, None),
        ("return 2", None, "function_failed"),
        ("return None", None, "function_failed"),
        ("raise KeyError('x')", None, "function_failed"),
        ("raise SystemExit", None, "function_failed"),
        ("return float('nan')", None, "function_failed"),
    ],
)
def test_a_function_of_ones_own(
    tmp_path: Path, body: str, score: float | None, missing: str | None
) -> None:
    name = write_function(tmp_path, body)
    question = task("a", grader="python", answer="4", function=name)
    folder = run_of(tmp_path / "run", {question: {"small": "it is 4"}})
    grade(folder, tmp_path / "out")
    row = pl.read_parquet(tmp_path / "out" / "grades.parquet").row(0, named=True)
    assert (row["score"], row["missing"]) == (score, missing)


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("mine.py", "write it as"),
        ("{}/absent.py:grade", "no such file"),
        ("{}/mine.py:absent", "has no function"),
        ("{}/broken.py:grade", "can't be loaded: ZeroDivisionError"),
        ("no.such.package:grade", "can't be loaded: ModuleNotFoundError"),
    ],
)
def test_functions_that_are_not_there(tmp_path: Path, name: str, reason: str) -> None:
    write_function(tmp_path, "return True")
    (tmp_path / "broken.py").write_text("1 / 0\n")
    folder = run_of(tmp_path / "run", {task("a", grader="python"): {"small": "x"}})
    with pytest.raises(ConfigError, match=reason):
        grade(folder, tmp_path / "out", function=name.format(tmp_path))


def test_a_function_without_a_name_is_missing_and_not_wrong(tmp_path: Path) -> None:
    folder = run_of(tmp_path / "run", {task("a", grader="python"): {"small": "x"}})
    assert grade(folder, tmp_path / "out")["targets"][0]["missing"] == {"unfit_task": 1}


@settings(max_examples=100, deadline=None)
@given(st.integers(1, 500), st.floats(0, 1))
def test_the_interval_holds_the_share(count: int, share: float) -> None:
    low, high = wilson(share * count, count)
    assert 0 <= low <= share + 1e-12
    assert share - 1e-12 <= high <= 1
    lower, higher = wilson((1 - share) * count, count)
    assert (low, high) == pytest.approx((1 - higher, 1 - lower), abs=1e-9)


def test_the_interval_is_wilsons() -> None:
    assert wilson(8, 10) == pytest.approx((0.4902, 0.9433), abs=1e-4)


@pytest.fixture
def command(folder: Path, tmp_path: Path) -> Callable[..., str]:
    return lambda *options: run_ok("grade", folder, "--out", tmp_path / "out", *options)


def test_the_command(command: Callable[..., str], tmp_path: Path) -> None:
    output = command()
    assert "75.0 %" in output
    assert "1 rate_limited" in output
    report = json.loads(command("--json", "--skip", "normalised", "--skip", "number"))
    assert report["skipped"] == ["normalised", "number"]
    assert "small" in run_ok("describe", tmp_path / "out")


def test_each_reason_has_an_example(command: Callable[..., str], tmp_path: Path) -> None:
    lines = command("--skip", "number").splitlines()
    assert "rate_limited: for example a of large" in lines
    assert "unfit_task: for example f of large: the task has no answer to compare with" in lines
    assert f"all of them: {tmp_path / 'out' / 'grades.parquet'}, column detail" in lines
    assert not [line for line in lines if line.startswith(("skipped:", "not_asked:"))]
    examples = json.loads(command("--json"))["examples"]
    assert examples["rate_limited"] == {"query_id": "a", "target": "large", "detail": ""}


def test_an_example_quotes_no_prompt(tmp_path: Path) -> None:
    numbers = iter(range(9))

    def example(body: str) -> dict[str, str]:
        question = task("a", grader="python", function=write_function(tmp_path, body))
        number = next(numbers)
        folder = run_of(tmp_path / f"run{number}", {question: {"small": "x"}})
        example_row: dict[str, str] = grade(folder, tmp_path / f"out{number}")["examples"][
            "function_failed"
        ]
        return example_row

    assert example("raise KeyError('x' * 1000)")["detail"].startswith("KeyError: 'xxx")
    assert len(example("raise KeyError('y' * 2000)")["detail"]) <= 120
    assert example("raise ValueError('not so: ' + task['prompt'])")["detail"] == ""


def test_the_command_is_refused_in_one_line(folder: Path, tmp_path: Path) -> None:
    out = ("--out", tmp_path / "out")
    check_refused("no run", "grade", tmp_path, *out)
    check_malformed("--unextracted is 'x'", "grade", folder, *out, "--unextracted", "x")
    check_malformed("--jobs is 0", "grade", folder, *out, "--jobs", "0")
    check_malformed("--judge-samples is 0", "grade", folder, *out, "--judge-samples", "0")
    check_malformed("--judge-max-cost is -1", "grade", folder, *out, "--judge-max-cost", "-1")
    check_refused("--skip is 'x'", "grade", folder, *out, "--skip", "x", code=2)
    check_refused("no such file", "grade", folder, *out, "--judge", tmp_path / "absent.yaml")
    assert run("grade", "--help").code == 0
