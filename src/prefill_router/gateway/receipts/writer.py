"""Keeps receipts from an event loop: one thread writes whatever has gathered in one transaction.

Receipts that are older than is wanted go, a few at a time, so that no write waits for long.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from queue import Empty, SimpleQueue
from threading import Event, Thread
from typing import NamedTuple, final

from prefill_router.client import Redaction
from prefill_router.errors import StoreError
from prefill_router.gateway.receipts.rows import Feedback, Row, to_row
from prefill_router.gateway.receipts.store import FEEDBACK, RECEIPTS, DownError, RowError, Store
from prefill_router.gateway.records import Receipt

_log = logging.getLogger(__name__)
_TOGETHER = 512
"""So many rows at most go into one transaction."""
_FIRST_PAUSE, _LONGEST_PAUSE = 0.1, 5.0
"""Seconds between attempts while the database is down; doubled each time."""

_PROMPTS = 2**26
"""So many characters of prompts wait to be written; receipts that come then are kept without."""

Kept = Receipt | Feedback


@final
@dataclass(frozen=True, kw_only=True)
class WriterStats:
    """How the writing goes.

    Attributes:
        kept: Receipts and scores that were written.
        waiting: That are to be written.
        lost: That came to a full queue, that the database takes never, or that were left at the
            end.
        deleted: Receipts that went since they were too old.
        failures: Attempts that failed; what they were to do is tried again.
        last_error_kind: Why the last one failed, in a word or two; empty where none did.
    """

    kept: int
    waiting: int
    lost: int
    deleted: int
    failures: int
    last_error_kind: str


class _QueuedRow(NamedTuple):
    kept: Kept
    prompt: int  # characters
    told: asyncio.Future[bool]
    loop: asyncio.AbstractEventLoop


@final
class ReceiptWriter:
    """Writes receipts to a store, of which it has the only use from now on.

    Args:
        store: Where to.
        wait_seconds: How long `keep` waits at most.
        max_queue: At most so many wait to be written.
        keep_days: Receipts that are older are deleted, between writes; None for none.

    Attributes:
        redaction: Takes the targets' keys out of what is written.
    """

    def __init__(
        self,
        store: Store,
        *,
        wait_seconds: float = 2.0,
        max_queue: int = 10_000,
        keep_days: int | None = None,
    ) -> None:
        self._store, self._wait, self._most = store, wait_seconds, max_queue
        self.redaction = Redaction()
        self._retention = Retention(store, keep_days)
        self._awaited: set[asyncio.Future[bool]] = set()
        self._queue: SimpleQueue[_QueuedRow | None] = SimpleQueue()
        self._stop = Event()
        # Each of these counts is changed by one thread alone.
        self._put = self._refused = self._left = 0
        self._kept = self._dropped = self._failures = 0
        self._prompts_put = self._prompts_gone = 0
        self._closing = self._down = self._away = False
        self._last_error_kind = ""
        self._thread = Thread(target=self._run, name="receipts", daemon=True)
        self._thread.start()

    async def keep(self, kept: Kept) -> bool:
        """Write a receipt or a score, and wait until that is done.

        Returns:
            Whether it is known to be in the database. If the wait was too long, or the database is
            away, it still waits to be written; if the queue is full or closed, it is lost.
        """
        full = self._put - self._kept - self._dropped >= self._most
        if full or self._closing or not self._thread.is_alive():
            self._refused += 1
            return False
        loop = asyncio.get_running_loop()
        told: asyncio.Future[bool] = loop.create_future()
        prompt = kept.prompt if isinstance(kept, Receipt) else None
        texts = prompt if isinstance(prompt, str) else [turn["content"] for turn in prompt or ()]
        size = len(texts) if isinstance(texts, str) else sum(map(len, texts))
        if self._prompts_put - self._prompts_gone + size > _PROMPTS and isinstance(kept, Receipt):
            kept, size = replace(kept, prompt=None), 0
        self._put += 1
        self._prompts_put += size
        self._queue.put(_QueuedRow(kept, size, told, loop))
        if self._away:
            return False
        timer = loop.call_later(self._wait, _tell, [(told, False)])
        self._awaited.add(told)
        try:
            return await told
        finally:
            timer.cancel()
            self._awaited.discard(told)

    @property
    def healthy(self) -> bool:
        """Whether the last attempt to write went well, and more can be made."""
        return self._thread.is_alive() and not self._down

    def stats(self) -> WriterStats:
        """How the writing goes."""
        return WriterStats(
            kept=self._kept,
            waiting=self._put - self._kept - self._dropped - self._left,
            lost=self._refused + self._dropped + self._left,
            deleted=self._retention.deleted,
            failures=self._failures,
            last_error_kind=self._last_error_kind,
        )

    async def close(self, seconds: float = 10.0) -> int:
        """Write what waits, and end.

        Returns:
            How many were left after so many seconds; they are lost.
        """
        if not self._closing:
            self._closing = True
            self._queue.put(None)
        await asyncio.to_thread(self._thread.join, seconds)
        self._stop.set()
        await asyncio.to_thread(self._thread.join, 1.0)
        self._left = self._put - self._kept - self._dropped
        return self._left

    def _run(self) -> None:
        ended = False
        while not ended:
            batch, ended = self._gathered()
            if batch:
                self._write(batch)
            if not ended:
                try:
                    self._retention.work()
                except StoreError as error:
                    self._failed(error)
        self._store.close()

    def _gathered(self) -> tuple[list[_QueuedRow], bool]:
        """What has come since, and whether nothing more will; waits for the first of it.

        Nothing, where old receipts are to be looked for.
        """
        batch: list[_QueuedRow] = []
        try:
            item = self._queue.get(timeout=self._retention.wait())
            while item is not None:
                batch.append(item)
                if len(batch) == _TOGETHER:
                    break
                item = self._queue.get_nowait()
        except Empty:
            return batch, False
        return batch, item is None

    def _failed(self, error: StoreError) -> None:
        self._failures += 1
        self._last_error_kind = error.kind if isinstance(error, DownError) else "unusable"

    def _write(self, batch: Sequence[_QueuedRow]) -> None:
        """Write a batch, however long the database is down."""
        rows = [(item.kept, _row(item.kept, self.redaction)) for item in batch]
        pause = _FIRST_PAUSE
        while not self._stop.is_set():
            try:
                written = self._insert(rows)
            except StoreError as error:
                self._failed(error)
                self._tell(away=self._down, batch=batch)  # the second time: it is no hiccup
                self._down = True
                self._stop.wait(pause)
                pause = min(2 * pause, _LONGEST_PAUSE)
            else:
                self._down = False
                self._tell(away=False, batch=batch)
                self._kept += sum(written)
                self._dropped += len(batch) - sum(written)
                self._prompts_gone += sum(item.prompt for item in batch)
                _wake(batch, written)
                return

    def _tell(self, *, away: bool, batch: Sequence[_QueuedRow]) -> None:
        """Note whether the database is away; where that is new, log it, and let nobody wait."""
        before, self._away = self._away, away
        if away and not before:
            _log.warning(
                "receipts can't be kept (%s); they wait in memory, and no answer waits for them",
                self._last_error_kind,
            )
            for loop in {item.loop for item in batch}:
                _soon(loop, lambda: _tell([(told, False) for told in self._awaited]))
        elif before and not away:
            _log.info("receipts are kept again")

    def _insert(self, rows: Sequence[tuple[Kept, Row | None]]) -> list[bool]:
        """Write all at once, or, if the database refuses one of them, one by one."""
        good = [(kept, row) for kept, row in rows if row is not None]
        try:
            if good:
                self._store.insert(
                    [row for kept, row in good if isinstance(kept, Receipt)],
                    [row for kept, row in good if isinstance(kept, Feedback)],
                )
        except RowError:
            return [len(rows) > 1 and self._insert([one])[0] for one in rows]
        return [row is not None for _, row in rows]


def _row(kept: Kept, redaction: Redaction) -> Row | None:
    """The row of what is kept; None where it can't be written as one."""
    try:
        row = to_row(kept) if isinstance(kept, Receipt) else kept.row()
        return tuple(redaction.known(v) if isinstance(v, str) else v for v in row)
    except (TypeError, ValueError, RecursionError, OverflowError):
        return None


