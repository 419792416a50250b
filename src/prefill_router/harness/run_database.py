"""The database of a run: its tables, its version, and how it is opened.

`tasks`
    What was asked: position, id, digest of the content, the task as JSON, its options.
`answers`
    One narrow row per recorded answer, in the order of their coming: what tables and resuming need.
`latest`
    A view: of `answers`, the last row of each target and question.
`records`
    The whole record of each of them, as JSON, with a checksum.
`exposure`
    The most that calls in flight may cost, as a session goes on (`client.paid_calls`); less what
    was at risk and is settled.

Rows are added and never changed: triggers refuse everything else.
"""

import sqlite3
from pathlib import Path
from urllib.parse import quote

from prefill_router.errors import CorruptError, FormatError, StoreError

DATABASE = "run.sqlite"
VERSION = 1
"""Of the format of a run; a view more is no other format, since nothing here reads it."""
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
_REFUSAL = """
CREATE TRIGGER {table}_{what} BEFORE {what} ON {table}
BEGIN SELECT RAISE(ABORT, 'a run only grows: its rows are never changed'); END;
"""


def create(folder: Path) -> None:
    """Make the empty database, whole or not at all, unless it is there."""
    connection = _connect(folder, "rwc")
    try:
        connection.execute("PRAGMA journal_mode = WAL")
        if connection.execute("PRAGMA user_version").fetchone()[0] == 0:
            connection.executescript(_script())
    except sqlite3.Error as error:
        raise store_error(error, folder) from None
    finally:
        connection.close()


def open_to_read(folder: Path) -> sqlite3.Connection:
    """A connection that can only read.

    Raises:
        CorruptError: The database is missing or damaged.
        FormatError: A newer version of the package wrote it.
    """
    _require(folder)
    for mode in ("ro", "ro&immutable=1"):  # the second for folders that may not be written to
        connection = _connect(folder, mode)
        try:
            _check(connection, folder)
        except sqlite3.OperationalError as error:
            connection.close()
            if mode != "ro":
                raise store_error(error, folder) from None
        except sqlite3.Error as error:
            connection.close()
            raise store_error(error, folder) from None
        except (CorruptError, FormatError):
            connection.close()
            raise
        else:
            return connection
    raise CorruptError(f"{folder / DATABASE} can't be opened; copy the run again")


def open_to_write(folder: Path) -> sqlite3.Connection:
    """A connection that adds rows, each commit of which is on the disk when it returns.

    Raises:
        CorruptError: The database is missing or damaged.
        FormatError: A newer version of the package wrote it.
        StoreError: It can't be written to.
    """
    _require(folder)
    connection = _connect(folder, "rw")
    try:
        connection.execute("PRAGMA synchronous = FULL")
        _check(connection, folder)
        connection.execute(_LATEST)  # runs made before there was the view get it
    except sqlite3.Error as error:
        connection.close()
        raise store_error(error, folder) from None
    except (CorruptError, FormatError):
        connection.close()
        raise
    return connection


def store_error(error: sqlite3.Error, folder: Path) -> StoreError:
    """What an error of the database means for who runs the command."""
    path, code = folder / DATABASE, getattr(error, "sqlite_errorname", "") or ""
    if code.startswith(("SQLITE_CORRUPT", "SQLITE_NOTADB")):
        return CorruptError(
            f"{path} isn't what was written ({error}); copy the run again, or begin a new one"
        )
    return StoreError(
        f"{path} can't be used: {error}; what was recorded before is kept: make room or mend the "
        "place, and the same command goes on"
    )


def _script() -> str:
    refusals = [
        _REFUSAL.format(table=table, what=what)
        for table in _TABLES
        for what in ("UPDATE", "DELETE")
    ]
    marks = f"PRAGMA application_id = {_APPLICATION}; PRAGMA user_version = {VERSION};"
    return "BEGIN;" + _SCHEMA + _LATEST + "".join(refusals) + marks + "COMMIT;"


def _connect(folder: Path, mode: str) -> sqlite3.Connection:
    address = f"file:{quote(str((folder / DATABASE).absolute()))}?mode={mode}"
    try:
        # Threads take turns by locks of their own or by SQLite's.
        return sqlite3.connect(
            address, uri=True, isolation_level=None, check_same_thread=False, timeout=30
        )
    except sqlite3.Error as error:
        raise store_error(error, folder) from None


def _require(folder: Path) -> None:
    if not (folder / DATABASE).is_file():
        raise CorruptError(f"{folder} lacks the file {DATABASE}; copy the run again")


def _check(connection: sqlite3.Connection, folder: Path) -> None:
    mark = connection.execute("PRAGMA application_id").fetchone()[0]
    version = connection.execute("PRAGMA user_version").fetchone()[0]
    if mark != _APPLICATION or version < 1:
        raise CorruptError(f"{folder / DATABASE} isn't the database of a run; copy the run again")
    if version > VERSION:
        raise FormatError(
            f"a run of format {version}; this version reads up to {VERSION}: install a newer one",
            file=folder / DATABASE,
        )
    connection.execute("SELECT 1 FROM answers LIMIT 1").fetchone()
