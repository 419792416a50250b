"""The database of receipts: its tables, their versions, and how it is opened."""

from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path

from prefill_router.database import (
    Database,
    Dialect,
    PostgresDatabase,
    RunStatement,
    ServedSqliteDatabase,
    SqliteDatabase,
    existing_tables,
    refuse_newer,
)
from prefill_router.errors import ConfigError, StoreError
from prefill_router_gateway.receipts.rows import COLUMNS, FEEDBACK_COLUMNS, Kind, ReceiptColumn, Row

VERSION = 3
"""The version of the tables; a gateway upgrades earlier ones when it starts."""
RECEIPTS, FEEDBACK, SCHEMA = "receipts", "receipt_feedback", "receipts_schema"
_OURS = (RECEIPTS, FEEDBACK, SCHEMA)
_COLUMNS: Mapping[str, tuple[ReceiptColumn, ...]] = {RECEIPTS: COLUMNS, FEEDBACK: FEEDBACK_COLUMNS}
_SESSION_INDEX = f"CREATE INDEX {RECEIPTS}_session ON {RECEIPTS} (session, at)"
SAMPLES = "receipt_samples"
_UPGRADES: Mapping[int, tuple[tuple[str, str], ...]] = {
    1: ((RECEIPTS, f"ALTER TABLE {RECEIPTS} ADD COLUMN baseline TEXT"),),
    2: (
        (RECEIPTS, _SESSION_INDEX),
        (FEEDBACK, f"ALTER TABLE {FEEDBACK} ADD COLUMN conversation TEXT"),
        (SAMPLES, f"ALTER TABLE {SAMPLES} ADD COLUMN prompt TEXT"),
        (SAMPLES, f"ALTER TABLE {SAMPLES} ADD COLUMN is_turn INTEGER NOT NULL DEFAULT 0"),
    ),
}
"""By version, the tables and the statements that make them those of the next, where they exist."""
_IDENTITY: Mapping[str, str] = {RECEIPTS: "id", FEEDBACK: "id, source, at"}
_TYPES: Mapping[Kind, tuple[str, str]] = {
    "text": ("TEXT", "TEXT"),
    "json": ("TEXT", "TEXT"),
    "real": ("REAL", "DOUBLE PRECISION"),
    "integer": ("INTEGER", "BIGINT"),
    "flag": ("INTEGER", "BIGINT"),
}
"""The types of columns, in SQLite and in PostgreSQL."""
_LOCK_TABLES: Mapping[Dialect, tuple[str, ...]] = {
    "sqlite": (),
    "postgresql": ("SELECT pg_advisory_xact_lock(7346512)",),
}
"""Keeps other gateways from making tables until the transaction ends; of SQLite, each does."""
_TOGETHER = 64
"""Rows per INSERT: each SQLite statement releases the GIL and must wait to get it back. It is far
below the limit of 32,766 values per statement."""
BUSY_SECONDS = 5.0
"""How long a transaction on an SQLite file waits for those of other processes."""
_SQLITE = "sqlite:///"
_POSTGRES = ("postgresql://", "postgres://")


def open_store(url: str, *, create: bool = True) -> Database:
    """Open a database of receipts.

    Args:
        url: `sqlite:///FILE`, `postgresql://...`, or the path of an SQLite file.
        create: Whether to make its tables if there are none; otherwise it is only read.

    Raises:
        ConfigError: The URL is none of these.
        MissingExtraError: PostgreSQL needs the extra `postgres`.
        StoreError: It can't be reached or made, or has other tables.
    """
    prepare = _make_or_upgrade if create else _check
    if url.startswith(_POSTGRES):
        return PostgresDatabase(url, of="the receipts'", prepare=prepare)
    if "://" in url and not url.startswith(_SQLITE):
        raise ConfigError(
            "the receipts' URL must begin with sqlite:/// or postgresql://, or be an SQLite file"
        )
    file = file_of(url)
    if file is None:
        raise ConfigError("the receipts' URL names no file; write sqlite:///FILE")
    file = file.absolute()
    if create:
        return ServedSqliteDatabase(file, prepare=prepare, busy_seconds=BUSY_SECONDS)
    if not file.is_file():
        raise StoreError(f"{file} doesn't exist; name the file that the gateway writes")
    return SqliteDatabase(
        file, mode="rw", read_only=True, prepare=prepare, busy_seconds=BUSY_SECONDS
    )


def file_of(url: str) -> Path | None:
    """The SQLite file that a URL names; None where it names none."""
    name = url.removeprefix(_SQLITE).partition("?")[0]
    return None if not name or url.startswith(_POSTGRES) else Path(name)


