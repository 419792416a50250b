"""The database of a run: its tables, version, and opening.

`tasks`
    The tasks: position, id, digest of the content, the task as JSON, its options.
`answers`
    A narrow row per recorded answer, in order of arrival, with what tables and resuming need.
`latest`
    A view of `answers`: the last row of each target and question.
`records`
    The whole record of each answer, as JSON, with a checksum.
`exposure`
    The most that calls in flight may cost, noted as a session goes on (`endpoints.spending`) and,
    negative, what was at risk and is settled.

Rows are added and never changed: triggers refuse everything else.
"""

from functools import partial
from pathlib import Path

from prefill_router.database import Database, DownError, RunStatement, SqliteDatabase, refusals
from prefill_router.errors import CorruptError, FormatError, upgrade_advice

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
SELECT * FROM answers WHERE seq IN (SELECT MAX(seq) FROM answers GROUP BY query_id, target)
"""


_open = partial(
    SqliteDatabase,
    repair="copy the run again, or begin a new one",
    advice="what was recorded before is kept: free space or repair the disk, and the same command "
    "goes on",
)


def create(folder: Path) -> None:
    """Create the empty database, whole or not at all, unless it exists."""
    _open(folder / DATABASE, pragmas=("PRAGMA journal_mode = WAL",), prepare=_make_tables).close()


def open_to_read(folder: Path) -> SqliteDatabase:
    """A connection that can only read.

    Raises:
        CorruptError: The database is missing or damaged.
        FormatError: A newer version of the package wrote it.
    """
    path = _existing_file(folder)
    try:
        return _open(path, mode="ro", read_only=True, prepare=_check_format)
    except DownError:  # the folder is read-only
        return _open(path, mode="ro&immutable=1", read_only=True, prepare=_check_format)


def open_to_write(folder: Path) -> SqliteDatabase:
    """A connection that adds rows, each commit of which is on the disk when it returns.

    Raises:
        CorruptError: The database is missing or damaged.
        FormatError: A newer version of the package wrote it.
        StoreError: It can't be written to.
    """
    pragmas = ("PRAGMA synchronous = FULL",)
    return _open(_existing_file(folder), mode="rw", pragmas=pragmas, prepare=_check_to_write)


def _existing_file(folder: Path) -> Path:
    path = folder / DATABASE
    if not path.is_file():
        raise CorruptError(f"{folder} lacks the file {DATABASE}; copy the run again")
    return path


def _make_tables(_: Database, run: RunStatement) -> None:
    if run("PRAGMA user_version") != [(0,)]:
        return
    never = refusals(_TABLES, "a run only grows: its rows are never changed")
    marks = (f"PRAGMA application_id = {_APPLICATION}", f"PRAGMA user_version = {VERSION}")
    for statement in (*_SCHEMA.split(";"), _LATEST, *never, *marks):
        run(statement)


def _check_format(database: Database, run: RunStatement) -> None:
    ((mark,),), ((version,),) = run("PRAGMA application_id"), run("PRAGMA user_version")
    if mark != _APPLICATION or version < 1:
        raise CorruptError(f"{database.place} isn't the database of a run; copy the run again")
    if version > VERSION:
        raise FormatError(
            f"a run of format {version}; {upgrade_advice(VERSION)}", file=Path(database.place)
        )
    run("SELECT 1 FROM answers LIMIT 1")


def _check_to_write(database: Database, run: RunStatement) -> None:
    _check_format(database, run)
    run(_LATEST)  # for runs that are older than the view
