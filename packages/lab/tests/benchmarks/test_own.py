"""A user's own questions: what they may hold, what is refused, and how they are written."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st

from packages.lab.tests.benchmarks.task_files import write_lines, write_table
from prefill_router.data import Message, Query, prompt_key
from prefill_router.errors import ConfigError, DataError, FormatError
from prefill_router.grading import GRADERS
from prefill_router.runs import Task
from prefill_router_lab.benchmarks import (
    LoadReport,
    load_tasks,
    sample_tasks,
    source,
    write_tasks,
)

GOOD = {"prompt": "Why?", "answer": "because"}
CODE_TEST = {"input": "1", "output": "2", "type": "stdin"}
LEAST_FIELDS: dict[str, dict[str, Any]] = {
    "mmlu_pro": {"answer": "(c)"},
    "number": {"answer": "1,234"},
    "judge": {"rubric": "Be kind."},
    "code": {"tests": [CODE_TEST], "answer": None},
    "python": {"function": "mine.py:grade", "answer": None},
}


def tasks(path: Path) -> list[Task]:
    return list(load_tasks(str(path)))


def load_row(path: Path, row: dict[str, Any]) -> Task:
    (task,) = tasks(write_lines(path / "tasks.jsonl", [row]))
    return task


def test_least_that_a_row_needs(tmp_path: Path) -> None:
    report = LoadReport()
    path = write_lines(tmp_path / "tasks.jsonl", [GOOD])
    (task,) = load_tasks(str(path), report=report)
    query = Query(f"q-{prompt_key('Why?')[:12]}", "Why?")
    assert task == Task(query=query, grader="exact", answer=("because",))
    assert task.options == {}
    assert report.source == str(path)


def test_everything_that_a_row_can_have(tmp_path: Path) -> None:
    turns = [{"role": "system", "content": "Short."}, {"role": "user", "content": "2 + 2?"}]
    row = {
        "id": 7,
        "messages": turns,
        "prompt": "unused where there are messages",
        "answer": [4, 4.0, "4e0"],
        "grader": "number",
        "domain": "sums",
        "benchmark": "mine",
        "tolerance": 0.01,
        "nested": {"a": [1, None]},
    }
    task = load_row(tmp_path, row)
    prompt = (Message("system", "Short."), Message("user", "2 + 2?"))
    assert task.query == Query("7", prompt, "mine", "sums")
    assert task.answer == ("4", "4.0", "4e0")
    assert task.grader == "number"
    assert task.options == {"tolerance": 0.01, "nested": {"a": [1, None]}}


@pytest.mark.parametrize("grader", GRADERS)
def test_every_grader_can_be_named(grader: str, tmp_path: Path) -> None:
    task = load_row(tmp_path, {**GOOD, "grader": grader, **LEAST_FIELDS.get(grader, {})})
    assert task.grader == grader


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"prompt": None}, "has neither a prompt nor messages"),
        ({"prompt": " "}, "prompt is empty"),
        ({"prompt": 3}, "prompt is of the type int; it must be text"),
        ({"prompt": "\ud800"}, "isn't valid UTF-8"),
        ({"messages": "hi"}, "messages must be a list of {role, content}"),
        ({"messages": []}, "messages is a list; it must hold one or more"),
        ({"messages": [{"role": "user"}]}, "messages: a content is missing"),
        ({"answer": None}, "lacks an answer, with which the grader exact compares"),
        ({"answer": []}, "lacks an answer, with which the grader exact compares"),
        ({"answer": ""}, "answer is empty"),
        ({"answer": True}, "answer is true or false; write it as the text"),
        ({"answer": {"a": 1}}, "answer is of the type dict"),
        ({"answer": 10**40}, "answer is a number of more than 30 digits"),
        ({"grader": "exakt"}, "grader is 'exakt'; the graders are exact, normalised"),
        ({"grader": 5}, "grader is of the type int"),
        ({"grader": "judge"}, "rubric, by which the grader judge goes, is missing"),
        ({"grader": "code"}, "lacks tests, a list, which the grader code runs"),
        ({"grader": "code", "tests": []}, "lacks tests"),
        ({"grader": "code", "tests": [{"input": 1}]}, "a test must have the texts input and out"),
        ({"grader": "code", "tests": [{**CODE_TEST, "type": "x"}]}, "a test's type must be"),
        ({"grader": "code", "tests": [{**CODE_TEST, "type": "functional"}]}, "name the function"),
        ({"grader": "mmlu_pro"}, "answer must be a letter from A to J"),
        ({"grader": "number"}, "answer is 'because'; the grader number needs a number"),
        ({"grader": "python", "function": 7}, "function must be the name of a function"),
        ({"grader": "number", "answer": 1, "tolerance": -1}, "tolerance must be a number"),
        ({"grader": "number", "answer": 1, "tolerance": "x"}, "tolerance must be a number"),
        ({"id": ""}, "id is empty"),
        ({"id": [1]}, "id is of the type list"),
        ({"domain": 3}, "domain is of the type int"),
        ({"note": "\udfff"}, "'note' isn't a JSON value in UTF-8"),
    ],
)
def test_row_that_makes_no_sense(change: dict[str, Any], reason: str, tmp_path: Path) -> None:
    path = write_lines(tmp_path / "t.jsonl", [{**GOOD, "prompt": "What?"}, {**GOOD, **change}])
    with pytest.raises(FormatError) as caught:
        tasks(path)
    assert str(caught.value).startswith(f"{path}:2: ")
    assert reason in str(caught.value)
    assert caught.value.line == 2


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "holds no tasks"),
        (b"\n \n", "holds no tasks"),
        (b"\xef\xbb\xbf", "holds no tasks"),
        (b'{"prompt": "caf\xe9"}', ":1: isn't UTF-8; save the file as UTF-8"),
        (b'{"prompt": "a", "answer": NaN}', ":1: isn't JSON: NaN is no JSON number"),
        (b'{"prompt": "a", "x": -Infinity}', ":1: isn't JSON: -Infinity is no JSON number"),
        (b'{"prompt": "a", "x": 1e999}', ":1: 'x' isn't a JSON value"),
        (b'{"prompt": "a", "answer": 1e999}', ":1: answer is inf"),
        (b'\n{"prompt": "a"', ":2: isn't JSON: Expecting ',' delimiter at column 15"),
        (b"[" * 200_000, ":1: isn't JSON: "),
        (b'{"x": ' + b"9" * 5000 + b"}", ":1: isn't JSON: "),
        (b'["prompt"]', ":1: is a list; each line must be a JSON object"),
        (b"{} {}", ":1: isn't JSON: Extra data"),
        (b"{}", ":1: has neither a prompt nor messages"),
        (b"\0", ":1: isn't JSON"),
    ],
)
def test_file_that_is_none(content: bytes, reason: str, tmp_path: Path) -> None:
    path = tmp_path / "tasks.jsonl"
    path.write_bytes(content)
    with pytest.raises(FormatError) as caught:
        tasks(path)
    assert reason in str(caught.value)
    assert "caf" not in str(caught.value)


def test_byte_order_mark_and_windows_ends_of_line(tmp_path: Path) -> None:
    path = tmp_path / "tasks.jsonl"
    lines = [json.dumps({**GOOD, "id": n}) for n in range(3)]
    path.write_bytes(b"\xef\xbb\xbf" + "\r\n\r\n".join(lines).encode())
    assert [task.query.id for task in tasks(path)] == ["0", "1", "2"]
    path.write_text('{"prompt": "one\u2028line\u0085", "answer": "a"}')
    assert tasks(path)[0].query.prompt == "one\u2028line\u0085"


def test_line_that_is_too_long(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(source, "MAX_LINE", 100)
    path = write_lines(tmp_path / "t.jsonl", [GOOD, {**GOOD, "prompt": "x" * 90}])
    with pytest.raises(FormatError, match=r"t\.jsonl:2: is a line of more than 100 characters"):
        tasks(path)


def test_repeated_ids_and_repeated_prompts(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "t.jsonl", [{**GOOD, "id": 1}, GOOD, {**GOOD, "id": "1"}])
    with pytest.raises(
        FormatError, match=r"t\.jsonl:3: the id '1' is used at .*t\.jsonl:1 already"
    ):
        tasks(path)
    write_lines(path, [GOOD, {**GOOD, "answer": "since"}])
    with pytest.raises(FormatError, match="gets its id from its prompt"):
        tasks(path)


@pytest.mark.parametrize("name", ["tasks.csv", "tasks.json", "tasks.parquet", "tasks.ndjson"])
def test_other_kinds_of_files(name: str, tmp_path: Path) -> None:
    path = tmp_path / name
    rows = [{"id": "a", "prompt": "1,\n2?", "answer": "3", "domain": None, "grader": "number"}]
    if path.suffix == ".csv":
        path.write_text('id,prompt,answer,domain,tolerance,grader\na,"1,\n2?",3,,0.5,number\n')
    elif path.suffix == ".json":
        path.write_text(json.dumps([{**rows[0], "tolerance": 0.5}]))
    elif path.suffix == ".parquet":
        write_table(path, [{**rows[0], "tolerance": 0.5, "nothing": None}])
    else:
        write_lines(path, [{**rows[0], "tolerance": 0.5}])
    query = Query("a", "1,\n2?")
    expected = Task(query=query, grader="number", answer=("3",), options={"tolerance": 0.5})
    assert tasks(path) == [expected]
    assert tasks(path)[0].options == expected.options


def test_tables_hold_lists_too(tmp_path: Path) -> None:
    turns = [{"role": "user", "content": "hi"}]
    path = write_table(tmp_path / "t.parquet", [{"messages": turns, "answer": ["a", "b"]}])
    (task,) = tasks(path)
    assert task.query.prompt == (Message("user", "hi"),)
    assert task.answer == ("a", "b")
    csv = tmp_path / "t.csv"
    csv.write_text('messages,answer\n"[{""role"": ""user"", ""content"": ""hi""}]",a\n')
    assert tasks(csv)[0].query == task.query
    csv.write_text("prompt,answer,choices\na,b,{\n")
    with pytest.raises(FormatError, match=r"t\.csv:2: choices isn't JSON; in CSV"):
        tasks(csv)


@pytest.mark.parametrize(
    ("name", "reason"),
    [("t.txt", "can't hold tasks"), ("t.pkl", "can't hold tasks"), ("", "is a folder")],
)
def test_file_of_another_kind(name: str, reason: str, tmp_path: Path) -> None:
    path = tmp_path / name
    if name:
        path.write_text("x")
    with pytest.raises(FormatError, match=reason):
        load_tasks(str(path))


def test_file_has_no_revision(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "t.jsonl", [GOOD])
    with pytest.raises(ConfigError, match="has no revision 'main'"):
        load_tasks(str(path), revision="main")


TEXT = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=8).filter(str.strip)
JSON = st.none() | st.booleans() | st.integers(-(2**60), 2**60) | TEXT | st.lists(TEXT, max_size=2)
ROWS = st.lists(
    st.tuples(
        TEXT,
        TEXT | st.lists(st.tuples(TEXT, TEXT), min_size=1, max_size=3),
        TEXT | st.just(""),
        st.lists(TEXT, min_size=1, max_size=3),
        st.dictionaries(TEXT.map("x_{}".format), JSON | st.floats(-1e9, 1e9), max_size=3),
    ),
    min_size=1,
    max_size=4,
    unique_by=lambda row: row[0],
)


@pytest.mark.slow
@settings(deadline=None, max_examples=50)
@given(ROWS)
def test_tasks_come_back_as_they_were_written(
    tmp_path_factory: pytest.TempPathFactory, rows: list[Any]
) -> None:
    written = []
    for name, prompt_value, label, answer, options in rows:
        prompt = (
            prompt_value
            if isinstance(prompt_value, str)
            else tuple(Message(*turn) for turn in prompt_value)
        )
        query = Query(name, prompt, label, label)
        written.append(Task(query=query, grader="math", answer=tuple(answer), options=options))
    path = tmp_path_factory.mktemp("written") / "tasks.jsonl"
    assert write_tasks(iter(written), path) == len(written)
    tasks_again = tasks(path)
    assert tasks_again == written
    assert [task.options for task in tasks_again] == [task.options for task in written]


def test_tasks_are_written_whole_or_not_at_all(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "tasks.jsonl", [GOOD])
    before = path.read_bytes()
    task = tasks(path)[0]
    odd = Task(query=Query("b", "\ud800"), grader="exact")
    for broken, reason in (
        (odd, "a lone surrogate"),
        (
            Task(query=Query("b", "x"), grader="exact", options={"a": {1}}),
            "a value that JSON lacks",
        ),
        (
            Task(query=Query("b", "x"), grader="exact", options={"answer": 1}),
            "names of a task's fields",
        ),
    ):
        with pytest.raises(DataError, match=reason):
            write_tasks([task, broken], path)
        assert path.read_bytes() == before
    assert [entry.name for entry in tmp_path.iterdir()] == ["tasks.jsonl"]
    write_tasks(load_tasks(str(path)), path)  # over what is being read
    assert tasks(path) == [task]


def many(count: int) -> list[Task]:
    return [Task(query=Query(f"{n}", f"{n}?"), grader="exact") for n in range(count)]


def test_sample_keeps_the_order_and_depends_on_seed_and_ids_alone() -> None:
    everything = many(200)
    sample = sample_tasks(everything, 50, seed=1)
    assert len(sample) == 50
    assert sample == [task for task in everything if task in sample]
    again = sample_tasks(list(reversed(everything)), 50, seed=1)
    assert again == list(reversed(sample))
    other = sample_tasks(everything, 50, seed=2)
    assert len({t.query.id for t in sample} & {t.query.id for t in other}) < 30
    assert {t.query.id for t in sample} <= {
        t.query.id for t in sample_tasks(everything, 80, seed=1)
    }
    assert sample_tasks(everything, 500) == everything
    with pytest.raises(ConfigError, match="a sample of 0 tasks"):
        sample_tasks(everything, 0)
