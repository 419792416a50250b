"""A run on disk: it gives back what was put in, only grows, and says what is wrong with it."""

from __future__ import annotations

import contextlib
import json
import math
import sqlite3
import threading
import zlib
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from hypothesis import given, settings, strategies as st

from packages.lab.tests.collection.runs import make_run, pool_of, rows, tasks
from packages.router.tests.commands import truncate
from prefill_router.data import Message, Query
from prefill_router.endpoints import Reply, Usage
from prefill_router.errors import (
    ConfigError,
    CorruptError,
    DataError,
    FormatError,
    PrefillRouterError,
    PromptError,
    StoreError,
)
from prefill_router.runs import Answer, Attempt, Run, Task, run as run_module
from prefill_router.runs.run import Retry, checksum
from prefill_router.targets import Pool, Target
from prefill_router_lab.collection import job
from prefill_router_lab.collection.journal import Journal

pytestmark = pytest.mark.slow

POOL = Pool((Target(name="b"), Target(name="a")))
FULL = Answer(
    target="a",
    query_id="q0",
    reply=Reply(
        text="42\u0000 \ud83d \U0001f600 é",
        reasoning="because " * 5000,
        finish_reason="stop",
        served_by="a-2026",
        usage=Usage(
            input_tokens=10**30, cached_tokens=1, output_tokens=-5, reasoning_tokens=0, reported={}
        ),
        first_token_seconds=0.25,
        first_answer_seconds=0.5,
        seconds=1.0,
        response={"id": "x", "choices": [{"delta": None}]},
    ),
    request={"body": {"model": "a", "max_tokens": 7}},
    attempts=(
        Attempt(began="2026-11-01T00:00:00", seconds=0.1, failure="overloaded", detail="503"),
        Attempt(began="2026-11-01T00:00:01", seconds=1.0, cost=0.5, at_risk=0.25),
    ),
    prices={"input_price": 1.0},
    cost=0.5,
    cost_source="usage",
    note="odd",
)


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Run]:
    with Run.create(tmp_path / "run", POOL, options={"limit": 1.0}) as new_run:
        with Journal(new_run) as journal:
            journal.add_tasks(tasks(3))
        yield new_run


def record(run: Run, *new_answers: Answer) -> None:
    errors: list[StoreError | None] = []
    with Journal(run) as journal:
        for answer in new_answers:
            journal.record(answer, errors.append)
    assert errors == [None] * len(new_answers)


def of(target: str, query_id: str, text: str | None, reason: str | None = None) -> Answer:
    reply = None if text is None else Reply(text=text)
    return Answer(target=target, query_id=query_id, reply=reply, missing=reason, cost=0.5)


def test_an_answer_comes_back_word_for_word(run: Run) -> None:
    record(run, FULL)
    assert list(run.answers()) == [FULL]
    narrow = rows(run.folder, "SELECT input_tokens, cached_tokens, output_tokens FROM answers")
    assert narrow == [(None, 1, -5)]  # the first is larger than a column takes
    assert run.attempts_total == 2
    assert (run.spent, run.at_risk) == (0.5, 0.25)
    assert FULL.charged == 0.75


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=8,
)


@given(st.text(), st.text(), st.dictionaries(st.text(), JSON), st.booleans())
@settings(max_examples=60, deadline=None)
def test_any_answer_and_task_come_back(text: str, other: str, plain: dict, long: bool) -> None:
    reply = Reply(text=text * (2000 if long else 1), reasoning=other, response=plain)
    answer = Answer(target="a", query_id="q", reply=reply, request=plain, note=other)
    stored = run_module.pack_text(run_module.answer_text(answer))
    assert run_module.answer_from_text(run_module.unpack_text(stored)) == answer
    query = Query("q", (Message("system", text), Message("user", other)), "b", "d")
    task = Task(query=query, grader="exact", answer=(text, other), options=plain)
    assert run_module.task_from_texts(*run_module.task_texts(task)) == task


