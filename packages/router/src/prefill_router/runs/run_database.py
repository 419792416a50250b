"""The SQLite databases of the harness, and that of a run: its tables, version, and opening.

`tasks`
    The tasks: position, id, digest of the content, the task as JSON, its options.
`answers`
    A narrow row per recorded answer, in order of arrival, with what tables and resuming need.
`latest`
    A view of `answers`: the last row of each target and question.
`records`
    The whole record of each answer, as JSON, with a checksum.
`exposure`
    The most that calls in flight may cost, noted as a session goes on (`endpoints.paid_calls`) and,
    negative, what was at risk and is settled.

Rows are added and never changed: triggers refuse everything else.
"""

import sqlite3
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, final
from urllib.parse import quote

from prefill_router.errors import CorruptError, FormatError, StoreError, upgrade_advice

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
    """The text with lone surrogates replaced, since neither SQLite nor a file can hold them."""
    return text.encode("utf-8", "replace").decode()


DATABASE = "run.sqlite"
VERSION = 1
"""The version of a run's format; the view `latest` came later, but nothing here reads it."""
_APPLICATION = 0x70667275
_TABLES = ("tasks", "answers", "records", "exposure")
_SCHEMA = """
CREATE TABLE tasks (
  position INTEGER PRIMARY KEY,
  id TEXT NOT NULL UNIQUE,
  digest TEXT NOT NULL,
  body NOT NULL,
  options NOT NULL
);
CREATE TABLE answers (
  seq INTEGER PRIMARY KEY,
  target TEXT NOT NULL,
  query_id TEXT NOT NULL,
  missing TEXT,
  cost REAL,
  charged REAL NOT NULL,
  attempts INTEGER NOT NULL,
  cost_source TEXT NOT NULL,
  finish_reason TEXT,
  served_by TEXT,
  input_tokens INTEGER,
  cached_tokens INTEGER,
  output_tokens INTEGER,
  reasoning_tokens INTEGER,
  first_token_seconds REAL,
  first_answer_seconds REAL,
  seconds REAL,
  began TEXT
);
CREATE INDEX answers_by_question
  ON answers (query_id, target, seq, missing, cost, charged, attempts);
CREATE INDEX answers_by_target ON answers (target, output_tokens, seconds);
CREATE TABLE records (seq INTEGER PRIMARY KEY, checksum INTEGER NOT NULL, body NOT NULL);
CREATE TABLE exposure (
  seq INTEGER PRIMARY KEY, session TEXT NOT NULL, dollars REAL NOT NULL
);
CREATE INDEX exposure_by_session ON exposure (session, seq, dollars);
"""
_LATEST = """
CREATE VIEW IF NOT EXISTS latest AS
SELECT * FROM answers WHERE seq IN (SELECT MAX(seq) FROM answers GROUP BY query_id, target);
"""


def create(folder: Path) -> None:
    """Create the empty database, whole or not at all, unless it exists."""
    with closing(_opened(folder, "rwc", "PRAGMA journal_mode = WAL")) as database:
        if database.rows("PRAGMA user_version")[0][0] == 0:
            marks = f"PRAGMA application_id = {_APPLICATION}; PRAGMA user_version = {VERSION};"
            never = refusals(_TABLES, "a run only grows: its rows are never changed")
            database.script("BEGIN;" + _SCHEMA + _LATEST + never + marks + "COMMIT;")


def open_to_read(folder: Path) -> SqliteFile:
    """A connection that can only read.

    Raises:
        CorruptError: The database is missing or damaged.
        FormatError: A newer version of the package wrote it.
    """
    try:
        return _checked(folder, "ro")
    except CorruptError:
        raise
    except StoreError:  # the folder is read-only
        return _checked(folder, "ro&immutable=1")


def open_to_write(folder: Path) -> SqliteFile:
    """A connection that adds rows, each commit of which is on the disk when it returns.

    Raises:
        CorruptError: The database is missing or damaged.
        FormatError: A newer version of the package wrote it.
        StoreError: It can't be written to.
    """
    database = _checked(folder, "rw", "PRAGMA synchronous = FULL")
    try:
        database.script(_LATEST)  # for runs that are older than the view
    except StoreError:
        database.close()
        raise
    return database


def _opened(folder: Path, mode: str, setup: str = "") -> SqliteFile:
    return SqliteFile(
        folder / DATABASE,
        repair="copy the run again, or begin a new one",
        advice="; what was recorded before is kept: free space or repair the disk, and the same "
        "command goes on",
        mode=mode,
        setup=setup,
    )


def _checked(folder: Path, mode: str, setup: str = "") -> SqliteFile:
    if not (folder / DATABASE).is_file():
        raise CorruptError(f"{folder} lacks the file {DATABASE}; copy the run again")
    database = _opened(folder, mode, setup)
    try:
        _check(database)
    except (StoreError, FormatError):
        database.close()
        raise
    return database


def _check(database: SqliteFile) -> None:
    mark = database.rows("PRAGMA application_id")[0][0]
    version = database.rows("PRAGMA user_version")[0][0]
    if mark != _APPLICATION or version < 1:
        raise CorruptError(f"{database.path} isn't the database of a run; copy the run again")
    if version > VERSION:
        raise FormatError(
            f"a run of format {version}; {upgrade_advice(VERSION)}",
            file=database.path,
        )
    database.rows("SELECT 1 FROM answers LIMIT 1")
