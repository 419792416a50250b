"""SQLite files: waiting, errors, and transactions that fail."""

import shutil
import sqlite3
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from pathlib import Path

import pytest

from prefill_router.database import (
    Database,
    DownError,
    RowError,
    RunStatement,
    ServedSqliteDatabase,
    SqliteDatabase,
    refuse_newer,
    sqlite as sqlite_module,
    storable,
    storable_count,
)
from prefill_router.database.sqlite import Mode
from prefill_router.errors import CorruptError, StoreError

INSERT = "INSERT INTO names VALUES (?)"


def make(_: Database, run: RunStatement) -> None:
    run("CREATE TABLE IF NOT EXISTS names (name TEXT PRIMARY KEY NOT NULL)")


def open_served(path: Path, *, busy_seconds: float = 5.0) -> ServedSqliteDatabase:
    return ServedSqliteDatabase(path, prepare=make, busy_seconds=busy_seconds)


def names(database: Database) -> list[str]:
    return [name for (name,) in database.select("SELECT name FROM names ORDER BY name")]


def add(database: Database, *added: object) -> list[int]:
    return database.change([(INSERT, [name]) for name in added])


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "a ?#%.sqlite"


@pytest.fixture
def database(path: Path) -> Iterator[ServedSqliteDatabase]:
    with closing(open_served(path)) as opened:
        yield opened


def test_statements_take_effect_together_or_not_at_all(database: Database) -> None:
    assert add(database, "a", "b") == [1, 1]
    for rejected in ("a", None, 2**63, object()):
        with pytest.raises((RowError, DownError)):
            add(database, "c", rejected)
    with pytest.raises(DownError, match="no such table: absent"):
        database.change([(INSERT, ["c"]), ("DELETE FROM absent", ())])
    assert names(database) == ["a", "b"]
    assert database.existing(["names", "absent"]) == {"names"}


def test_a_row_that_is_never_taken_is_not_quoted(database: Database) -> None:
    add(database, "secret")
    with pytest.raises(RowError, match=r"rejected a row \(IntegrityError\)") as error:
        add(database, "secret")
    assert "secret" not in str(error.value)


@pytest.mark.parametrize("mode", ["ro", "rw"])
def test_a_file_is_read_while_it_is_written(database: Database, path: Path, mode: Mode) -> None:
    add(database, "a", "b", "c")
    with closing(SqliteDatabase(path, mode=mode, read_only=True)) as reader:
        rows = reader.stream("SELECT name FROM names")
        assert next(rows) == ("a",)
        add(database, "d")
        assert list(rows) == [("b",), ("c",)]
        assert names(reader) == ["a", "b", "c", "d"]
        with pytest.raises(DownError, match="readonly") as error:
            add(reader, "never")
        assert error.value.kind == "SQLITE_READONLY"


def test_writers_wait_for_each_other(path: Path) -> None:
    open_served(path).close()

    def write(writer: int) -> None:
        with closing(open_served(path, busy_seconds=60)) as database:
            for number in range(50):
                add(database, f"{writer}.{number}", f"{writer}.{number}+")

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(write, range(4)))
    with closing(open_served(path)) as database:
        assert len(names(database)) == 400


def test_threads_share_a_connection(database: Database) -> None:
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda n: add(database, f"{n}", f"{n}+"), range(100)))
    assert len(names(database)) == 200


@pytest.mark.parametrize("together", [1, 2])
def test_a_file_that_stays_locked_is_an_error(path: Path, together: int) -> None:
    with (
        closing(open_served(path, busy_seconds=0.05)) as database,
        closing(sqlite3.connect(path, isolation_level=None)) as other,
    ):
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(DownError, match=r"database is locked.* see docs") as error:
            add(database, *"ab"[:together])
        assert error.value.kind == "SQLITE_BUSY"
        other.execute("ROLLBACK")
        assert add(database, *"ab"[:together]) == [1] * together


def test_a_full_disk_leaves_what_was_there(database: Database) -> None:
    add(database, "a")
    ((pages,),) = database.select("PRAGMA page_count")
    database.select(f"PRAGMA max_page_count = {pages + 1}")  # as if the disk had no more
    with pytest.raises(DownError, match="full") as error:
        add(database, "b", "x" * 50_000)
    assert error.value.kind == "SQLITE_FULL"
    assert names(database) == ["a"]
    database.select("PRAGMA max_page_count = 1000000")
    assert add(database, "b", "x" * 50_000) == [1, 1]


def test_a_damaged_file_is_told_with_what_to_do(path: Path) -> None:
    path.write_bytes(b"nonsense" * 1000)
    with pytest.raises(CorruptError, match=r"isn't what was written.*; copy it again"):
        SqliteDatabase(path, prepare=make, repair="copy it again")
    with pytest.raises(DownError, match="ask for help") as error:
        SqliteDatabase(path, prepare=make, advice="ask for help")
    assert error.value.kind == "SQLITE_NOTADB"
    assert path.read_bytes() == b"nonsense" * 1000