def test_numbers_that_json_lacks_are_told_by_name(run: Run) -> None:
    odd = {"cost": math.nan, "list": [math.inf, 1]}
    record(run, Answer(target="a", query_id="q1", reply=Reply(text="", response=odd)))
    reply = next(run.answers()).reply
    assert reply is not None
    assert reply.response == {"cost": "nan", "list": ["inf", 1]}


def test_the_latest_answer_counts_and_they_come_task_by_task(run: Run) -> None:
    record(
        run,
        of("a", "q1", None, "overloaded"),
        of("a", "q0", "first"),
        of("b", "q1", "b1"),
        of("a", "q1", "late"),
        of("gone", "q1", "not in the pool any more"),
    )
    found = [(a.query_id, a.target, a.reply and a.reply.text) for a in run.answers()]
    assert found[0] == ("q0", "a", "first")
    assert found[1:3] == [("q1", "b", "b1"), ("q1", "a", "late")]
    assert [a.target for a in run.answers(targets=["b"])] == ["b"]
    assert run.spent == 2.5  # the call that failed was paid for too
    with pytest.raises(ConfigError, match="unknown targets"):
        list(run.answers(targets=["nobody"]))


def test_the_view_of_the_latest_answers(run: Run) -> None:
    superseded = (
        of("a", "q1", None, "overloaded"),
        of("a", "q0", "first"),
        of("a", "q1", None, "x"),
    )
    record(run, *superseded, of("b", "q1", "b1"), of("a", "q1", "late"))
    query = "SELECT target, query_id, missing FROM latest ORDER BY seq"
    latest = [("a", "q0", None), ("b", "q1", None), ("a", "q1", None)]
    assert rows(run.folder, query) == latest
    assert rows(run.folder, "SELECT COUNT(*) FROM answers") == [(5,)]
    database = sqlite3.connect(run.folder / "run.sqlite")
    database.execute("DROP VIEW latest")  # as in a run that was made before there was one
    database.close()
    with Run.open(run.folder) as old:
        assert len(list(old.answers())) == 3
    with Journal(run):
        assert rows(run.folder, query) == latest


@pytest.mark.parametrize(
    ("retry", "left"),
    [("failed", {"q1"}), ("all", {"q1", "q2"}), ("none", set())],
)
def test_what_needs_no_asking(run: Run, retry: Retry, left: set[str]) -> None:
    new_answers = (
        of("a", "q0", "x"),
        of("a", "q1", None, "overloaded"),
        of("a", "q2", None, "refused"),
    )
    record(run, *new_answers)
    finished = run.finished(retry=retry)
    assert finished == {("a", t.query.id) for t in tasks(3) if t.query.id not in left}


def test_tasks_come_back_in_order(run: Run) -> None:
    more = Task(
        query=Query("zz", (Message("user", "hi"),), "bench", "dom"),
        grader="code",
        answer=("a", "b"),
        options={"tests": [{"input": "x" * 10_000, "output": "é"}]},
    )
    with Journal(run) as journal:
        assert journal.add_tasks([more, *tasks(2)]) == ["zz", "q0", "q1"]
    assert list(run.tasks()) == [*tasks(3), more]
    assert len(run) == 4
    assert run.task("zz") == more
    assert list(run.queries(["zz", "q1", "zz"])) == [more.query, tasks(2)[1].query, more.query]
    with pytest.raises(DataError, match="no task 'nope'"):
        run.task("nope")
    with pytest.raises(DataError, match="no task 'nope'"):
        list(run.queries(["q0", "nope"]))


