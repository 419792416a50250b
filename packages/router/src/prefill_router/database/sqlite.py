"""SQLite files: opened, waited for and closed in one way.

A commit must wait as briefly as it can, so statements wait for transactions of other processes by
themselves: SQLite's own waits are of 1 ms and more. A thread of `Checkpoints` moves the write-ahead
log of a file that a server writes into it: SQLite's own checkpoint is part of the commit that makes
the log long enough, and one in 250 receipts took 5 ms, not 0.05.
"""

import os
import sqlite3
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, suppress
from pathlib import Path
from threading import Event, Thread
from typing import Any, Literal, final
from urllib.parse import quote

from prefill_router.database.base import (
    ADVICE,
    Database,
    DownError,
    Prepare,
    RowError,
    Statement,
    T,
    fetch_rows,
)
from prefill_router.errors import CorruptError, StoreError, refer

Mode = Literal["ro", "ro&immutable=1", "rw", "rwc"]
"""How SQLite opens a file; `rwc` creates it where there is none."""
_RETRY_SECONDS = 2e-4
_NO_WAIT = "PRAGMA busy_timeout = 0"  # `_run_when_free` waits
_ROW_ERRORS = (sqlite3.IntegrityError, sqlite3.DataError, sqlite3.InterfaceError, OverflowError)
_DAMAGE_CODES = ("SQLITE_CORRUPT", "SQLITE_NOTADB")


class SqliteDatabase(Database):
    """An SQLite file; other processes may read and write it at the same time.

    Args:
        path: The file.
        mode: How to open it.
        pragmas: Pragmas to set first.
        prepare: Makes or checks its tables.
        read_only: Whether it is only read.
        busy_seconds: How long a transaction waits for those of other processes.
        repair: What to do where it is damaged; empty if that is an error like any other.
        advice: What to do where it can't be used.

    Raises:
        CorruptError: It isn't what was written.
        DownError: It can't be used.
    """

    dialect = "sqlite"
    tables_query = "SELECT name FROM sqlite_master WHERE type = 'table' AND name IN ({})"

    def __init__(
        self,
        path: Path,
        *,
        mode: Mode = "rwc",
        pragmas: Sequence[str] = (),
        prepare: Prepare | None = None,
        read_only: bool = False,
        busy_seconds: float = 60.0,
        repair: str = "",
        advice: str = ADVICE,
    ) -> None:
        super().__init__()
        self.path, self.place = path, str(path)
        self._url = f"file:{quote(str(path.absolute()))}?mode={mode}"
        self._pragmas, self._prepare, self._read_only = pragmas, prepare, read_only
        self._busy_seconds, self._repair, self._advice = busy_seconds, repair, advice
        self._connection = self._open_connection()

    def stream(self, query: str, values: Sequence[Any] = ()) -> Iterator[Any]:
        """The rows of a query, one by one, for one thread.

        Args:
            query: The query, in SQL.
            values: The values of its `?`.

        Raises:
            StoreError: The file can't be read now; see `Database`.
        """
        try:
            # not `yield from`, which would close the cursor even after the file was closed
            for row in self._run_when_free(query, values):  # noqa: UP028
                yield row
        except sqlite3.Error as error:
            raise self._make_error(error) from None

    def empty_log(self) -> bool:
        """Empty the log; see `Database.empty_log`. It can't be done while another process reads."""
        self.select(f"PRAGMA busy_timeout = {round(1000 * self._busy_seconds)}")
        ((is_busy, _, _),) = self.select("PRAGMA wal_checkpoint(TRUNCATE)")
        self.select(_NO_WAIT)
        return not is_busy

    def close(self) -> None:
        """Close the file."""
        with self._turn:
            self._connection.close()

    def _run(self, statements: Sequence[Statement], read: Callable[[Any], T]) -> list[T]:
        try:
            with self._turn:
                if len(statements) == 1:
                    return [read(self._run_when_free(*statements[0]))]
                return self._run_together(statements, read)
        except (sqlite3.Error, OverflowError) as error:
            raise self._make_error(error) from None

    def _run_together(self, statements: Sequence[Statement], read: Callable[[Any], T]) -> list[T]:
        run = self._connection.execute
        self._run_when_free("BEGIN IMMEDIATE")
        try:
            results = [read(run(*statement)) for statement in statements]
            self._run_when_free("COMMIT")  # which waits for readers where there is no log
        finally:
            if self._connection.in_transaction:
                run("ROLLBACK")
        return results

    def _run_when_free(self, statement: str, values: Sequence[Any] = ()) -> sqlite3.Cursor:
        """Run a statement that begins or ends a transaction, once other processes allow it."""
        until = time.monotonic() + self._busy_seconds
        while True:
            try:
                return self._connection.execute(statement, values)
            except sqlite3.OperationalError as error:
                is_busy = error.sqlite_errorcode & 0xFF == sqlite3.SQLITE_BUSY
                if not is_busy or time.monotonic() > until:
                    raise
            time.sleep(_RETRY_SECONDS)

    def _open_connection(self) -> sqlite3.Connection:
        with ExitStack() as undo:
            try:
                connection = sqlite3.connect(
                    self._url,
                    uri=True,
                    timeout=self._busy_seconds,
                    isolation_level=None,
                    check_same_thread=False,
                )
                undo.callback(connection.close)
                self._set_up(connection)
            except sqlite3.Error as error:
                raise self._make_error(error) from None
            undo.pop_all()
        return connection

    def _set_up(self, connection: sqlite3.Connection) -> None:
        run = connection.execute
        for pragma in self._pragmas:
            run(pragma)
        if self._read_only:
            run("PRAGMA query_only = ON")
        if self._prepare is not None:
            run("BEGIN" if self._read_only else "BEGIN IMMEDIATE")
            self._prepare(self, lambda statement: fetch_rows(run(statement)))
            run("COMMIT")
        run(_NO_WAIT)

    def _make_error(self, error: sqlite3.Error | OverflowError) -> StoreError:
        if isinstance(error, _ROW_ERRORS):
            return RowError(f"{self.place} rejected a row ({type(error).__name__})")
        kind = getattr(error, "sqlite_errorname", None) or type(error).__name__
        if self._repair and kind.startswith(_DAMAGE_CODES):
            return CorruptError(f"{self.place} isn't what was written ({error}); {self._repair}")
        return DownError(
            f"{self.place} can't be used now: {error} ({kind}); {self._advice}", kind=kind
        )


