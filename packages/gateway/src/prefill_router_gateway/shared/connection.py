"""One connection to the shared database: never blocks the event loop, and never waits long.

A statement that takes too long isn't cancelled, since a lost network answers no cancellation
either: the socket is shut down, so that the statement fails at once.
"""

import asyncio
import os
import socket
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, final

from prefill_router.errors import StoreError, upgrade_advice
from prefill_router.lazy_imports import optional_imports
from prefill_router_gateway.receipts import DownError, postgres_options, unreachable
from prefill_router_gateway.shared import tables

if TYPE_CHECKING:
    import psycopg

Statement = tuple[str, Any]
"""A statement and its values."""
Rows = list[tuple[Any, ...]]


@final
class SharedConnection:
    """A connection to PostgreSQL; once it fails, `open` opens it again.

    Args:
        url: `postgresql://...`.
        seconds: The longest that a statement may take.

    Attributes:
        place: Where the database is, without a password.
        pending: How many calls of `run` haven't ended.

    Raises:
        ConfigError: The URL can't be read.
        MissingExtraError: PostgreSQL needs the extra `postgres`.
    """

    def __init__(self, url: str, *, seconds: float) -> None:
        with optional_imports("shared.url"):
            import psycopg
        self._psycopg, self._seconds = psycopg, seconds
        self._options, self.place = postgres_options(url, of="the shared state's")
        self._connection: psycopg.AsyncConnection[Any] | None = None
        self._turn = asyncio.Lock()
        self.pending = 0

    async def open(self) -> None:
        """Connect, again if need be, and make the tables if there are none.

        Raises:
            DownError: The database can't be reached now.
            StoreError: Its tables have another version.
        """
        async with self._turn:
            await self.close()  # a lost connection may look open until it is used
        connect = self._psycopg.AsyncConnection.connect
        try:
            # prepared at once: planning a statement takes the server longer than running it
            self._connection = await connect(**self._options, prepare_threshold=0, autocommit=True)
        except self._psycopg.Error as error:
            raise unreachable(self.place, error) from None
        # what a crash of the database may lose here is written again, or soon forgotten anyway
        await self.run(("SET synchronous_commit = off", None))
        await self._prepare()

    async def run(self, *statements: Statement, together: bool = False) -> list[Rows]:
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
        task.add_done_callback(self._ended)
        return await asyncio.shield(task)

    async def close(self) -> None:
        """Close the connection."""
        connection, self._connection = self._connection, None
        if connection is not None:
            await connection.close()

    def _ended(self, _: object) -> None:
        self.pending -= 1

    async def _run(self, statements: Sequence[Statement], together: bool) -> list[Rows]:
        async with self._turn:
            connection = self._connection
            if connection is None:
                raise DownError(f"{self.place} isn't connected", kind="not connected")
            later = asyncio.get_running_loop().call_later
            limit = later(self._seconds, _shut_down, connection)
            try:
                if not together:
                    return [await self._one(connection, *each) for each in statements]
                async with connection.transaction():
                    return [await self._one(connection, *each) for each in statements]
            except self._psycopg.Error as error:
                await self.close()
                raise unreachable(self.place, error) from None
            finally:
                limit.cancel()

    async def _one(
        self, connection: "psycopg.AsyncConnection[Any]", statement: str, values: Any
    ) -> Rows:
        cursor = await connection.execute(statement.encode(), values)
        return await cursor.fetchall() if cursor.description is not None else []

    async def _prepare(self) -> None:
        (((exists,),),) = await self.run((tables.EXISTS, None))
        if not exists:
            made = ((statement, None) for statement in tables.CREATE)
            await self.run((tables.LOCK, (tables.TABLES_LOCK,)), *made, together=True)
        (((version,),),) = await self.run((tables.READ_VERSION, None))
        if version != tables.VERSION:
            await self.close()
            raise StoreError(
                f"{self.place} has shared state of version {version}; "
                + upgrade_advice(tables.VERSION)
            )


def _shut_down(connection: "psycopg.AsyncConnection[Any]") -> None:
    if not connection.closed:
        with suppress(OSError), socket.socket(fileno=os.dup(connection.fileno())) as same:
            same.shutdown(socket.SHUT_RDWR)