def test_tasks_that_contradict_are_refused(run: Run) -> None:
    other = Task(query=Query("q1", "Something else?"), grader="exact")
    regraded = Task(query=tasks(2)[1].query, grader="number", answer=("1",))
    with Journal(run) as journal:
        for changed in (other, regraded):
            with pytest.raises(ConfigError, match="task 'q1' differs"):
                journal.add_tasks([changed])
        with pytest.raises(DataError, match="two tasks have the id 'q1'"):
            journal.add_tasks([*tasks(2), tasks(2)[1]])
        with pytest.raises(ConfigError, match="no tasks"):
            journal.add_tasks([])
        with pytest.raises(DataError, match="without an encoding"):
            journal.add_tasks([Task(query=Query("\ud83d", "?"), grader="exact")])
        with pytest.raises(PromptError, match="without an encoding"):
            journal.add_tasks([Task(query=Query("q", "\ud83d"), grader="exact")])
    assert list(run.tasks()) == tasks(3)


@pytest.mark.parametrize("table", ["tasks", "answers", "records", "exposure"])
def test_rows_are_never_changed(run: Run, table: str) -> None:
    record(run, FULL)
    with Journal(run) as journal:
        journal.expose(1.0, lambda _: None)
    database = sqlite3.connect(run.folder / "run.sqlite")
    column = {"tasks": "body", "answers": "cost", "records": "body", "exposure": "dollars"}[table]
    for change in (f"UPDATE {table} SET {column} = 0", f"DELETE FROM {table}"):
        with pytest.raises(sqlite3.IntegrityError, match="only grows"):
            database.execute(change)
    database.close()
    assert list(run.answers()) == [FULL]


def test_what_a_killed_session_may_owe_is_at_risk(run: Run) -> None:
    for changes in ((1.0, 4.0, -3.0), (3.0, -3.0)):
        with Journal(run) as journal:
            for change in changes:
                journal.expose(change, lambda _: None)
    assert run.at_risk == 2.0  # the last of each session


def test_what_an_answer_was_charged_is_exposed_no_longer(run: Run) -> None:
    with Journal(run) as journal:
        journal.expose(2.0, lambda _: None)
        journal.record(FULL, lambda _: None)
    assert FULL.charged == 0.75
    assert run.spent + run.at_risk == 2.0
    record(run, FULL)  # of a call that wasn't exposed
    assert run.spent + run.at_risk == 2.0 + FULL.charged


def test_one_process_at_a_time(run: Run) -> None:
    with Journal(run), pytest.raises(ConfigError, match="another process"):
        Journal(run).__enter__()
    record(run, FULL)


def test_many_threads_may_add_and_read(run: Run) -> None:
    with Journal(run) as journal:

        def add(target: str) -> None:
            for number in range(50):
                journal.record(of(target, f"q{number % 3}", str(number)), lambda _: None)
                list(run.outcomes())

        threads = [threading.Thread(target=add, args=(name,)) for name in ("a", "b")]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert rows(run.folder, "SELECT COUNT(*) FROM answers") == [(100,)]
    assert len(list(run.answers())) == 6


def test_a_run_is_made_only_where_nothing_is(run: Run, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="is a run already"):
        Run.create(run.folder, POOL)
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "thesis.txt").touch()
    with pytest.raises(ConfigError, match=r"holds 'thesis.txt'"):
        Run.create(tmp_path / "other", POOL)
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match="is a file"):
        Run.create(tmp_path / "file", POOL)
    for missing in (tmp_path / "nowhere", tmp_path / "file", tmp_path / "other"):
        with pytest.raises(FormatError, match="no run"):
            Run.open(missing)


