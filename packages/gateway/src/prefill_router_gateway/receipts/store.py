"""The database of receipts: its tables, what is done with any database, and SQLite.

An answer waits for its receipt, so a commit to an SQLite file must wait as briefly as it can.
`run_when_free` waits for transactions of other processes, since SQLite's own waits are of 1 ms and
more. A thread of `Checkpoints` moves the write-ahead log into the file: SQLite's own checkpoint is
part of the commit that makes the log long enough, and one in 250 receipts took 5 ms, not 0.05.
"""

import json
import os
import sqlite3
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, closing, suppress
from functools import cache
from operator import attrgetter
from pathlib import Path
from threading import Event, Thread
from types import MappingProxyType
from typing import Any, ClassVar, TypeVar, final

from prefill_router.errors import ConfigError, StoreError, refer, upgrade_advice
from prefill_router_gateway.receipts.rows import COLUMNS, FEEDBACK_COLUMNS, Kind, ReceiptColumn, Row

VERSION = 2
"""The version of the tables; a gateway upgrades earlier ones when it starts."""
RECEIPTS, FEEDBACK, SCHEMA = "receipts", "receipt_feedback", "receipts_schema"
COLUMNS_OF: Mapping[str, tuple[ReceiptColumn, ...]] = {
    RECEIPTS: COLUMNS,
    FEEDBACK: FEEDBACK_COLUMNS,
}
_UPGRADES: Mapping[int, tuple[str, ...]] = {
    1: (f"ALTER TABLE {RECEIPTS} ADD COLUMN baseline TEXT",),
}
"""The statements that make tables of an earlier version those of the next."""
_IDENTITY: Mapping[str, str] = {RECEIPTS: "id", FEEDBACK: "id, source, at"}
_TOGETHER = 64
"""Rows per INSERT: each SQLite statement releases the GIL and must wait to get it back. It is far
below the limit of 32,766 values per statement."""
Statement = tuple[str, Sequence[Any]]
T = TypeVar("T")


@final
class DownError(StoreError):
    """The database can't be reached or written now; a retry may succeed later.

    Attributes:
        kind: The reason, in a word or two.
    """

    def __init__(self, message: str, *, kind: str) -> None:
        super().__init__(message)
        self.kind = kind


@final
class RowError(StoreError):
    """The database rejects rows, and always will."""