@pytest.mark.parametrize("mode", ["ro", "rw"])
def test_a_file_that_is_not_there_is_not_made(path: Path, mode: Mode) -> None:
    with pytest.raises(DownError, match="unable to open"):
        SqliteDatabase(path, mode=mode)
    assert not path.exists()


def test_what_prepares_tables_does_all_or_nothing(path: Path) -> None:
    def refuse(database: Database, run: RunStatement) -> None:
        make(database, run)
        refuse_newer(database.place, "names", 3, newest=2)

    with pytest.raises(StoreError, match=r"names of version 3; a newer .* reads up to 2: upgrade"):
        SqliteDatabase(path, prepare=refuse)
    with closing(SqliteDatabase(path)) as database:
        assert database.existing(["names"]) == set()


def test_a_file_that_was_moved_away_is_made_again(
    database: Database, path: Path, tmp_path: Path
) -> None:
    add(database, "a")
    path.rename(tmp_path / "old")
    add(database, "b")
    assert names(database) == ["b"]
    assert path.stat().st_mode & 0o077 == 0
    with closing(open_served(tmp_path / "old")) as old:
        assert names(old) == ["a"]


def checkpoint_threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name == "checkpoints"]


def test_the_log_is_moved_into_the_file_beside_commits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite_module, "_ROWS", 8)
    path, alone = tmp_path / "a.sqlite", tmp_path / "alone.sqlite"
    with closing(open_served(path)) as database:
        for number in range(40):
            add(database, str(number))
        until = time.monotonic() + 60
        while True:
            shutil.copy(path, alone)  # without the log
            with suppress(StoreError), closing(SqliteDatabase(alone, mode="rw")) as copied:
                if len(names(copied)) >= 32:
                    break
            assert time.monotonic() < until
        assert checkpoint_threads()
    assert not checkpoint_threads()
    with closing(open_served(path)) as database:
        assert len(names(database)) == 40


def test_checkpoints_that_failed_begin_again(tmp_path: Path) -> None:
    with closing(sqlite_module.Checkpoints(tmp_path / "a.sqlite")) as checkpoints:
        checkpoints.count_rows(256)  # there is no file
        while checkpoint_threads():
            time.sleep(0.001)
        assert not (tmp_path / "a.sqlite").exists()
        with closing(open_served(tmp_path / "a.sqlite")):
            checkpoints.count_rows(256)
            assert checkpoint_threads()
            checkpoints.close()


def test_a_log_that_is_long_begins_anew(
    database: Database, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    statements = list[str]()
    with closing(sqlite3.connect(path)) as beside:
        beside.set_trace_callback(statements.append)
        for most in (10_000, 4):
            monkeypatch.setattr(sqlite_module, "_MOST_PAGES", most)
            add(database, *(f"{most}.{n}" * 500 for n in range(20)))
            sqlite_module._write_checkpoint(beside)
    passive, restart = (f"PRAGMA wal_checkpoint({mode})" for mode in ("PASSIVE", "RESTART"))
    assert statements == [passive, passive, restart]


def test_the_log_stays_short_while_rows_are_written_all_the_time(
    database: Database, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite_module, "_ROWS", 8)
    monkeypatch.setattr(sqlite_module, "_MOST_PAGES", 64)

    def read_restarts() -> int:  # times, https://sqlite.org/fileformat.html#the_write_ahead_log
        return int.from_bytes(path.with_name(f"{path.name}-wal").read_bytes()[12:16])

    add(database, "0")
    first, number = read_restarts(), 0
    while read_restarts() < first + 3:
        number += 1
        assert number < 20_000
        add(database, str(number))
    assert len(names(database)) == number + 1


def test_values_that_no_database_holds_are_changed() -> None:
    assert [storable(text) for text in ("a\0", "é", "\ud83d!")] == ["a\0", "é", "?!"]
    assert [storable_count(n) for n in (None, 2**63 - 1, 2**63, -5)] == [None, 2**63 - 1, None, -5]


def test_where_there_is_no_log_a_transaction_waits_for_readers(path: Path) -> None:
    with closing(sqlite3.connect(path)) as plain:
        plain.execute("CREATE TABLE names (name TEXT PRIMARY KEY NOT NULL)")
    with closing(SqliteDatabase(path, mode="rw", busy_seconds=5.0)) as database:
        with closing(sqlite3.connect(path, isolation_level=None)) as reader:
            reader.execute("BEGIN")
            reader.execute("SELECT * FROM names").fetchall()
            with ThreadPoolExecutor(1) as executor:
                adding = executor.submit(add, database, "a", "b")
                time.sleep(0.3)
                assert not adding.done()
                reader.execute("COMMIT")
                assert adding.result() == [1, 1]
        assert names(database) == ["a", "b"]


def test_a_served_file_that_comes_back_is_opened_again(path: Path) -> None:
    folder = path.parent / "mounted"
    folder.mkdir()
    with closing(open_served(folder / "names.sqlite")) as database:
        add(database, "a")
        folder.rename(path.parent / "away")
        folder.write_text("in its place")
        with pytest.raises(DownError):
            add(database, "b")
        folder.unlink()
        (path.parent / "away").rename(folder)
        add(database, "c")
        assert names(database) == ["a", "c"]
