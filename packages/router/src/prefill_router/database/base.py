"""What every database here can do: statements, all or none, and errors that say what to do."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from operator import attrgetter
from threading import Lock
from typing import Any, ClassVar, Literal, TypeVar, final

from prefill_router.errors import StoreError, refer, upgrade_advice

Dialect = Literal["sqlite", "postgresql"]
Statement = tuple[str, Sequence[Any]]
"""A statement and the values of its `?`."""
Rows = list[tuple[Any, ...]]
RunStatement = Callable[[str], Rows]
"""Runs a statement without values, and returns its rows; empty where it has none."""
Prepare = Callable[["Database", RunStatement], object]
"""Makes or checks tables, within the transaction that opens a database."""
T = TypeVar("T")
ADVICE = refer("the-database-is-locked-or-away")
_LARGEST = 2**63 - 1


@final
class DownError(StoreError):
    """The database can't be reached, read or written now; a retry may succeed later.

    Attributes:
        kind: The reason, in a word or two.
    """

    def __init__(self, message: str, *, kind: str) -> None:
        super().__init__(message)
        self.kind = kind


@final
class RowError(StoreError):
    """The database rejects rows, and always will."""


class Database(ABC):
    """One connection to a database. Threads take turns.

    Every method raises `DownError` where the database can't be used now. Opening it does, too, and
    raises whatever the function raises that prepares its tables.

    Attributes:
        dialect: The SQL that it reads.
        tables_query: The query for the names of the tables that exist, of some that `{}` lists.
        place: Its location, without a password.
    """

    dialect: ClassVar[Dialect]
    tables_query: ClassVar[str]
    place: str

    def __init__(self) -> None:
        self._turn = Lock()

    def change(self, statements: Sequence[Statement]) -> list[int]:
        """Run statements, all or none, and return how many rows each changed.

        Raises:
            RowError: It rejects a row.
        """
        return self._run(statements, attrgetter("rowcount"))

    def select(self, query: str, values: Sequence[Any] = ()) -> Rows:
        """The rows of a query, given the values of its `?`."""
        (rows,) = self._run([(query, values)], fetch_rows)
        return rows

    def existing(self, tables: Sequence[str]) -> set[str]:
        """Those of these tables that exist."""
        return existing_tables(self, self.select, tables)

    def empty_log(self) -> bool:
        """Move all changes into the file, and empty the log beside it.

        Returns:
            Whether it could be done now. A database server does so by itself, in time.
        """
        return True

    @abstractmethod
    def close(self) -> None:
        """Close the connection."""

    @abstractmethod
    def _run(self, statements: Sequence[Statement], read: Callable[[Any], T]) -> list[T]:
        """Run statements, all or none, and apply `read` to the cursor of each."""


def existing_tables(database: Database, run: RunStatement, tables: Sequence[str]) -> set[str]:
    """Those of these tables that exist, as it is being opened."""
    names = ", ".join(map("'{}'".format, tables))
    return {name for (name,) in run(database.tables_query.format(names))}


def fetch_rows(cursor: Any) -> Rows:
    """All rows of a cursor; empty where its statement has none."""
    rows: Rows = [] if cursor.description is None else cursor.fetchall()
    return rows


def refuse_newer(place: str, what: str, version: int, *, newest: int) -> None:
    """Check that this package isn't too old for some tables.

    Args:
        place: Where they are.
        what: What they hold, such as `receipts`.
        version: Their version.
        newest: The newest version that this package reads.

    Raises:
        StoreError: It is too old.
    """
    if version > newest:
        raise StoreError(f"{place} has {what} of version {version}; {upgrade_advice(newest)}")


def storable(text: str) -> str:
    """The text with lone surrogates replaced, since no database and no file can hold them."""
    return text if text.isascii() else text.encode("utf-8", "replace").decode()


def storable_count(value: int | None) -> int | None:
    """The number, or None where it is larger than a column of 64 bits can hold."""
    return value if value is not None and abs(value) <= _LARGEST else None