def test_a_run_that_another_process_has_just_made_is_gone_on_with(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pool = pool_of("http://127.0.0.1:9")

    def made_after_the_look(folder: Path) -> bool:
        Run.create(folder, pool).close()
        return False

    monkeypatch.setattr(job, "is_run", made_after_the_look)
    make_run(tmp_path / "run", pool, 1)
    with Run.open(tmp_path / "run") as run:
        assert len(run.finished()) == 2


def test_what_was_killed_at_the_start_is_gone_on_with(run: Run) -> None:
    (run.folder / "run.json").unlink()
    assert len(Run.create(run.folder, POOL)) == 3


def test_manifest_that_was_changed(run: Run) -> None:
    path = run.folder / "run.json"
    manifest = json.loads(path.read_text())
    path.write_text(json.dumps({**manifest, "format": 2}))
    with pytest.raises(FormatError, match="format 2"):
        Run.open(run.folder)
    for broken in ("", "[]", "{}", json.dumps({**manifest, "format": "1"})):
        path.write_text(broken)
        with pytest.raises((CorruptError, FormatError)):
            Run.open(run.folder)


def spoil_database(run: Run) -> sqlite3.Connection:
    run.close()
    database = sqlite3.connect(run.folder / "run.sqlite", isolation_level=None)
    database.execute("DROP TRIGGER records_UPDATE")
    database.execute("DROP TRIGGER tasks_UPDATE")
    return database


def spoil(run: Run, statement: str) -> None:
    with closing(spoil_database(run)) as database:
        database.execute(statement)


def test_database_of_a_newer_version(run: Run) -> None:
    spoil(run, "PRAGMA user_version = 2")
    with pytest.raises(FormatError, match="format 2"):
        Run.open(run.folder)


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE records SET body = replace(body, 'x', 'y')",
        "UPDATE records SET body = x'00'",
        "UPDATE records SET checksum = 5",
    ],
)
def test_changed_record(run: Run, statement: str) -> None:
    record(run, of("a", "q0", "xyz"))
    spoil(run, statement)
    with Run.open(run.folder) as again, pytest.raises(CorruptError, match="record 1"):
        list(again.answers())


def store_value(run: Run, column: str, value: object) -> None:
    """Put a value in the place of a record or a task, in the right format."""
    table, name = column.split(".")
    with closing(spoil_database(run)) as database:
        database.execute(f"UPDATE {table} SET {name} = ?", [value])
        if table == "records" and isinstance(value, str | bytes):
            database.execute("UPDATE records SET checksum = ?", [checksum(value)])


DEEP = "[" * 10**5 + "]" * 10**5
HOSTILE = {
    "nested": DEEP,
    "nested and compressed": zlib.compress(DEEP.encode()),
    "much that was compressed": zlib.compress(b" " * 10**6),
    "a number": 5,
    "a list": "[]",
}


@pytest.mark.parametrize("value", HOSTILE.values(), ids=HOSTILE)
@pytest.mark.parametrize("column", ["records.body", "tasks.body", "tasks.options"])
def test_a_strangers_record_is_refused(
    run: Run, column: str, value: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_module, "MOST_BYTES", 10**6 - 1)
    record(run, of("a", "q0", "xyz"))
    store_value(run, column, value)
    with Run.open(run.folder) as again, pytest.raises(CorruptError, match="copy the run again"):
        list(again.answers() if column == "records.body" else again.tasks())


def test_changed_task(run: Run) -> None:
    spoil(run, "UPDATE tasks SET body = '{}'")
    with Run.open(run.folder) as again, pytest.raises(CorruptError, match="a task in"):
        list(again.tasks())


def test_damaged_database(run: Run) -> None:
    record(run, *(of("a", f"q{i % 3}", "x" * 3000) for i in range(200)))
    run.close()
    path = run.folder / "run.sqlite"
    whole = path.read_bytes()

    def read() -> None:
        with Run.open(run.folder) as again:
            list(again.answers())
            list(again.tasks())

    read()
    truncate(path)
    with pytest.raises(CorruptError, match="copy the run again"):
        read()
    for content in (b"", b"SQLite format 3\0", b"x" * 5000, b"\0" * len(whole)):
        path.write_bytes(content)
        with pytest.raises(CorruptError, match="copy the run again"):
            read()
    path.unlink()
    with pytest.raises(CorruptError, match=r"lacks the file run.sqlite"):
        read()
    for place in range(0, len(whole), len(whole) // 40):  # each break is reported
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 0x55]) + whole[place + 1 :])
        with contextlib.suppress(PrefillRouterError):
            read()