class Store(ABC):
    """A database of receipts, used by one thread at a time.

    Attributes:
        place: Its location, without a password.
    """

    types: ClassVar[Mapping[Kind, str]]
    """The database's column types."""
    tables_query: ClassVar[str]
    """The query for the names of the tables that exist, given a list of some."""
    lock_tables: ClassVar[tuple[str, ...]] = ()
    """Statements that keep other processes from making tables until the transaction ends."""
    json_number: ClassVar[str]
    """The number at a key of a JSON object in the column `{}`; its `?` is a `json_key`."""
    cache_number: ClassVar[str]
    """In receipts, one of the numbers that the details have of the cache of target `{}`: 0 or 1."""
    place: str

    def insert(self, receipts: Sequence[Row], feedback: Sequence[Row]) -> None:
        """Insert rows, all or none; existing rows stay unchanged.

        Args:
            receipts: Rows of receipts.
            feedback: Rows of scores.

        Raises:
            DownError: It can't be written now.
            RowError: It rejects one of these rows.
        """
        self.change(
            [
                (_insert(table, len(part)), [value for row in part for value in row])
                for table, rows in ((RECEIPTS, receipts), (FEEDBACK, feedback))
                for part in (rows[i : i + _TOGETHER] for i in range(0, len(rows), _TOGETHER))
            ]
        )

    def change(self, statements: Sequence[Statement]) -> list[int]:
        """Run statements, all or none, and return how many rows each changed.

        Args:
            statements: The statements, each with the values of its `?`.

        Raises:
            DownError: It can't be written now.
        """
        return self._run(statements, attrgetter("rowcount"))

    def select(self, query: str, values: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        """The rows of a query, given the values of its `?`.

        Raises:
            DownError: It can't be read now.
        """
        (rows,) = self._run([(query, values)], _rows)
        return rows

    def json_key(self, name: str) -> str:
        """A key of a JSON object, as `json_number` takes it."""
        return name

    def erase(self) -> bool:
        """Overwrite what was deleted in the journal, too; returns whether it could be done now.

        A database server does so by itself, in time.
        """
        return True

    @abstractmethod
    def close(self) -> None:
        """Close the connection."""

    @abstractmethod
    def _run(self, statements: Sequence[Statement], read: Callable[[Any], T]) -> list[T]:
        """Run statements, all or none, and apply `read` to the cursor of each."""

    def existing(self, tables: Sequence[str]) -> set[str]:
        """Those of these tables that exist."""
        return {name for (name,) in self.select(self._tables_query(tables))}

    def make_table(self, name: str, columns: Sequence[ReceiptColumn], *, identity: str) -> None:
        """Make a further table, with an index over time, unless it exists.

        Args:
            name: Its name.
            columns: Its columns, `at` among them.
            identity: The columns of its primary key.

        Raises:
            DownError: It can't be made now.
        """
        if not self.existing([name]):
            self.change(
                [
                    *((statement, ()) for statement in self.lock_tables),
                    (_create_table(name, columns, identity, self.types), ()),
                    (f"CREATE INDEX IF NOT EXISTS {name}_at ON {name} (at)", ()),
                ]
            )

    def _tables_query(self, tables: Sequence[str]) -> str:
        return self.tables_query.format(", ".join(map("'{}'".format, tables)))

    def _prepare(self, run: Callable[[str], Any], *, create: bool) -> None:
        """Make the tables if there are none, or check those that exist.

        Args:
            run: Runs a statement and returns its cursor.
            create: Whether tables may be made.

        Raises:
            StoreError: There are none and they may not be made, or they have another version that
                can't be upgraded.
        """
        ours = (RECEIPTS, FEEDBACK, SCHEMA)
        found = {name for (name,) in _rows(run(self._tables_query(ours)))}
        if not found:
            if not create:
                raise StoreError(
                    f"{self.place} has no receipts; name the database that the gateway writes"
                )
            for statement in _create(self.types):
                run(statement)
        elif found != set(ours):
            raise StoreError(
                f"{self.place} has only {sorted(found)} of the gateway's tables, so another "
                "program seems to use it; name another database"
            )
        ((version,),) = _rows(run(f"SELECT max(version) FROM {SCHEMA}"))
        if version != VERSION:
            self._upgrade(run, version, create=create)

    def _upgrade(self, run: Callable[[str], Any], version: int, *, create: bool) -> None:
        """Bring tables of an earlier version to this one; raises as `_prepare`."""
        has = f"{self.place} has receipts of version {version}"
        if version > VERSION:
            raise StoreError(f"{has}; {upgrade_advice(VERSION)}")
        if not create:
            raise StoreError(
                f"{has}; this package reads version {VERSION}: start the gateway on it once, "
                "prefill-router serve, which upgrades it and keeps all receipts"
            )
        for step in range(version, VERSION):
            for statement in _UPGRADES[step]:
                run(statement)
        run(f"UPDATE {SCHEMA} SET version = {VERSION}")


def _rows(cursor: Any) -> list[tuple[Any, ...]]:
    found: list[tuple[Any, ...]] = cursor.fetchall()
    return found


def _create(types: Mapping[Kind, str]) -> list[str]:
    """The statements that make the tables, with the database's column types."""
    return [
        *(_create_table(t, c, _IDENTITY[t], types) for t, c in COLUMNS_OF.items()),
        f"CREATE TABLE {SCHEMA} (version {types['integer']} NOT NULL)",
        f"INSERT INTO {SCHEMA} VALUES ({VERSION})",
        f"CREATE INDEX {RECEIPTS}_at ON {RECEIPTS} (at, id)",
        f"CREATE INDEX {FEEDBACK}_at ON {FEEDBACK} (at)",
    ]


def _create_table(
    name: str, columns: Sequence[ReceiptColumn], identity: str, types: Mapping[Kind, str]
) -> str:
    listed = ", ".join(
        f"{c.name} {types[c.kind]}{'' if c.optional else ' NOT NULL'}" for c in columns
    )
    return f"CREATE TABLE IF NOT EXISTS {name} ({listed}, PRIMARY KEY ({identity}))"


@cache
def _insert(table: str, rows: int) -> str:
    """The statement that inserts rows and skips those that exist."""
    columns = COLUMNS_OF[table]
    names, marks = ", ".join(c.name for c in columns), ", ".join("?" * len(columns))
    return (
        f"INSERT INTO {table} ({names}) VALUES {', '.join([f'({marks})'] * rows)} "
        f"ON CONFLICT ({_IDENTITY[table]}) DO NOTHING"
    )


BUSY_SECONDS = 5.0
"""How long a transaction waits for those of other processes."""
_AGAIN_SECONDS = 2e-4
_ROWS = 256
"""The rows after which there is a checkpoint."""
_MOST_PAGES = 8192
"""The pages of the log from which on writers wait until it begins anew, which it does by itself
only if nothing was written during a checkpoint."""
_CHECKPOINT_SECONDS = 0.1
"""How long they may wait for readers then; the next attempt is after as many rows again."""


def run_when_free(
    connection: sqlite3.Connection, statement: str, values: Sequence[Any] = ()
) -> sqlite3.Cursor:
    """Run the first statement of a transaction once no other process writes.

    Raises:
        sqlite3.Error: It is refused, or was locked for `BUSY_SECONDS`.
    """
    until = time.monotonic() + BUSY_SECONDS
    while True:
        try:
            return connection.execute(statement, values)
        except sqlite3.OperationalError as error:
            is_busy = error.sqlite_errorcode & 0xFF == sqlite3.SQLITE_BUSY
            if not is_busy or time.monotonic() > until:
                raise
        time.sleep(_AGAIN_SECONDS)


@final
class Checkpoints:
    """The checkpoints of one connection's commits.

    The thread begins when it is first needed, and again if it couldn't go on.

    Args:
        path: The file, absolute.
    """

    def __init__(self, path: Path) -> None:
        self._url, self._rows = f"{path.as_uri()}?mode=rw", 0
        self._due, self._ended = Event(), False
        self._thread: Thread | None = None

    def committed(self, rows: int) -> None:
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
        self._ended = True
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
            while self._due.wait() and not self._ended:
                self._due.clear()
                _checkpoint(connection)


def _checkpoint(connection: sqlite3.Connection) -> None:
    with suppress(sqlite3.OperationalError):  # such as a full disk, where the next may succeed
        ((_, pages, _),) = connection.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchall()
        if pages > _MOST_PAGES:
            connection.execute("PRAGMA wal_checkpoint(RESTART)").fetchall()


_NO_WAIT = "PRAGMA busy_timeout = 0"
"""`run_when_free` waits."""


@final
class SqliteStore(Store):
    """An SQLite file; other processes may read it at the same time.

    The journal is a write-ahead log that is synchronised only at checkpoints: if the process is
    killed, nothing that was committed is lost. If the machine loses power, the last commits may be
    lost, but the file stays intact
    (https://sqlite.org/pragma.html#pragma_synchronous).
    """

    types = MappingProxyType({"text": "TEXT", "real": "REAL", "integer": "INTEGER"})
    tables_query = "SELECT name FROM sqlite_master WHERE type = 'table' AND name IN ({})"
    json_number = "CAST(json_extract({}, ?) AS REAL)"
    cache_number = "CAST(json_extract(details, '$.cache.' || json_quote({}) || '[{}]') AS REAL)"

    def __init__(self, path: Path, *, create: bool = True) -> None:
        self._path, self._create = path.absolute(), create
        self.place = str(self._path)
        self._connection, self._checkpoints = self._open(), Checkpoints(self._path)
        self._file = _identity(self._path)

    def change(self, statements: Sequence[Statement]) -> list[int]:
        """Run statements, all or none; see `Store.change`.

        If the file was moved away, a new one is made, since nobody would find the new rows.
        """
        if _identity(self._path) != self._file:
            with suppress(StoreError, sqlite3.Error):
                self.erase()  # moves the rest of the log into the old file
            self.close()
            self._connection, self._checkpoints = self._open(), Checkpoints(self._path)
            self._file = _identity(self._path)
        changed = super().change(statements)
        self._checkpoints.committed(sum(changed))
        return changed

    def json_key(self, name: str) -> str:
        """A key as a path, escaped as in the columns."""
        return f"$.{json.dumps(name)}"

    def erase(self) -> bool:
        """Empty the journal; see `Store.erase`. It can't be done while another process reads."""
        self.select(f"PRAGMA busy_timeout = {round(1000 * BUSY_SECONDS)}")
        ((busy, _, _),) = self.select("PRAGMA wal_checkpoint(TRUNCATE)")
        self.select(_NO_WAIT)
        return not busy

    def close(self) -> None:
        """Close the file."""
        self._checkpoints.close()
        self._connection.close()

    def _run(self, statements: Sequence[Statement], read: Callable[[Any], T]) -> list[T]:
        run = self._connection.execute
        try:
            if len(statements) == 1:
                return [read(run_when_free(self._connection, *statements[0]))]
            run_when_free(self._connection, "BEGIN IMMEDIATE")
            found = [read(run(*one)) for one in statements]
            run("COMMIT")
        except (sqlite3.Error, OverflowError) as error:
            if self._connection.in_transaction:
                run("ROLLBACK")
            raise self._failure(error) from None
        return found

    def _open(self) -> sqlite3.Connection:
        if self._create:
            self._make()
        elif not self._path.is_file():
            raise StoreError(f"{self._path} doesn't exist; name the file that the gateway writes")
        with ExitStack() as undo:
            try:
                connection = sqlite3.connect(
                    self._path, timeout=BUSY_SECONDS, isolation_level=None, check_same_thread=False
                )
                undo.callback(connection.close)
                self._set_up(connection)
            except sqlite3.Error as error:
                raise self._failure(error) from None
            undo.pop_all()
        return connection

    def _make(self) -> None:
        """Make the file if there is none, readable by its owner alone, as its journal will be."""
        if self._path.is_file():  # closing it would end the locks of this process's connections
            return
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            os.close(os.open(self._path, os.O_CREAT | os.O_RDWR, 0o600))
        except OSError as error:
            raise DownError(
                f"{self._path} can't be opened for writing: {error.strerror}; name another file, "
                f"or {refer('receipts-cant-be-written')}",
                kind="file can't be opened",
            ) from None

    def _set_up(self, connection: sqlite3.Connection) -> None:
        run = connection.execute
        if self._create:
            run("PRAGMA journal_mode = WAL")
            run("PRAGMA synchronous = NORMAL")
            run("PRAGMA wal_autocheckpoint = 0")  # `Checkpoints` does it
            run("PRAGMA secure_delete = ON")  # overwrites deleted prompts
            run("BEGIN IMMEDIATE")
        else:
            run("PRAGMA query_only = ON")
        self._prepare(run, create=self._create)
        if self._create:
            run("COMMIT")
        run(_NO_WAIT)

    def _failure(self, error: sqlite3.Error | OverflowError) -> StoreError:
        never = (sqlite3.IntegrityError, sqlite3.DataError, sqlite3.InterfaceError, OverflowError)
        if isinstance(error, never):
            return RowError(f"{self._path} rejected a row ({type(error).__name__})")
        name = str(getattr(error, "sqlite_errorname", type(error).__name__))
        return DownError(
            f"{self._path} can't be used as a database of receipts now: {error} ({name}); "
            + refer("the-database-is-locked-or-away"),
            kind=name,
        )


def _identity(path: Path) -> tuple[int, int] | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino


_SQLITE = "sqlite:///"
_POSTGRES = ("postgresql://", "postgres://")


def open_store(url: str, *, create: bool = True) -> Store:
    """Open a database of receipts.

    Args:
        url: `sqlite:///FILE`, `postgresql://...`, or the path of an SQLite file.
        create: Whether to make its tables if there are none; otherwise it is only read.

    Raises:
        ConfigError: The URL is none of these.
        MissingExtraError: PostgreSQL needs the extra `postgres`.
        StoreError: It can't be reached or made, or has other tables.
    """
    if url.startswith(_POSTGRES):
        from prefill_router_gateway.receipts.postgres import PostgresStore

        return PostgresStore(url, create=create)
    if "://" in url and not url.startswith(_SQLITE):
        raise ConfigError(
            "the receipts' URL must begin with sqlite:/// or postgresql://, or be an SQLite file"
        )
    file = file_of(url)
    if file is None:
        raise ConfigError("the receipts' URL names no file; write sqlite:///FILE")
    return SqliteStore(file, create=create)


def file_of(url: str) -> Path | None:
    """The SQLite file that a URL names; None where it names none."""
    name = url.removeprefix(_SQLITE).partition("?")[0]
    return None if not name or url.startswith(_POSTGRES) else Path(name)
