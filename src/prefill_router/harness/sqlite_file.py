"""A database of SQLite beside a run: opened, read, written to, its errors in plain words."""

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
        path: The database's.
        repair: What to do where it isn't what was written.
        comfort: Said where it can't be used.
        mode: As SQLite has it: `ro`, `rw`, or `rwc`, which makes it where there is none.
        setup: Statements to begin with.

    Raises:
        CorruptError: It isn't what was written.
        StoreError: It can't be used.
    """

    def __init__(
        self, path: Path, *, repair: str, comfort: str = "", mode: str = "rwc", setup: str = ""
    ) -> None:
        self.path, self._repair, self._comfort = path, repair, comfort
        self._lock = threading.Lock()
        address = f"file:{quote(str(path.absolute()))}?mode={mode}"
        with self._told():
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
        with self._told():
            self._connection.executescript(statements)

    def rows(self, query: str, *values: object) -> list[Any]:
        """All rows of a query, or none of a statement, which is carried out."""
        with self._told(), self._lock, closing(self._connection.execute(query, values)) as cursor:
            return cursor.fetchall()

    def each(self, query: str, *values: object) -> Iterator[Any]:
        """The rows of a query, one by one, for one thread."""
        with self._told():
            # not `yield from`, whose end closes the cursor, also of a file that was closed before
            for row in self._connection.execute(query, values):  # noqa: UP028
                yield row

    @contextmanager
    def transaction(self) -> Iterator[sqlite3.Connection]:
        """All or nothing; on the disk when it is left, as far as the setup has it so."""
        with self._told():
            self._connection.execute("BEGIN IMMEDIATE")
            try:
                yield self._connection
                self._connection.execute("COMMIT")
            finally:
                if self._connection.in_transaction:
                    self._connection.rollback()

    def close(self) -> None:
        """Close it."""
        with self._lock:
            self._connection.close()

    @contextmanager
    def _told(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as error:
            if (getattr(error, "sqlite_errorname", "") or "").startswith(_DAMAGED):
                raise CorruptError(
                    f"{self.path} isn't what was written ({error}); {self._repair}"
                ) from None
            raise StoreError(f"{self.path} can't be used: {error}{self._comfort}") from None


def refusals(tables: tuple[str, ...], why: str) -> str:
    """Triggers that let rows of these tables be added and nothing else."""
    return "".join(
        f"CREATE TRIGGER IF NOT EXISTS {table}_{what} BEFORE {what} ON {table} "
        f"BEGIN SELECT RAISE(ABORT, '{why}'); END;\n"
        for table in tables
        for what in ("UPDATE", "DELETE")
    )


def storable(text: str) -> str:
    """The text without lone surrogates, which SQLite has no form for."""
    return text.encode("utf-8", "replace").decode()
