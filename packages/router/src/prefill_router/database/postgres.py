"""PostgreSQL with psycopg: one connection for threads, and one for an event loop.

Both have the same options, time limits and errors. Neither can stand in for the other. These are
the times of a statement of one row. From a loop that is busy half of the time, the loop's
connection takes 0.8 ms. The thread's takes 3.5 ms, since it has to get the GIL from the loop. From
a thread, the thread's connection takes 0.4 ms, and the loop's 1.2 ms. They also fail differently: a
thread connects again on its next use, and a server's requests go on without the database until
`open` succeeds.

No message of libpq is put into an error or a log, since it may quote the password. Errors give the
reason in our own words.
"""

import asyncio
import os
import socket
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, final

from prefill_router.database.base import (
    ADVICE,
    Database,
    DownError,
    Prepare,
    RowError,
    Rows,
    Statement,
    T,
    fetch_rows,
)
from prefill_router.errors import ConfigError, StoreError
from prefill_router.lazy_imports import optional_imports

if TYPE_CHECKING:
    import psycopg

PostgresStatement = tuple[str, Any]
"""A statement for PostgreSQL alone, which may use its operators with a `?`, and its values as
psycopg takes them: a tuple for `%s`, or a mapping for `%(name)s`."""
_CONNECT_SECONDS, _STATEMENT_SECONDS = 5, 15
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
class _Server:
    """Where a database is, and how to connect to it.

    Args:
        url: `postgresql://...`.
        of: Whose URL it is, such as `the receipts'`; for errors.

    Attributes:
        psycopg: The driver.
        options: The options of libpq, with time limits.
        place: The place, without a password.

    Raises:
        ConfigError: The URL can't be read; it isn't quoted.
        MissingExtraError: The extra `postgres` isn't installed.
    """

    def __init__(self, url: str, *, of: str) -> None:
        with optional_imports(f"{of} URL of PostgreSQL"):
            import psycopg
            from psycopg.conninfo import conninfo_to_dict
        self.psycopg = psycopg
        try:
            options = conninfo_to_dict(url)
        except psycopg.Error:
            raise ConfigError(
                f"{of} URL can't be read as postgresql://USER@HOST:PORT/NAME; special "
                "characters of a password are written as %XX, or give it in PGPASSWORD"
            ) from None
        host, port = options.get("host", "the default host"), options.get("port")
        self.place = f"PostgreSQL at {host}{f':{port}' if port else ''}"
        self.options: dict[str, Any] = {
            "connect_timeout": _CONNECT_SECONDS,
            "tcp_user_timeout": _STATEMENT_SECONDS * 1000,
            "application_name": "prefill-router",
            **options,
        }

    def down(self, error: "psycopg.Error") -> DownError:
        """The error to raise where the database can't be used now; it quotes nothing of libpq."""
        message = str(error)
        reasons = (words for part, words in _REASONS.items() if part in message)
        kind = next(reasons, error.sqlstate or type(error).__name__)
        return DownError(f"{self.place} can't be used now: {kind}; {ADVICE}", kind=kind)


@final
class PostgresDatabase(Database):
    """A PostgreSQL database; a lost connection is opened again on the next use.

    Args:
        url: `postgresql://...`.
        of: Whose URL it is, for errors.
        prepare: Makes or checks its tables; called once.

    Raises:
        ConfigError: The URL can't be read.
        MissingExtraError: The extra `postgres` isn't installed.
        DownError: The database can't be used now.
    """

    dialect = "postgresql"
    tables_query = "SELECT name FROM unnest(ARRAY[{}]) AS name WHERE to_regclass(name) IS NOT NULL"

    def __init__(self, url: str, *, of: str, prepare: Prepare | None = None) -> None:
        super().__init__()
        self._server = _Server(url, of=of)
        self.place, self._prepare = self._server.place, prepare
        self._connection: psycopg.Connection | None = None
        self._connect()

    def close(self) -> None:
        """Close the connection."""
        if self._connection is not None:
            self._connection.close()
        self._connection = None

    def _connect(self) -> "psycopg.Connection":
        if self._connection is not None and not self._connection.closed:
            return self._connection
        psycopg = self._server.psycopg
        try:
            # No prepared statements on the server: connection poolers mix them up.
            self._connection = psycopg.connect(**self._server.options, prepare_threshold=None)
            run = self._connection.execute
            run(f"SET statement_timeout = '{_STATEMENT_SECONDS}s'".encode())
            if self._prepare is not None:
                self._prepare(self, lambda statement: fetch_rows(run(statement.encode())))
            self._connection.commit()
        except psycopg.Error as error:
            self.close()  # otherwise it would be reused as if it were ready
            raise self._server.down(error) from None
        except StoreError:
            self.close()
            raise
        self._prepare = None
        return self._connection

    def _run(self, statements: Sequence[Statement], read: Callable[[Any], T]) -> list[T]:
        psycopg = self._server.psycopg
        with self._turn:
            connection = self._connect()
            try:
                results = [
                    read(connection.execute(query.replace("?", "%s").encode(), tuple(values)))
                    for query, values in statements
                ]
                connection.commit()
            except psycopg.Error as error:
                try:
                    connection.rollback()
                except psycopg.Error:
                    self.close()
                if isinstance(error, psycopg.DataError | psycopg.IntegrityError):
                    words = f"{self.place} rejected a row ({type(error).__name__})"
                    raise RowError(words) from None
                raise self._server.down(error) from None
        return results


