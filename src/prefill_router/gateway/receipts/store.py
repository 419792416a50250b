"""What a database of receipts does, whichever it is, its tables, and from a URL to its store."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, final

from prefill_router.errors import ConfigError, StoreError
from prefill_router.gateway.receipts.rows import COLUMNS, FEEDBACK_COLUMNS, Column, Kind, Row

VERSION = 1
"""Of the tables; another one is refused."""
RECEIPTS, FEEDBACK, SCHEMA = "receipts", "receipt_feedback", "receipts_schema"
COLUMNS_OF: Mapping[str, tuple[Column, ...]] = {RECEIPTS: COLUMNS, FEEDBACK: FEEDBACK_COLUMNS}
_IDENTITY: Mapping[str, str] = {RECEIPTS: "id", FEEDBACK: "id, source, at"}


@final
class DownError(StoreError):
    """A database that can't be reached or written now; the same may work later.

    Attributes:
        kind: Why, in a word or two.
    """

    def __init__(self, message: str, *, kind: str) -> None:
        super().__init__(message)
        self.kind = kind


@final
class RowError(StoreError):
    """Rows that the database will never take."""


class Store(ABC):
    """A database of receipts. One thread uses it at a time."""

    @property
    @abstractmethod
    def place(self) -> str:
        """Where it is, without its password."""

    @abstractmethod
    def insert(self, receipts: Sequence[Row], feedback: Sequence[Row]) -> None:
        """Write rows, all or none; those that are there already stay as they are.

        Raises:
            DownError: It can't be written now.
            RowError: It takes one of these rows never.
        """

    @abstractmethod
    def change(self, statements: Sequence[tuple[str, Sequence[Any]]]) -> list[int]:
        """Do several things, all or none; gives how many rows each of them changed.

        Args:
            statements: What is done, and the values that its `?` stand for.

        Raises:
            DownError: It can't be written now.
        """

    @abstractmethod
    def select(self, query: str, values: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        """The rows of a query, whose `?` stand for the values.

        Raises:
            DownError: It can't be read now.
        """

    @abstractmethod
    def close(self) -> None:
        """Let go of it."""


def create_statements(types: Mapping[Kind, str]) -> list[str]:
    """What makes the tables, in one database's own types."""
    tables = [
        f"CREATE TABLE {table} ({_columns(table, types)}, PRIMARY KEY ({_IDENTITY[table]}))"
        for table in COLUMNS_OF
    ]
    version = f"CREATE TABLE {SCHEMA} (version {types['integer']} NOT NULL)"
    indexes = [
        f"CREATE INDEX {RECEIPTS}_at ON {RECEIPTS} (at, id)",
        f"CREATE INDEX {FEEDBACK}_at ON {FEEDBACK} (at)",
    ]
    return [*tables, version, f"INSERT INTO {SCHEMA} VALUES ({VERSION})", *indexes]


@cache
def insert_statement(table: str, mark: str, *, rows: int = 1) -> str:
    """What writes rows, each once however often it is written."""
    columns = COLUMNS_OF[table]
    names = ", ".join(column.name for column in columns)
    marks = f"({', '.join([mark] * len(columns))})"
    return (
        f"INSERT INTO {table} ({names}) VALUES {', '.join([marks] * rows)} "
        f"ON CONFLICT ({_IDENTITY[table]}) DO NOTHING"
    )


def prepare(
    tables: set[str], *, create: bool, make: Callable[[], None], version: Callable[[], Any], at: str
) -> None:
    """Make the tables where there are none, and check those that are there.

    Args:
        tables: Those of ours that the database has.
        create: Whether they may be made.
        make: Makes them.
        version: Reads what version they have.
        at: The place, for errors.

    Raises:
        StoreError: There are none and they may not be made, or they are of another version.
    """
    if not tables:
        if not create:
            raise StoreError(f"{at} holds no receipts; name the database that the gateway writes")
        make()
    elif tables != {RECEIPTS, FEEDBACK, SCHEMA}:
        raise StoreError(
            f"{at} has only {sorted(tables)} of the gateway's tables; another program's, it seems: "
            "name another database"
        )
    found = version()
    if found != VERSION:
        raise StoreError(
            f"{at} holds receipts of version {found}; this package reads and writes {VERSION}: "
            "name another database, or use the package that wrote it"
        )


def _columns(table: str, types: Mapping[Kind, str]) -> str:
    return ", ".join(
        f"{c.name} {types[c.kind]}{'' if c.optional else ' NOT NULL'}" for c in COLUMNS_OF[table]
    )


_SQLITE = "sqlite:///"
_POSTGRES = ("postgresql://", "postgres://")


def open_store(url: str, *, create: bool = True) -> Store:
    """Open a database of receipts.

    Args:
        url: `sqlite:///FILE`, `postgresql://...`, or the path of a file of SQLite.
        create: Whether its tables are made where there are none; without, it is only read.

    Raises:
        ConfigError: The URL is none of these.
        MissingExtraError: PostgreSQL needs the extra `postgres`.
        StoreError: It can't be reached or made, or holds something else.
    """
    if url.startswith(_POSTGRES):
        from prefill_router.gateway.receipts.postgres import PostgresStore

        return PostgresStore(url, create=create)
    if "://" in url and not url.startswith(_SQLITE):
        raise ConfigError(
            "the receipts' URL must begin with sqlite:/// or postgresql://, or be a file of SQLite"
        )
    file = file_of(url)
    if file is None:
        raise ConfigError("the receipts' URL names no file; write sqlite:///FILE")
    from prefill_router.gateway.receipts.sqlite import SqliteStore

    return SqliteStore(file, create=create)


def file_of(url: str) -> Path | None:
    """The file of SQLite that a URL names; None where it names none."""
    name = url.removeprefix(_SQLITE).partition("?")[0]
    return None if not name or url.startswith(_POSTGRES) else Path(name)
