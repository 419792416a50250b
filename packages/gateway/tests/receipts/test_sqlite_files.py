"""Where receipts are kept: which URLs are refused, and the file of SQLite."""

import shutil
import sqlite3
import subprocess
import sys
import threading
import time
from contextlib import closing, suppress
from pathlib import Path

import pytest

from packages.gateway.tests.receipts.receipts_made import made_receipt, name_of
from prefill_router.database import sqlite as sqlite_module
from prefill_router.errors import ConfigError, StoreError
from prefill_router_gateway.receipts import insert_rows, open_store, read_receipts
from prefill_router_gateway.receipts.rows import to_row


@pytest.mark.parametrize(
    "url", ["mysql://here/db", "http://s3cret@here", "sqlite:///", "sqlite://x"]
)
def test_urls_that_are_none(url: str) -> None:
    with pytest.raises(ConfigError, match="URL") as caught:
        open_store(url)
    assert "s3cret" not in str(caught.value)


def test_a_file_that_is_no_database_is_told(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("these are no receipts" * 100)
    for create in (True, False):
        with pytest.raises(StoreError, match=r"notes\.txt"):
            open_store(f"sqlite:///{tmp_path}/notes.txt", create=create)
    assert (tmp_path / "notes.txt").read_text().startswith("these")


def test_what_cannot_be_a_file_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for wrong in (tmp_path, tmp_path / "file" / "a.sqlite"):
        with pytest.raises(StoreError, match="can't be opened for writing"):
            open_store(str(wrong))


def test_receipts_are_for_their_owner_alone(tmp_path: Path) -> None:
    with closing(open_store(f"{tmp_path}/a.sqlite")) as store:
        insert_rows(store, [to_row(made_receipt(1))], [])
    assert (tmp_path / "a.sqlite").stat().st_mode & 0o077 == 0


def test_a_file_that_was_moved_away_is_begun_again(tmp_path: Path) -> None:
    with closing(open_store(f"{tmp_path}/a.sqlite")) as store:
        insert_rows(store, [to_row(made_receipt(1))], [])
        (tmp_path / "a.sqlite").rename(tmp_path / "old.sqlite")
        insert_rows(store, [to_row(made_receipt(2))], [])
    assert [r.choice.id for r in read_receipts(f"{tmp_path}/a.sqlite")] == [name_of(2)]
    assert [r.choice.id for r in read_receipts(f"{tmp_path}/old.sqlite")] == [name_of(1)]


def test_a_second_connection_of_the_process_keeps_the_first_ones_locks(tmp_path: Path) -> None:
    """Another process that closes the file last would otherwise remove the journal in use."""
    url = f"{tmp_path}/a.sqlite"
    reads = (
        "import sys; from prefill_router_gateway.receipts import read_receipts; "
        "print(sum(1 for _ in read_receipts(sys.argv[1])))"
    )

    def elsewhere() -> int:
        line = [sys.executable, "-c", reads, url]
        return int(subprocess.run(line, capture_output=True, check=True, text=True).stdout)

    with closing(open_store(url)) as store:
        insert_rows(store, [to_row(made_receipt(1))], [])
        open_store(url).close()
        assert elsewhere() == 1
        insert_rows(store, [to_row(made_receipt(2))], [])
        assert elsewhere() == 2


def test_the_log_is_moved_into_the_file_beside_commits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite_module, "_ROWS", 8)
    path, alone = tmp_path / "a.sqlite", tmp_path / "alone.sqlite"
    with closing(open_store(str(path))) as store:
        for number in range(40):
            insert_rows(store, [to_row(made_receipt(number))], [])
        until = time.monotonic() + 60
        while True:
            shutil.copy(path, alone)  # without the log
            with suppress(StoreError):
                if sum(1 for _ in read_receipts(str(alone))) >= 32:
                    break
            assert time.monotonic() < until
        assert "checkpoints" in {thread.name for thread in threading.enumerate()}
    assert "checkpoints" not in {thread.name for thread in threading.enumerate()}
    assert sum(1 for _ in read_receipts(str(path))) == 40


def test_checkpoints_that_failed_begin_again(tmp_path: Path) -> None:
    with closing(sqlite_module.Checkpoints(tmp_path / "a.sqlite")) as checkpoints:
        checkpoints.committed(256)  # there is no file
        while "checkpoints" in {thread.name for thread in threading.enumerate()}:
            time.sleep(0.001)
        assert not (tmp_path / "a.sqlite").exists()
        with closing(open_store(f"{tmp_path}/a.sqlite")):
            checkpoints.committed(256)
            assert "checkpoints" in {thread.name for thread in threading.enumerate()}
            checkpoints.close()


def test_a_log_that_is_long_begins_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, told = tmp_path / "a.sqlite", list[str]()
    with closing(open_store(str(path))) as store, closing(sqlite3.connect(path)) as beside:
        beside.set_trace_callback(told.append)
        for most in (10_000, 4):
            monkeypatch.setattr(sqlite_module, "_MOST_PAGES", most)
            insert_rows(store, [to_row(made_receipt(n)) for n in range(20)], [])
            store.change([("DELETE FROM receipts", ())])
            sqlite_module._checkpoint(beside)
    passive, restart = (f"PRAGMA wal_checkpoint({mode})" for mode in ("PASSIVE", "RESTART"))
    assert told == [passive, passive, restart]


def test_the_log_stays_short_while_rows_are_written_all_the_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite_module, "_ROWS", 8)
    monkeypatch.setattr(sqlite_module, "_MOST_PAGES", 64)

    def begun() -> int:  # times, https://sqlite.org/fileformat.html#the_write_ahead_log
        return int.from_bytes((tmp_path / "a.sqlite-wal").read_bytes()[12:16])

    with closing(open_store(f"{tmp_path}/a.sqlite")) as store:
        insert_rows(store, [to_row(made_receipt(0))], [])
        first, number = begun(), 0
        while begun() < first + 3:
            number += 1
            assert number < 20_000
            insert_rows(store, [to_row(made_receipt(number))], [])
    assert sum(1 for _ in read_receipts(f"{tmp_path}/a.sqlite")) == number + 1