_ROWS = 256
"""The rows after which there is a checkpoint."""
_MOST_PAGES = 8192
"""The pages of the log from which on writers wait until it begins again, which it does by itself
only if nothing was written during a checkpoint."""
_CHECKPOINT_SECONDS = 0.1
"""How long they may wait for readers then; the next attempt is after as many rows again."""


@final
class Checkpoints:
    """The checkpoints of one connection's commits.

    The thread begins when it is first needed, and again if it couldn't go on.

    Args:
        path: The file, absolute.
    """

    def __init__(self, path: Path) -> None:
        self._url, self._rows = f"{path.as_uri()}?mode=rw", 0
        self._due, self._has_ended = Event(), False
        self._thread: Thread | None = None

    def count_rows(self, rows: int) -> None:
        """Count rows that were written."""
        self._rows += rows
        if self._rows < _ROWS:
            return
        self._rows = 0
        self._due.set()
        if self._thread is None or not self._thread.is_alive():
            self._thread = Thread(target=self._run, name="checkpoints", daemon=True)
            self._thread.start()

    def close(self) -> None:
        """End the thread, and with it its connection."""
        self._has_ended = True
        self._due.set()
        if self._thread is not None:
            self._thread.join()

    def _run(self) -> None:
        with (
            suppress(sqlite3.Error),  # the log grows until the thread begins again
            closing(
                sqlite3.connect(self._url, timeout=_CHECKPOINT_SECONDS, uri=True)
            ) as connection,
        ):
            while self._due.wait() and not self._has_ended:
                self._due.clear()
                _write_checkpoint(connection)


def _write_checkpoint(connection: sqlite3.Connection) -> None:
    with suppress(sqlite3.OperationalError):  # such as a full disk, where the next may succeed
        ((_, pages, _),) = connection.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchall()
        if pages > _MOST_PAGES:
            connection.execute("PRAGMA wal_checkpoint(RESTART)").fetchall()


_SERVER_PRAGMAS = (
    "PRAGMA journal_mode = WAL",
    "PRAGMA synchronous = NORMAL",
    "PRAGMA wal_autocheckpoint = 0",  # `Checkpoints` does it
    "PRAGMA secure_delete = ON",  # overwrites deleted prompts
)


@final
class ServedSqliteDatabase(SqliteDatabase):
    """An SQLite file that a server writes as long as it lives.

    It is readable by its owner alone. Where it was moved away, a new one is made, since nobody
    would find the new rows.

    The journal is a write-ahead log that is synchronised only at checkpoints: if the process is
    killed, nothing that was committed is lost. If the machine loses power, the last commits may be
    lost, but the file stays intact
    (https://sqlite.org/pragma.html#pragma_synchronous).

    Args:
        path: The file.
        prepare: Makes or checks its tables.
        busy_seconds: How long a transaction waits for those of other processes.

    Raises:
        DownError: It can't be made or used.
    """

    _file: tuple[int, int] | None

    def __init__(self, path: Path, *, prepare: Prepare, busy_seconds: float) -> None:
        super().__init__(
            path.absolute(),
            mode="rw",
            pragmas=_SERVER_PRAGMAS,
            prepare=prepare,
            busy_seconds=busy_seconds,
        )

    def change(self, statements: Sequence[Statement]) -> list[int]:
        """Run statements, all or none; see `Database.change`."""
        if _read_identity(self.path) != self._file:
            with suppress(StoreError, sqlite3.Error):
                self.empty_log()  # moves the rest of the log into the old file
            self._file = None  # so that it is opened again, should that fail now
            self.close()
            self._connection = self._open_connection()
        changed = super().change(statements)
        self._checkpoints.count_rows(sum(changed))
        return changed

    def close(self) -> None:
        """Close the file."""
        self._checkpoints.close()
        super().close()

    def _open_connection(self) -> sqlite3.Connection:
        _make_private(self.path)
        connection = super()._open_connection()
        self._checkpoints, self._file = Checkpoints(self.path), _read_identity(self.path)
        return connection


def _make_private(path: Path) -> None:
    """Make the file if there is none, readable by its owner alone, as its log will be."""
    if path.is_file():  # closing it would end the locks of this process's connections
        return
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        os.close(os.open(path, os.O_CREAT | os.O_RDWR, 0o600))
    except OSError as error:
        raise DownError(
            f"{path} can't be opened for writing: {error.strerror}; name another file, "
            f"or {refer('receipts-cant-be-written')}",
            kind="file can't be opened",
        ) from None


def _read_identity(path: Path) -> tuple[int, int] | None:
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_dev, status.st_ino


def refusals(tables: Sequence[str], why: str) -> list[str]:
    """Statements that make triggers, unless they exist: they refuse to change or delete rows."""
    return [
        f"CREATE TRIGGER IF NOT EXISTS {table}_{what} BEFORE {what} ON {table} "
        f"BEGIN SELECT RAISE(ABORT, '{why}'); END"
        for table in tables
        for what in ("UPDATE", "DELETE")
    ]