@final
class AsyncPostgresDatabase:
    """A PostgreSQL database for an event loop: never blocks it, and never waits long.

    A statement that takes too long isn't cancelled, since a lost network answers no cancellation
    either: the socket is shut down, so that the statement fails at once. Once the connection fails,
    `open` opens it again.

    Args:
        url: `postgresql://...`.
        of: Whose URL it is, for errors.
        seconds: The longest that a statement may take.

    Attributes:
        place: Where the database is, without a password.
        pending: How many calls of `run` haven't ended.

    Raises:
        ConfigError: The URL can't be read.
        MissingExtraError: The extra `postgres` isn't installed.
    """

    def __init__(self, url: str, *, of: str, seconds: float) -> None:
        self._server, self._seconds = _Server(url, of=of), seconds
        self.place = self._server.place
        self._connection: psycopg.AsyncConnection[Any] | None = None
        self._turn = asyncio.Lock()
        self.pending = 0

    async def open(self) -> None:
        """Connect, again if need be.

        Raises:
            DownError: The database can't be reached now.
        """
        async with self._turn:
            await self.close()  # a lost connection may look open until it is used
        psycopg = self._server.psycopg
        try:
            # prepared at once: planning a statement takes the server longer than running it
            self._connection = await psycopg.AsyncConnection.connect(
                **self._server.options, prepare_threshold=0, autocommit=True
            )
        except psycopg.Error as error:
            raise self._server.down(error) from None

    async def run(self, *statements: PostgresStatement, together: bool = False) -> list[Rows]:
        """Run statements one after another, and return the rows of each.

        Args:
            statements: Each with its values.
            together: Whether all or none take effect.

        Raises:
            DownError: The database can't be used now.
        """
        # in a task of its own, since one that is cancelled would wait for the database
        task = asyncio.create_task(self._run(statements, together))
        self.pending += 1
        task.add_done_callback(self._note_end)
        return await asyncio.shield(task)

    async def close(self) -> None:
        """Close the connection."""
        connection, self._connection = self._connection, None
        if connection is not None:
            await connection.close()

    def _note_end(self, _: object) -> None:
        self.pending -= 1

    async def _run(self, statements: Sequence[PostgresStatement], together: bool) -> list[Rows]:
        async with self._turn:
            connection = self._connection
            if connection is None:
                raise DownError(f"{self.place} isn't connected", kind="not connected")
            later = asyncio.get_running_loop().call_later
            limit = later(self._seconds, _shut_down, connection)
            try:
                if not together:
                    return [await _fetch_rows(connection, *each) for each in statements]
                async with connection.transaction():
                    return [await _fetch_rows(connection, *each) for each in statements]
            except self._server.psycopg.Error as error:
                await self.close()
                raise self._server.down(error) from None
            finally:
                limit.cancel()


async def _fetch_rows(
    connection: "psycopg.AsyncConnection[Any]", statement: str, values: Any
) -> Rows:
    cursor = await connection.execute(statement.encode(), values)
    return await cursor.fetchall() if cursor.description is not None else []


def _shut_down(connection: "psycopg.AsyncConnection[Any]") -> None:
    if not connection.closed:
        with suppress(OSError), socket.socket(fileno=os.dup(connection.fileno())) as same:
            same.shutdown(socket.SHUT_RDWR)
