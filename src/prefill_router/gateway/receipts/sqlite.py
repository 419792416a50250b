"""Receipts in a file of SQLite.

The journal is a write-ahead log that is synchronised at its checkpoints alone: a process that is
killed at any moment loses nothing that was committed. If the machine loses its power, the last
commits may be gone, but the file stays whole (https://sqlite.org/pragma.html#pragma_synchronous).
"""

import os
import sqlite3
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any, final

from prefill_router.errors import StoreError
from prefill_router.gateway.receipts.rows import Kind, Row
from prefill_router.gateway.receipts.store import (
    FEEDBACK,
    RECEIPTS,
    SCHEMA,
    DownError,
    RowError,
    Store,
    create_statements,
    insert_statement,
    prepare,
)

_TYPES: Mapping[Kind, str] = {"text": "TEXT", "real": "REAL", "integer": "INTEGER"}
_BUSY_SECONDS = 5.0
_TOGETHER = 64
"""Rows of one statement: each statement gives up the interpreter's lock, and waits to have it back;
the older limit of 32,766 values a statement is far."""


@final
class SqliteStore(Store):
    """A file of SQLite; other processes may read it meanwhile."""

    def __init__(self, path: Path, *, create: bool = True) -> None:
        self._path, self._create = path.absolute(), create
        self._connection = self._open()
        self._file = _identity(self._path)

    @property
    def place(self) -> str:
        """The file."""
        return str(self._path)

    def insert(self, receipts: Sequence[Row], feedback: Sequence[Row]) -> None:
        """Write rows, all or none; see `Store.insert`."""
        self.change(
            [
                (insert_statement(table, "?", rows=len(part)), [v for row in part for v in row])
                for table, rows in ((RECEIPTS, receipts), (FEEDBACK, feedback))
                for part in _parts(rows)
            ]
        )

    def change(self, statements: Sequence[tuple[str, Sequence[Any]]]) -> list[int]:
        """Do several things, all or none; see `Store.change`."""
        self._follow()
        try:
            if len(statements) == 1:
                return [self._connection.execute(*statements[0]).rowcount]
            self._connection.execute("BEGIN IMMEDIATE")
            counts = [self._connection.execute(*one).rowcount for one in statements]
            self._connection.execute("COMMIT")
        except (sqlite3.Error, OverflowError) as error:
            self._roll_back()
            raise self._failure(error) from None
        return counts

    def select(self, query: str, values: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        """The rows of a query; see `Store.select`."""
        try:
            return self._connection.execute(query, values).fetchall()
        except sqlite3.Error as error:
            raise self._failure(error) from None

    def close(self) -> None:
        """Close the file."""
        self._connection.close()

    def _open(self) -> sqlite3.Connection:
        if self._create:
            self._make()
        elif not self._path.is_file():
            raise StoreError(f"{self._path} doesn't exist; name the file that the gateway writes")
        with ExitStack() as undo:
            try:
                connection = sqlite3.connect(
                    self._path, timeout=_BUSY_SECONDS, isolation_level=None, check_same_thread=False
                )
                undo.callback(connection.close)
                self._prepare(connection)
            except sqlite3.Error as error:
                raise self._failure(error) from None
            undo.pop_all()
        return connection

    def _make(self) -> None:
        """Make the file where there is none, for its owner alone, as its journal will be."""
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            os.close(os.open(self._path, os.O_CREAT | os.O_RDWR, 0o600))
        except OSError as error:
            raise DownError(
                f"{self._path} can't be opened for writing: {error.strerror}; name a file that can",
                kind="file can't be opened",
            ) from None

    def _prepare(self, connection: sqlite3.Connection) -> None:
        def one(query: str) -> Any:
            return connection.execute(query).fetchone()[0]

        def make() -> None:
            for statement in create_statements(_TYPES):
                connection.execute(statement)

        if self._create:
            one("PRAGMA journal_mode = WAL")
            connection.execute("PRAGMA synchronous = NORMAL")
            connection.execute("PRAGMA secure_delete = ON")  # prompts that go are to be gone
            connection.execute("BEGIN IMMEDIATE")
        else:
            connection.execute("PRAGMA query_only = ON")
        ours = (RECEIPTS, FEEDBACK, SCHEMA)
        found = connection.execute(
            "SELECT name FROM sqlite_master WHERE type = 'table' AND name IN (?, ?, ?)", ours
        )
        prepare(
            {name for (name,) in found.fetchall()},
            create=self._create,
            make=make,
            version=lambda: one(f"SELECT max(version) FROM {SCHEMA}"),
            at=str(self._path),
        )
        if self._create:
            connection.execute("COMMIT")

    def _follow(self) -> None:
        """Begin a new file where somebody moved the old one away: nobody would find what comes."""
        if _identity(self._path) != self._file:
            with suppress(sqlite3.Error):  # what is in the log alone goes with the file
                self._connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
            self._connection.close()
            self._connection = self._open()
            self._file = _identity(self._path)

    def _roll_back(self) -> None:
        if self._connection.in_transaction:
            self._connection.execute("ROLLBACK")

    def _failure(self, error: sqlite3.Error | OverflowError) -> StoreError:
        never = (sqlite3.IntegrityError, sqlite3.DataError, sqlite3.InterfaceError, OverflowError)
        if isinstance(error, never):
            return RowError(f"{self._path} doesn't take a row ({type(error).__name__})")
        name = str(getattr(error, "sqlite_errorname", type(error).__name__))
        return DownError(
            f"{self._path} can't be used as a database of receipts now: {error} ({name})", kind=name
        )


def _parts(rows: Sequence[Row]) -> list[Sequence[Row]]:
    return [rows[i : i + _TOGETHER] for i in range(0, len(rows), _TOGETHER)]


def _identity(path: Path) -> tuple[int, int] | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino
