"""Receipts that are older than is wanted go, a few at a time, so that no write waits for long."""

import logging
import time
from collections.abc import Callable
from typing import final

from prefill_router.gateway.receipts.store import FEEDBACK, RECEIPTS, Store

_DAY = 86_400
_TOGETHER = 256
"""So many rows at most go in one transaction."""
_NEXT, _PAUSE = 60.0, 0.05
"""Seconds between looks, and between transactions while there is more: others write then."""
_log = logging.getLogger(__name__)


@final
class Retention:
    """Deletes old receipts and their feedback, each receipt with its feedback or not at all.

    Args:
        store: Where they are.
        keep_days: For how many days receipts are kept; None for ever.
        clock: Seconds since 1970.

    Attributes:
        deleted: How many receipts went so far.
    """

    def __init__(
        self, store: Store, keep_days: int | None, *, clock: Callable[[], float] = time.time
    ) -> None:
        self._store, self._days, self._clock = store, keep_days, clock
        self._due = time.monotonic()
        self._told = 0
        self.deleted = 0

    def wait(self) -> float | None:
        """Seconds until `work` has something to look at; None for never."""
        return None if self._days is None else max(0.0, self._due - time.monotonic())

    def work(self) -> bool:
        """Delete some that are old, if it is time for that.

        Returns:
            Whether more may be left, for the next time.

        Raises:
            StoreError: That isn't possible now; it is tried again at the next look.
        """
        if self._days is None or time.monotonic() < self._due:
            return False
        self._due = time.monotonic() + _NEXT
        before = self._clock() - self._days * _DAY
        more = self._receipts(before) == _TOGETHER or self._feedback(before) == _TOGETHER
        if more:
            self._due = time.monotonic() + _PAUSE
        elif self.deleted > self._told:
            gone, self._told = self.deleted - self._told, self.deleted
            _log.info("%d receipts older than %d days were deleted", gone, self._days)
        return more

    def _receipts(self, before: float) -> int:
        """Delete some receipts with their feedback; gives how many were found."""
        query = f"SELECT id FROM {RECEIPTS} WHERE at < ? ORDER BY at, id LIMIT {_TOGETHER}"
        ids = [name for (name,) in self._store.select(query, [before])]
        if ids:
            these = f"WHERE id IN ({', '.join('?' * len(ids))})"
            gone = self._store.change(
                [(f"DELETE FROM {table} {these}", ids) for table in (FEEDBACK, RECEIPTS)]
            )
            self.deleted += gone[1]
        return len(ids)

    def _feedback(self, before: float) -> int:
        """Delete old scores of receipts that are gone; gives how many these were.

        A score is never older than its receipt, so one that is too old itself has none any more.
        """
        some = f"SELECT id, source, at FROM {FEEDBACK} WHERE at < ? ORDER BY at LIMIT {_TOGETHER}"
        (gone,) = self._store.change(
            [(f"DELETE FROM {FEEDBACK} WHERE (id, source, at) IN ({some})", [before])]
        )
        return gone
