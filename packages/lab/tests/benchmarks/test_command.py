"""The command that writes tasks."""

import json
from pathlib import Path

import pytest

from packages.lab.tests.benchmarks.task_files import (
    write_hle,
    write_lines,
    write_livecodebench,
    write_mmlu_pro,
)
from packages.router.tests.commands import check_refused, run_ok
from prefill_router_lab.benchmarks import load_tasks


def test_tasks_of_a_benchmark_to_a_file_that_gives_the_same_tasks(tmp_path: Path) -> None:
    folder, out = write_livecodebench(tmp_path / "copy"), tmp_path / "tasks.jsonl"
    output = run_ok("tasks", f"livecodebench={folder},from=2024-08-31", "--out", out)
    assert f"{out}: 3 tasks of {folder}; graders: 3 code" in output
    assert "1 left out: of a contest outside the given dates" in output
    written = list(load_tasks(str(out)))
    expected = list(load_tasks(f"livecodebench={folder},from=2024-08-31"))
    assert written == expected
    assert [task.options for task in written] == [task.options for task in expected]


def test_sample_as_json(tmp_path: Path) -> None:
    folder, out = write_mmlu_pro(tmp_path / "copy"), tmp_path / "tasks.jsonl"
    draw = ("tasks", f"mmlu_pro={folder}", "--sample", 5, "--seed", 3, "--out", out, "--json")
    output = json.loads(run_ok(*draw))
    first = out.read_bytes()
    assert output == {
        "out": str(out),
        "source": str(folder),
        "tasks": 5,
        "graders": {"mmlu_pro": 5},
        "skipped": {},
    }
    assert len(first.splitlines()) == 5
    run_ok(*draw)
    assert out.read_bytes() == first


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (("nothing.jsonl", "--out", "{0}/o.jsonl"), "no such file; tasks are a file, or one of"),
        (("{0}/bad.jsonl", "--out", "{0}/o.jsonl"), r"bad\.jsonl:1: lacks an answer"),
        (("hle={0}", "--out", "{0}/o.jsonl", "--revision", "x"), "has no revisions"),
        (("hle={0}", "--out", "{0}/o.jsonl", "--sample", "0"), "--sample is 0"),
        (("hle={0}", "--out", "{0}/o.csv"), r"--out is .*such as o\.jsonl"),
        (("hle={0}", "--out", "{0}/bad.jsonl/o.jsonl"), "is a file; name another place"),
        (("hle={0}", "--out", "{0}/data.jsonl"), "data.jsonl"),
    ],
)
def test_refused(arguments: tuple[str, ...], reason: str, tmp_path: Path) -> None:
    write_hle(tmp_path)
    write_lines(tmp_path / "bad.jsonl", [{"prompt": "of difficulty"}])
    (tmp_path / "data.jsonl").mkdir()
    before = sorted(tmp_path.rglob("*"))
    of_the_line_alone = reason.startswith("--")
    filled = (part.format(tmp_path) for part in arguments)
    check_refused(reason, "tasks", *filled, code=2 if of_the_line_alone else 1)
    assert sorted(tmp_path.rglob("*")) == before
