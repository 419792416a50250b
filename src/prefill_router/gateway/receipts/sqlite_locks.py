"""What commits to an SQLite file wait for: each other, as briefly as can be, and no checkpoint.

An answer waits for its receipt. SQLite's own waits for another process's transaction are of 1 ms
and more. Its own checkpoint, which moves the write-ahead log into the file, is part of the commit
that makes the log long enough: one in 250 receipts took 5 ms in place of 0.05.
"""

import sqlite3
import time
from collections.abc import Sequence
from contextlib import closing, suppress
from pathlib import Path
from threading import Event, Thread
from typing import Any, final

BUSY_SECONDS = 5.0
"""How long a transaction waits for those of other processes."""
_AGAIN_SECONDS = 2e-4
_ROWS = 256
"""The rows after which there is a checkpoint."""
_MOST_PAGES = 8192
"""The pages of the log from which on writers wait until it begins anew, which it does by itself
only if nothing was written during a checkpoint."""
_CHECKPOINT_SECONDS = 0.1
"""How long they may wait for readers then; the next attempt is after as many rows again."""


def run_when_free(
    connection: sqlite3.Connection, statement: str, values: Sequence[Any] = ()
) -> sqlite3.Cursor:
    """Run the first statement of a transaction once no other process writes.

    Raises:
        sqlite3.Error: It is refused, or was locked for `BUSY_SECONDS`.
    """
    until = time.monotonic() + BUSY_SECONDS
    while True:
        try:
            return connection.execute(statement, values)
        except sqlite3.OperationalError as error:
            is_busy = error.sqlite_errorcode & 0xFF == sqlite3.SQLITE_BUSY
            if not is_busy or time.monotonic() > until:
                raise
        time.sleep(_AGAIN_SECONDS)


@final
class Checkpoints:
    """The checkpoints of one connection's commits.

    The thread begins when it is first needed, and again if it couldn't go on.

    Args:
        path: The file, absolute.
    """

    def __init__(self, path: Path) -> None:
        self._url, self._rows = f"{path.as_uri()}?mode=rw", 0
        self._due, self._ended = Event(), False
        self._thread: Thread | None = None

    def committed(self, rows: int) -> None:
        """Count rows that were written."""
        self._rows += rows
        if self._rows < _ROWS:
            return
        self._rows = 0
        self._due.set()
        if self._thread is None or not self._thread.is_alive():
            self._thread = Thread(target=self._run, name="checkpoints", daemon=True)
            self._thread.start()

    def close(self) -> None:
        """End the thread, and with it its connection."""
        self._ended = True
        self._due.set()
        if self._thread is not None:
            self._thread.join()

    def _run(self) -> None:
        with (
            suppress(sqlite3.Error),  # the log grows until the thread begins again
            closing(
                sqlite3.connect(self._url, timeout=_CHECKPOINT_SECONDS, uri=True)
            ) as connection,
        ):
            while self._due.wait() and not self._ended:
                self._due.clear()
                _checkpoint(connection)


def _checkpoint(connection: sqlite3.Connection) -> None:
    with suppress(sqlite3.OperationalError):  # such as a full disk, where the next may succeed
        ((_, pages, _),) = connection.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchall()
        if pages > _MOST_PAGES:
            connection.execute("PRAGMA wal_checkpoint(RESTART)").fetchall()
