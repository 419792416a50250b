"""The database of a run: its tables, its version, and how it is opened.

`tasks`
    The tasks: position, id, digest of the content, the task as JSON, its options.
`answers`
    A narrow row per recorded answer, in order of arrival, with what tables and resuming need.
`latest`
    A view of `answers`: the last row of each target and question.
`records`
    The whole record of each answer, as JSON, with a checksum.
`exposure`
    The most that calls in flight may cost, noted as a session goes on (`client.paid_calls`), and,
    negative, what was at risk and is settled.

Rows are added and never changed: triggers refuse everything else.
"""

from contextlib import closing
from pathlib import Path

from prefill_router.errors import CorruptError, FormatError, StoreError
from prefill_router.harness.sqlite_file import SqliteFile, refusals

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
            f"a run of format {version}; this version reads up to {VERSION}: install a newer one",
            file=database.path,
        )
    database.rows("SELECT 1 FROM answers LIMIT 1")