def insert_rows(store: Database, receipts: Sequence[Row], feedback: Sequence[Row]) -> None:
    """Insert rows, all or none; existing rows stay unchanged.

    Args:
        store: The database.
        receipts: Rows of receipts.
        feedback: Rows of scores.

    Raises:
        DownError: It can't be written now.
        RowError: It rejects one of these rows.
    """
    store.change(
        [
            (_insertion(table, len(part)), [value for row in part for value in row])
            for table, rows in ((RECEIPTS, receipts), (FEEDBACK, feedback))
            for part in (rows[i : i + _TOGETHER] for i in range(0, len(rows), _TOGETHER))
        ]
    )


def make_table(
    store: Database, name: str, columns: Sequence[ReceiptColumn], *, identity: str
) -> None:
    """Make a further table, with an index over time, unless it exists.

    Args:
        store: The database.
        name: The table's name.
        columns: Its columns, `at` among them.
        identity: The columns of its primary key.

    Raises:
        DownError: It can't be made now.
    """
    if not store.existing([name]):
        statements = (
            *_LOCK_TABLES[store.dialect],
            _creation(name, columns, identity, store.dialect),
            f"CREATE INDEX IF NOT EXISTS {name}_at ON {name} (at)",
        )
        store.change([(statement, ()) for statement in statements])


def _make_or_upgrade(store: Database, run: RunStatement) -> None:
    """Make the tables if there are none, and bring those of an earlier version to this one."""
    for statement in _LOCK_TABLES[store.dialect]:
        run(statement)
    tables = existing_tables(store, run, _OURS)
    if not tables:
        for statement in _creations(store.dialect):
            run(statement)
        return
    version = _read_version(store, run, tables)
    if version < VERSION:
        made = existing_tables(store, run, (RECEIPTS, FEEDBACK, SAMPLES))
        steps = (step for number in range(version, VERSION) for step in _UPGRADES[number])
        for statement in (statement for table, statement in steps if table in made):
            run(statement)
        run(f"UPDATE {SCHEMA} SET version = {VERSION}")


def _check(store: Database, run: RunStatement) -> None:
    """Check that there are tables, of the version that this package reads."""
    tables = existing_tables(store, run, _OURS)
    if not tables:
        raise StoreError(
            f"{store.place} has no receipts; name the database that the gateway writes"
        )
    version = _read_version(store, run, tables)
    if version < VERSION:
        raise StoreError(
            f"{store.place} has receipts of version {version}; this package reads version "
            f"{VERSION}. To upgrade them, start the gateway on it once, with prefill-router "
            "serve; all receipts are kept"
        )


def _read_version(store: Database, run: RunStatement, tables: set[str]) -> int:
    """The version of these tables.

    Raises:
        StoreError: A newer package made them, or some are missing.
    """
    if tables != set(_OURS):
        raise StoreError(
            f"{store.place} has only {sorted(tables)} of the gateway's tables, so another program "
            "seems to use it; name another database"
        )
    ((version,),) = run(f"SELECT max(version) FROM {SCHEMA}")
    refuse_newer(store.place, "receipts", version, newest=VERSION)
    return int(version)


def _creations(dialect: Dialect) -> list[str]:
    """The statements that make the tables."""
    return [
        *(_creation(table, _COLUMNS[table], _IDENTITY[table], dialect) for table in _COLUMNS),
        f"CREATE TABLE {SCHEMA} (version {_type_of('integer', dialect)} NOT NULL)",
        f"INSERT INTO {SCHEMA} VALUES ({VERSION})",
        f"CREATE INDEX {RECEIPTS}_at ON {RECEIPTS} (at, id)",
        _SESSION_INDEX,
        f"CREATE INDEX {FEEDBACK}_at ON {FEEDBACK} (at)",
    ]


def _creation(name: str, columns: Sequence[ReceiptColumn], identity: str, dialect: Dialect) -> str:
    listed = ", ".join(
        f"{c.name} {_type_of(c.kind, dialect)}{'' if c.optional else ' NOT NULL'}" for c in columns
    )
    return f"CREATE TABLE IF NOT EXISTS {name} ({listed}, PRIMARY KEY ({identity}))"


def _type_of(kind: Kind, dialect: Dialect) -> str:
    return _TYPES[kind][dialect == "postgresql"]


@cache
def _insertion(table: str, rows: int) -> str:
    """The statement that inserts rows and skips those that exist."""
    columns = _COLUMNS[table]
    names, marks = ", ".join(c.name for c in columns), ", ".join("?" * len(columns))
    return (
        f"INSERT INTO {table} ({names}) VALUES {', '.join([f'({marks})'] * rows)} "
        f"ON CONFLICT ({_IDENTITY[table]}) DO NOTHING"
    )
