"""Receipts in PostgreSQL, by psycopg.

Nothing that libpq says goes into an error or a log, since it may quote the password; the reason is
told in words of our own.
"""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, final

from prefill_router.errors import ConfigError, StoreError
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
from prefill_router.lazy_imports import optional_imports

if TYPE_CHECKING:
    import psycopg

_TYPES: Mapping[Kind, str] = {"text": "TEXT", "real": "DOUBLE PRECISION", "integer": "BIGINT"}
_CONNECT_SECONDS, _STATEMENT_SECONDS = 5, 15
_LOCK = 7_346_512
"""Held while the tables are made, so that two gateways that start at once don't both make them."""
_REASONS: Mapping[str, str] = {
    "Connection refused": "connection refused",
    "authentication failed": "user or password refused",
    "no password supplied": "it asks for a password, give one in PGPASSWORD",
    "does not exist": "no such user or database",
    "No such file": "no server at that socket",
    "timeout expired": "no answer in time",
    "Name or service": "no such host",
    "not translate host": "no such host",
    "too many": "too many connections",
    "permission denied": "the user may not do that",
    "starting up": "it is starting up",
    "shutting down": "it is shutting down",
    "no pg_hba.conf entry": "it lets nobody in from here",
    "SSL": "SSL isn't possible as asked",
}


@final
class PostgresStore(Store):
    """A database of PostgreSQL; a connection that was lost is made again by the next use."""

    def __init__(self, url: str, *, create: bool = True) -> None:
        with optional_imports("a receipts URL of PostgreSQL"):
            import psycopg
        self._psycopg, self._create = psycopg, create
        self._options = _options(url)
        self._place = _place(self._options)
        self._connection: psycopg.Connection | None = None
        self._prepared = False
        self._connected()

    @property
    def place(self) -> str:
        """Host, port and name of the database."""
        return self._place

    def insert(self, receipts: Sequence[Row], feedback: Sequence[Row]) -> None:
        """Write rows, all or none; see `Store.insert`."""
        connection = self._connected()
        try:
            with connection.cursor() as cursor:
                for table, rows in ((RECEIPTS, receipts), (FEEDBACK, feedback)):
                    if rows:
                        cursor.executemany(insert_statement(table, "%s"), rows)
            connection.commit()
        except self._psycopg.Error as error:
            raise self._failure(error) from None

    def change(self, statements: Sequence[tuple[str, Sequence[Any]]]) -> list[int]:
        """Do several things, all or none; see `Store.change`."""
        connection = self._connected()
        try:
            counts = [
                connection.execute(query.replace("?", "%s").encode(), tuple(values)).rowcount
                for query, values in statements
            ]
            connection.commit()
        except self._psycopg.Error as error:
            raise self._failure(error) from None
        return counts

    def select(self, query: str, values: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        """The rows of a query; see `Store.select`."""
        connection = self._connected()
        try:
            asked = query.replace("?", "%s").encode()
            found = connection.execute(asked, tuple(values)).fetchall()
            connection.commit()
        except self._psycopg.Error as error:
            raise self._failure(error) from None
        return found

    def close(self) -> None:
        """Close the connection."""
        if self._connection is not None:
            self._connection.close()
        self._connection = None

    def _connected(self) -> "psycopg.Connection":
        if self._connection is not None and not self._connection.closed:
            return self._connection
        try:
            # Statements aren't prepared on the server: poolers mix up the connections' own.
            self._connection = self._psycopg.connect(**self._options, prepare_threshold=None)
            self._connection.execute(f"SET statement_timeout = '{_STATEMENT_SECONDS}s'".encode())
            if not self._prepared:
                self._prepare(self._connection)
            self._connection.commit()
        except self._psycopg.Error as error:
            self.close()  # else it would be used next time as if all had gone well
            raise self._failure(error) from None
        except StoreError:
            self.close()
            raise
        self._prepared = True
        return self._connection

    def _prepare(self, connection: "psycopg.Connection") -> None:
        def one(query: str) -> Any:
            found = connection.execute(query.encode()).fetchone()
            return None if found is None else found[0]

        def make() -> None:
            for statement in create_statements(_TYPES):
                connection.execute(statement.encode())

        one(f"SELECT pg_advisory_xact_lock({_LOCK})")
        found = connection.execute(
            "SELECT name FROM unnest(%s::text[]) AS name WHERE to_regclass(name) IS NOT NULL",
            ([RECEIPTS, FEEDBACK, SCHEMA],),
        )
        prepare(
            {name for (name,) in found.fetchall()},
            create=self._create,
            make=make,
            version=lambda: one(f"SELECT max(version) FROM {SCHEMA}"),
            at=self._place,
        )

    def _failure(self, error: "psycopg.Error") -> StoreError:
        """What an error is told as; the transaction is undone, or the connection given up."""
        try:
            if self._connection is not None:
                self._connection.rollback()
        except self._psycopg.Error:
            self.close()
        if isinstance(error, self._psycopg.DataError | self._psycopg.IntegrityError):
            return RowError(f"{self._place} doesn't take a row ({type(error).__name__})")
        told = str(error)
        known = (words for part, words in _REASONS.items() if part in told)
        kind = next(known, error.sqlstate or type(error).__name__)
        return DownError(f"{self._place} can't be used now: {kind}", kind=kind)


def _options(url: str) -> dict[str, Any]:
    """What libpq is given, with limits on how long it may wait.

    Raises:
        ConfigError: The URL can't be read; it isn't quoted.
    """
    import psycopg
    from psycopg.conninfo import conninfo_to_dict

    try:
        given = conninfo_to_dict(url)
    except psycopg.Error:
        raise ConfigError(
            "the receipts' URL can't be read as postgresql://USER@HOST:PORT/NAME; special "
            "characters of a password are written as %XX, or give it in PGPASSWORD"
        ) from None
    limits = {"connect_timeout": _CONNECT_SECONDS, "tcp_user_timeout": _STATEMENT_SECONDS * 1000}
    return {**limits, "application_name": "prefill-router", **given}


def _place(options: Mapping[str, Any]) -> str:
    host, port = options.get("host", "the default host"), options.get("port")
    return f"PostgreSQL at {host}{f':{port}' if port else ''}"
