"""An SQLite database in a run's folder, with errors of this package."""

import sqlite3
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, final
from urllib.parse import quote

from prefill_router.errors import CorruptError, StoreError

_DAMAGED = ("SQLITE_CORRUPT", "SQLITE_NOTADB")


@final
class SqliteFile:
    """One connection, in autocommit; threads take turns.

    Args:
        path: The file.
        repair: What to do where it is damaged; part of the error.
        advice: What to do where it can't be used; the end of the error.
        mode: SQLite's mode: `ro`, `rw`, or `rwc`, which creates the file where there is none.
        setup: Statements to run first.

    Raises:
        CorruptError: It isn't what was written.
        StoreError: It can't be used.
    """

    def __init__(
        self, path: Path, *, repair: str, advice: str = "", mode: str = "rwc", setup: str = ""
    ) -> None:
        self.path, self._repair, self._advice = path, repair, advice
        self._lock = threading.Lock()
        address = f"file:{quote(str(path.absolute()))}?mode={mode}"
        with self._translated_errors():
            self._connection = sqlite3.connect(
                address, uri=True, isolation_level=None, check_same_thread=False, timeout=60
            )
        try:
            self.script(setup)
        except StoreError:
            self.close()
            raise

    def script(self, statements: str) -> None:
        """Run statements, one after the other."""
        with self._translated_errors():
            self._connection.executescript(statements)

    def rows(self, query: str, *values: object) -> list[Any]:
        """All rows of a query; a statement is executed and returns none."""
        with (
            self._translated_errors(),
            self._lock,
            closing(self._connection.execute(query, values)) as cursor,
        ):
            return cursor.fetchall()

    def each(self, query: str, *values: object) -> Iterator[Any]:
        """The rows of a query, one by one, for one thread."""
        with self._translated_errors():
            # not `yield from`, which would close the cursor even after the file was closed
            for row in self._connection.execute(query, values):  # noqa: UP028
                yield row

    @contextmanager
    def transaction(self) -> Iterator[sqlite3.Connection]:
        """Commit all or nothing at the end; `setup` says whether that waits for the disk."""
        with self._translated_errors():
            self._connection.execute("BEGIN IMMEDIATE")
            try:
                yield self._connection
                self._connection.execute("COMMIT")
            finally:
                if self._connection.in_transaction:
                    self._connection.rollback()

    def close(self) -> None:
        """Close the connection."""
        with self._lock:
            self._connection.close()

    @contextmanager
    def _translated_errors(self) -> Iterator[None]:
        """Turn errors of SQLite into those of this package."""
        try:
            yield
        except sqlite3.Error as error:
            if (getattr(error, "sqlite_errorname", "") or "").startswith(_DAMAGED):
                raise CorruptError(
                    f"{self.path} isn't what was written ({error}); {self._repair}"
                ) from None
            raise StoreError(f"{self.path} can't be used: {error}{self._advice}") from None


def refusals(tables: tuple[str, ...], why: str) -> str:
    """SQL of triggers that refuse to change or delete rows of these tables."""
    return "".join(
        f"CREATE TRIGGER IF NOT EXISTS {table}_{what} BEFORE {what} ON {table} "
        f"BEGIN SELECT RAISE(ABORT, '{why}'); END;\n"
        for table in tables
        for what in ("UPDATE", "DELETE")
    )


def storable(text: str) -> str:
    """The text without lone surrogates, which SQLite can't store."""
    return text.encode("utf-8", "replace").decode()
