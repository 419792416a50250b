"""Receipts in PostgreSQL, with psycopg.

No message of libpq is put into an error or a log, since it may quote the password; errors give the
reason in our own words.
"""

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, final

from prefill_router.errors import ConfigError, StoreError, refer
from prefill_router.lazy_imports import optional_imports
from prefill_router_gateway.receipts.store import DownError, RowError, Statement, Store, T

if TYPE_CHECKING:
    import psycopg

_CONNECT_SECONDS, _STATEMENT_SECONDS = 5, 15
_LOCK = 7_346_512
"""An advisory lock for making the tables, so that gateways that start together don't collide."""
_REASONS: Mapping[str, str] = {
    "Connection refused": "connection refused",
    "authentication failed": "user or password refused",
    "no password supplied": "it needs a password, give one in PGPASSWORD",
    "prepared statement": "a pooler mixes up prepared statements; connect directly",
    "does not exist": "no such user or database",
    "No such file": "no server at that socket",
    "timeout expired": "no answer in time",
    "Name or service": "no such host",
    "not translate host": "no such host",
    "too many": "too many connections",
    "permission denied": "the user lacks the permission",
    "starting up": "it is starting up",
    "shutting down": "it is shutting down",
    "server closed": "the connection was lost",
    "terminating connection": "it ended the connection",
    "no pg_hba.conf entry": "it accepts no connections from this host",
    "SSL": "the SSL settings don't fit the server",
}


@final
class PostgresStore(Store):
    """A PostgreSQL database; a lost connection is opened again on the next use."""

    types = MappingProxyType({"text": "TEXT", "real": "DOUBLE PRECISION", "integer": "BIGINT"})
    tables_query = "SELECT name FROM unnest(ARRAY[{}]) AS name WHERE to_regclass(name) IS NOT NULL"
    json_number = "CAST(CAST({} AS json) ->> CAST(? AS TEXT) AS DOUBLE PRECISION)"
    cache_number = (
        "CAST(CAST(details AS json) -> 'cache' -> CAST({} AS TEXT) ->> {} AS DOUBLE PRECISION)"
    )
    lock_tables = (f"SELECT pg_advisory_xact_lock({_LOCK})",)

    def __init__(self, url: str, *, create: bool = True) -> None:
        with optional_imports("a receipts URL of PostgreSQL"):
            import psycopg
        self._psycopg, self._create = psycopg, create
        self._options, self.place = postgres_options(url)
        self._connection: psycopg.Connection | None = None
        self._prepared = False
        self._connected()

    def close(self) -> None:
        """Close the connection."""
        if self._connection is not None:
            self._connection.close()
        self._connection = None

    def _connected(self) -> "psycopg.Connection":
        if self._connection is not None and not self._connection.closed:
            return self._connection
        try:
            # No prepared statements on the server: connection poolers mix them up.
            self._connection = self._psycopg.connect(**self._options, prepare_threshold=None)
            self._connection.execute(f"SET statement_timeout = '{_STATEMENT_SECONDS}s'".encode())
            if not self._prepared:
                run = self._connection.execute
                for statement in self.lock_tables:
                    run(statement.encode())
                self._prepare(lambda statement: run(statement.encode()), create=self._create)
            self._connection.commit()
        except self._psycopg.Error as error:
            self.close()  # otherwise it would be reused as if it were ready
            raise self._failure(error) from None
        except StoreError:
            self.close()
            raise
        self._prepared = True
        return self._connection

    def _run(self, statements: Sequence[Statement], read: Callable[[Any], T]) -> list[T]:
        connection = self._connected()
        try:
            found = [
                read(connection.execute(query.replace("?", "%s").encode(), tuple(values)))
                for query, values in statements
            ]
            connection.commit()
        except self._psycopg.Error as error:
            raise self._failure(error) from None
        return found

    def _failure(self, error: "psycopg.Error") -> StoreError:
        """Roll back, or else close the connection, and return the error to raise."""
        try:
            if self._connection is not None:
                self._connection.rollback()
        except self._psycopg.Error:
            self.close()
        if isinstance(error, self._psycopg.DataError | self._psycopg.IntegrityError):
            return RowError(f"{self.place} rejected a row ({type(error).__name__})")
        return unreachable(self.place, error)


def unreachable(place: str, error: "psycopg.Error") -> DownError:
    """The error to raise where a database can't be used now; it quotes nothing of libpq."""
    message = str(error)
    known = (words for part, words in _REASONS.items() if part in message)
    kind = next(known, error.sqlstate or type(error).__name__)
    told = f"{place} can't be used now: {kind}; {refer('the-database-is-locked-or-away')}"
    return DownError(told, kind=kind)


def postgres_options(url: str, *, of: str = "the receipts'") -> tuple[dict[str, Any], str]:
    """The connection options of libpq, with time limits, and the place without a password.

    Args:
        url: `postgresql://...`.
        of: Whose URL it is, for the error.

    Raises:
        ConfigError: The URL can't be read; it isn't quoted.
    """
    import psycopg
    from psycopg.conninfo import conninfo_to_dict

    try:
        given = conninfo_to_dict(url)
    except psycopg.Error:
        raise ConfigError(
            f"{of} URL can't be read as postgresql://USER@HOST:PORT/NAME; special "
            "characters of a password are written as %XX, or give it in PGPASSWORD"
        ) from None
    limits = {"connect_timeout": _CONNECT_SECONDS, "tcp_user_timeout": _STATEMENT_SECONDS * 1000}
    host, port = given.get("host", "the default host"), given.get("port")
    place = f"PostgreSQL at {host}{f':{port}' if port else ''}"
    return {**limits, "application_name": "prefill-router", **given}, place