def _wake(batch: Sequence[_QueuedRow], written: Sequence[bool]) -> None:
    """Tell those who wait, with one call of each loop."""
    ends: dict[asyncio.AbstractEventLoop, list[tuple[asyncio.Future[bool], bool]]] = {}
    for item, ok in zip(batch, written, strict=True):
        ends.setdefault(item.loop, []).append((item.told, ok))
    for loop, told in ends.items():
        _soon(loop, _tell, told)


def _soon(loop: asyncio.AbstractEventLoop, call: Callable[..., None], *arguments: object) -> None:
    with suppress(RuntimeError):  # the loop is closed, nobody waits
        loop.call_soon_threadsafe(call, *arguments)


def _tell(ends: Sequence[tuple[asyncio.Future[bool], bool]]) -> None:
    for future, kept in ends:
        if not future.done():
            future.set_result(kept)


_DAY = 86_400
_AT_ONCE = 256
"""So many rows at most go in one transaction."""
_NEXT, _PAUSE = 60.0, 0.05
"""Seconds between looks, and between transactions while there is more: others write then."""


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
        more = self._receipts(before) == _AT_ONCE or self._feedback(before) == _AT_ONCE
        if more:
            self._due = time.monotonic() + _PAUSE
        elif self.deleted > self._told:
            gone, self._told = self.deleted - self._told, self.deleted
            _log.info("%d receipts older than %d days were deleted", gone, self._days)
        return more

    def _receipts(self, before: float) -> int:
        """Delete some receipts with their feedback; gives how many were found."""
        query = f"SELECT id FROM {RECEIPTS} WHERE at < ? ORDER BY at, id LIMIT {_AT_ONCE}"
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
        some = f"SELECT id, source, at FROM {FEEDBACK} WHERE at < ? ORDER BY at LIMIT {_AT_ONCE}"
        (gone,) = self._store.change(
            [(f"DELETE FROM {FEEDBACK} WHERE (id, source, at) IN ({some})", [before])]
        )
        return gone
