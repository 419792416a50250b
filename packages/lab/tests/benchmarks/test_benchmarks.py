"""The three benchmarks, from local copies of their files."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from packages.lab.tests.benchmarks.task_files import (
    CANARY,
    STARTER,
    hle_rows,
    mmlu_rows,
    pack_tests,
    problem,
    write_hle,
    write_lines,
    write_livecodebench,
    write_mmlu_pro,
    write_table,
)
from prefill_router.errors import ConfigError, FormatError
from prefill_router.importers import import_dataset
from prefill_router.runs import Task
from prefill_router_lab.benchmarks import BENCHMARKS, LoadReport, load_tasks

WRITERS: dict[str, Callable[[Path], Path]] = {
    "mmlu_pro": write_mmlu_pro,
    "hle": write_hle,
    "livecodebench": write_livecodebench,
}


def tasks(spec: str, report: LoadReport | None = None) -> list[Task]:
    return list(load_tasks(spec, report=report))


@pytest.mark.parametrize("name", BENCHMARKS)
def test_every_benchmark_gives_whole_tasks_one_by_one(name: str, tmp_path: Path) -> None:
    folder, report = WRITERS[name](tmp_path), LoadReport()
    reading = load_tasks(f"{name}={folder}", report=report)
    assert report.source == ""
    first = next(reading)
    assert report.source == str(folder)
    all_tasks = [first, *reading]
    assert len({task.query.id for task in all_tasks}) == len(all_tasks)
    for task in all_tasks:
        assert task.query.id.startswith(f"{name}-")
        assert task.query.benchmark == name
        assert task.query.domain
        assert isinstance(task.query.prompt, str)
        assert task.answer or task.options["tests"]
        assert json.loads(json.dumps(dict(task.options))) == task.options
    assert [t.query.id for t in tasks(f"{name}={folder}")] == [t.query.id for t in all_tasks]


def test_mmlu_pro(tmp_path: Path) -> None:
    task = tasks(f"mmlu_pro={write_mmlu_pro(tmp_path)}")[1]
    assert task.query.id == "mmlu_pro-71"
    assert task.query.domain == "law"
    assert task.grader == "mmlu_pro"
    assert task.answer == ("B",)
    assert task.options == {"choices": ["it is 0", "it is 1", "it is 2", "it is 3"]}  # no N/A
    assert "about law" in str(task.query.prompt)
    assert "The answer is (X)" in str(task.query.prompt)
    assert str(task.query.prompt).endswith(
        "Question: Which is number 1?\nOptions:\nA. it is 0\nB. it is 1\nC. it is 2\n"
        "D. it is 3\nAnswer:"
    )


def test_mmlu_pro_has_the_ids_and_domains_of_its_importer(tmp_path: Path) -> None:
    rows = [{**row, "pred": "A"} for row in mmlu_rows()]
    scores = tmp_path / "model_outputs_some_5shots.json"
    scores.write_text(json.dumps(rows))
    imported = import_dataset("mmlu_pro", [scores]).dataset.queries
    loaded = [task.query for task in tasks(f"mmlu_pro={write_mmlu_pro(tmp_path / 'copy')}")]
    assert [(q.id, q.benchmark, q.domain) for q in loaded] == [
        (q.id, q.benchmark, q.domain) for q in imported
    ]


@pytest.mark.parametrize("shots", [1, 5])
def test_mmlu_pro_with_solved_questions_of_the_same_subject(shots: int, tmp_path: Path) -> None:
    folder = write_mmlu_pro(tmp_path)
    (bare, *_), (task, *_) = tasks(f"mmlu_pro={folder}"), tasks(f"mmlu_pro={folder},shots={shots}")
    prompt = str(task.query.prompt)
    assert prompt.count("Question: ") == prompt.count("Answer:") == shots + 1
    assert prompt.endswith(str(bare.query.prompt).split("\n\n")[1])
    assert "Let's see 0. The answer is (A)." in prompt
    assert "Let's see 1." not in prompt  # a question of law
    assert "A: Let's" not in prompt
    assert task.query.id == bare.query.id


def test_mmlu_pro_from_one_file_with_its_validation_part_beside_it(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "mine.jsonl", mmlu_rows())
    assert len(tasks(f"mmlu_pro={path}")) == 12
    with pytest.raises(FormatError, match=r"mine\.jsonl: holds no file named validation"):
        tasks(f"mmlu_pro={path},shots=1")
    write_lines(tmp_path / "validation.jsonl", mmlu_rows(solved=True))
    assert "Let's see" in str(tasks(f"mmlu_pro={path},shots=1")[0].query.prompt)
    (tmp_path / "list.json").write_text(json.dumps(mmlu_rows()))
    assert tasks(f"mmlu_pro={tmp_path / 'list.json'}") == tasks(f"mmlu_pro={path}")


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"answer": "K"}, "answer must be a letter from A to C"),
        ({"answer": "AB"}, "answer must be a letter from A to C"),
        ({"answer": None}, "answer is missing; it must be text"),
        ({"answer_index": 2}, "answer is A, but answer_index is 2; they must agree"),
        ({"options": []}, "options must be a list of 1 to 26 texts"),
        ({"options": [1]}, "an option is of the type int; it must be text"),
        ({"question": ""}, "question is empty"),
        ({"question_id": None}, "question_id is missing; it must be text"),
    ],
)
def test_malformed_row_of_mmlu_pro(change: dict[str, Any], reason: str, tmp_path: Path) -> None:
    rows = mmlu_rows()
    path = write_lines(tmp_path / "test.jsonl", [rows[1], {**rows[0], **change}])
    reading = load_tasks(f"mmlu_pro={path}")
    assert next(reading).query.id == "mmlu_pro-71"
    with pytest.raises(FormatError) as caught:
        next(reading)
    assert str(caught.value) == f"{path}:2: {reason}"


def test_too_few_solved_questions(tmp_path: Path) -> None:
    folder = write_mmlu_pro(tmp_path)
    solved = folder / "data" / "validation-00000-of-00001.parquet"
    write_table(solved, mmlu_rows(solved=True)[:4])
    with pytest.raises(FormatError, match=r"parquet:1: asks for 3 solved questions about physics"):
        tasks(f"mmlu_pro={folder},shots=3")


def test_hle_leaves_out_questions_with_images_and_counts_them(tmp_path: Path) -> None:
    report = LoadReport()
    questions = tasks(f"hle={write_hle(tmp_path)}", report)
    assert [task.query.id for task in questions] == ["hle-66e0", "hle-66e2"]
    assert report.skipped == {"has an image, and prompts are text": 1}
    assert questions[0].grader == "hle"
    assert questions[0].answer == ("thing 0",)
    assert questions[0].query.domain == "Other"
    assert questions[0].options == {
        "question": "What is the 0th thing?",
        "answer_type": "exactMatch",
        "raw_subject": "Things",
        "canary": CANARY,
    }
    prompt = str(questions[0].query.prompt)
    assert prompt.startswith("What is the 0th thing?\n\n")
    assert prompt.index("Explanation:") < prompt.index("Answer:") < prompt.index("Confidence:")
    assert "because" not in prompt
    assert "thing 0" not in prompt


@pytest.mark.parametrize("image", [{"bytes": b"x", "path": None}, {"bytes": None, "path": "a.png"}])
def test_hle_with_images_as_objects(image: dict[str, Any], tmp_path: Path) -> None:
    rows = hle_rows()
    none = {"bytes": None, "path": None}
    path = tmp_path / "test.parquet"
    write_table(path, [{**rows[0], "image": none}, {**rows[1], "image": image}])
    assert [task.query.id for task in tasks(f"hle={path}")] == ["hle-66e0"]


def test_hle_of_images_alone_holds_no_tasks(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "test.jsonl", hle_rows()[1:2])
    with pytest.raises(FormatError, match=r"holds no tasks.*1 left out: has an image"):
        tasks(f"hle={path}")


def test_livecodebench_by_standard_input_and_by_function(tmp_path: Path) -> None:
    first, _, third, _ = tasks(f"livecodebench={write_livecodebench(tmp_path)}")
    assert first.query.id == "livecodebench-abc1_a"
    assert first.grader == "code"
    assert first.query.domain == "atcoder"
    assert first.options == {
        "tests": [
            {"input": "1 2", "output": "3", "type": "stdin"},
            {"input": "1 5", "output": "6", "type": "stdin"},
            {"input": "-1 1", "output": "0", "type": "stdin"},
        ],
        "function": None,
        "starter_code": "",
        "difficulty": "easy",
        "contest_date": "2024-08-01",
    }
    assert "standard input" in str(first.query.prompt)
    assert "Sum 1\n\nAdd the two numbers." in str(first.query.prompt)
    assert third.options["function"] == "add"
    assert third.options["tests"][0] == {"input": "1\n2", "output": "3", "type": "functional"}
    assert STARTER.rstrip() in str(third.query.prompt)
    for task in (first, third):
        assert "```python" in str(task.query.prompt)
        assert "1 5" not in str(task.query.prompt)  # a private test


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ("", [1, 2, 3, 4]),
        (",release=release_v1", [1, 2]),
        (",release=release_v3", [1, 2, 3, 4]),
        (",release=v2", [3]),
        (",release=v2_v3", [3, 4]),
        (",from=2024-08-31,to=2024-09-01", [2, 3]),
        (",to=2024-08-01", [1]),
        (",from=2024-09-01,release=release_v2", [3]),
    ],
)
def test_releases_and_dates_of_livecodebench(
    options: str, expected: list[int], tmp_path: Path
) -> None:
    report = LoadReport()
    questions = tasks(f"livecodebench={write_livecodebench(tmp_path)}{options}", report)
    assert [task.query.id for task in questions] == [f"livecodebench-abc{n}_a" for n in expected]
    assert bool(report.skipped) == ("from" in options or "to=" in options)


def test_private_tests_outside_the_dates_are_not_even_decoded(tmp_path: Path) -> None:
    late = {**problem(2, day="2025-01-01"), "private_test_cases": "broken"}
    path = write_lines(tmp_path / "test.jsonl", [problem(1), late])
    report = LoadReport()
    assert len(tasks(f"livecodebench={path},to=2024-12-31", report)) == 1
    assert report.skipped == {"of a contest outside the given dates": 1}
    with pytest.raises(FormatError, match=r"test\.jsonl:2: private_test_cases is neither JSON"):
        tasks(f"livecodebench={path}")


def test_livecodebench_as_a_table(tmp_path: Path) -> None:
    path = write_table(tmp_path / "test.parquet", [problem(1), problem(2)])
    lines = write_lines(tmp_path / "test.jsonl", [problem(1), problem(2)])
    assert tasks(f"livecodebench={path}") == tasks(f"livecodebench={lines}")


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"contest_date": "soon"}, "contest_date isn't a date"),
        ({"metadata": "{"}, "metadata isn't JSON"),
        ({"metadata": "{}"}, "metadata: func_name is missing"),
        ({"public_test_cases": "[", "private_test_cases": "[]"}, "public_test_cases isn't JSON"),
        ({"public_test_cases": "[]", "private_test_cases": pack_tests([])}, "has no tests"),
        ({"public_test_cases": '[{"input": 1}]'}, "public_test_cases: input is of the type int"),
        ({"public_test_cases": "[7]"}, "public_test_cases: a test is a int"),
        (
            {"public_test_cases": '[{"input": "1", "output": "2", "testtype": "odd"}]'},
            "public_test_cases: a test's testtype must be stdin or functional",
        ),
        (
            {"public_test_cases": '[{"input": "1", "output": "2", "testtype": "stdin"}]'},
            "has tests of a program and of a function at once",
        ),
        ({"public_test_cases": None}, "public_test_cases is of the type NoneType"),
    ],
)
def test_malformed_problem(change: dict[str, Any], reason: str, tmp_path: Path) -> None:
    row = {**problem(1, functional=True), **change}
    path = write_lines(tmp_path / "test.jsonl", [row])
    with pytest.raises(FormatError) as caught:
        tasks(f"livecodebench={path}")
    assert str(caught.value).startswith(f"{path}:1: {reason}")


def test_row_that_lacks_a_field(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "test.jsonl", [{"question_id": 1}])
    with pytest.raises(FormatError, match=r"test\.jsonl:1: lacks \['question', 'options'"):
        tasks(f"mmlu_pro={path}")
    table = write_table(tmp_path / "test.parquet", [{"question_id": 1}])
    with pytest.raises(FormatError, match=r"test\.parquet:1: lacks the columns \['question'"):
        tasks(f"mmlu_pro={table}")


def test_repeated_id(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "test.jsonl", [*mmlu_rows(), mmlu_rows()[3]])
    with pytest.raises(FormatError, match=r"jsonl:13: the id 'mmlu_pro-73' is used at .*jsonl:4"):
        tasks(f"mmlu_pro={path}")


@pytest.mark.parametrize(
    ("spec", "reason"),
    [
        ("mmlu_pro={0},shots=6", "shots is '6'; it must be a whole number from 0 to 5"),
        ("mmlu_pro={0},shots=", "shots has no value"),
        ("mmlu_pro={0},shots=1,shots=2", "shots is repeated"),
        ("mmlu_pro,shoots=5", "mmlu_pro has no option 'shoots=5'; it has revision, shots"),
        ("mmlu_pro=", "mmlu_pro= has no file or folder after it"),
        ("mmlu_pro={0},revision=main", "is a local copy and has no revisions"),
        ("livecodebench={0},release=v7", "there is no release 'v7'"),
        ("livecodebench={0},release=v3_v2", "ends before it begins"),
        ("livecodebench={0},from=01.08.2024", "from is '01.08.2024'; write a day like"),
        ("livecodebench={0},to=2024-13-01", "to is '2024-13-01'; write a day like"),
        ("livecodebench={0},from=2024-02-01,to=2024-01-01", "from 2024-02-01 is after to"),
        ("livecodebench={0}/test.jsonl,release=v1", "is one file, which has no releases"),
        (" ", "no tasks were named"),
        ("\0", "no tasks were named"),
    ],
)
def test_specification_that_makes_no_sense_is_refused_at_once(
    spec: str, reason: str, tmp_path: Path
) -> None:
    folder = write_livecodebench(write_mmlu_pro(tmp_path))
    with pytest.raises(ConfigError) as caught:
        load_tasks(spec.format(folder))
    assert reason in str(caught.value)


@pytest.mark.parametrize(
    ("spec", "reason"),
    [
        ("hle={0}/nothing", "nothing: no such file or folder"),
        ("nothing", "nothing: no such file; tasks are a file, or one of mmlu_pro, hle"),
        ("hle={0},shots=5", ",shots=5: no such file or folder"),
        ("hle={0}", "holds no file named test*.parquet or test*.jsonl or test*.json"),
        ("livecodebench={0}", "holds no file named test.jsonl or test2.jsonl"),
        ("livecodebench={0},release=v1", "holds no file named test.jsonl"),
        ("hle={0}/notes.txt", "notes.txt: can't hold tasks"),
    ],
)
def test_copy_that_is_not_there(spec: str, reason: str, tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("x")
    with pytest.raises(FormatError) as caught:
        tasks(spec.format(tmp_path))
    assert reason in str(caught.value)


def test_release_that_was_asked_for_must_be_whole(tmp_path: Path) -> None:
    with pytest.raises(FormatError, match=r"holds no file named test4\.jsonl"):
        tasks(f"livecodebench={write_livecodebench(tmp_path)},release=release_v5")


def test_folder_with_a_comma_and_an_equals_sign(tmp_path: Path) -> None:
    folder = write_hle(tmp_path / "a,b=c")
    assert len(tasks(f"hle={folder}")) == 2
