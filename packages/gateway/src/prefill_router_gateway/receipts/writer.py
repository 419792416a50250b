"""Receipts as they come: the latest in memory, and a thread that writes all of them.

What came of a decision that others carried out is written into the decision's receipt.
"""

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, replace
from queue import Empty, SimpleQueue
from threading import Event, Thread
from typing import Literal, NamedTuple, final

from prefill_router.database import Database, DownError, RowError, Statement
from prefill_router.endpoints import Redaction
from prefill_router.errors import StoreError
from prefill_router_gateway.receipts.labels import (
    SampleDraft,
    make_learning_tables,
    sample_insert,
)
from prefill_router_gateway.receipts.retention import Retention
from prefill_router_gateway.receipts.rows import COLUMNS, NAMES, Feedback, Row, from_row, to_row
from prefill_router_gateway.receipts.store import RECEIPTS, insert_rows, open_store
from prefill_router_gateway.records import Receipt

_log = logging.getLogger(__name__)
_TOGETHER = 512
"""The most rows that are written in one transaction."""
_SAMPLE_PAUSE, _MOST_SAMPLES = 2e-3, 64
"""Samples are written once no receipt has come for so many seconds, or so many samples wait: what
writes them would hold up an answer whose receipt was just written."""
_FIRST_PAUSE, _LONGEST_PAUSE = 0.1, 5.0
"""Seconds between attempts while the database is down; doubled each time."""

_PROMPTS = 2**26
"""The most characters of prompts and samples in the queue; beyond it, receipts are kept without."""

Record = Receipt | Feedback


@final
@dataclass(frozen=True, kw_only=True)
class WriterStats:
    """The state of the writer.

    Attributes:
        written: Receipts and scores in the database.
        waiting: Receipts and scores in the queue.
        lost: Receipts and scores that were lost: the queue was full, the database rejected them,
            or they were unwritten at the end.
        deleted: Receipts that were deleted after the retention period.
        failures: Failed attempts, which are retried.
        last_error_kind: Why the last attempt that failed did, in a word or two; empty if none did.
        samples: Sampled requests that were written.
        samples_left_out: Sampled requests that weren't: the answer failed, was broken off, was too
            long or more than text, or the database rejected them.
        samples_waiting: Sampled requests that aren't written yet, but their receipts are.
    """

    written: int
    waiting: int
    lost: int
    deleted: int
    failures: int
    last_error_kind: str
    samples: int
    samples_left_out: int
    samples_waiting: int


class _QueuedRow(NamedTuple):
    record: Record
    sample: SampleDraft | None
    prompt: int  # characters, of the sample too
    result: asyncio.Future[bool]  # whether it was written
    loop: asyncio.AbstractEventLoop


class _PreparedRow(NamedTuple):
    record: Record
    row: Row | None


@final
class ReceiptWriter:
    """Writes receipts to a store, which nothing else may use from then on.

    Args:
        store: The database.
        wait_seconds: The longest time that `keep` waits.
        max_queue: The most receipts and scores in the queue.
        keep_days: The retention period in days; None keeps receipts for ever.
        learning_days: The same for sampled requests; None keeps them as long as receipts.

    Attributes:
        redaction: Removes the targets' keys from what is written.
    """

    def __init__(
        self,
        store: Database,
        *,
        wait_seconds: float = 2.0,
        max_queue: int = 10_000,
        keep_days: int | None = None,
        learning_days: int | None = None,
    ) -> None:
        self._store, self._wait, self._most = store, wait_seconds, max_queue
        self.redaction = Redaction()
        self._retention = Retention(store, keep_days, learning_days)
        self._awaited: set[asyncio.Future[bool]] = set()
        self._queue: SimpleQueue[_QueuedRow | None] = SimpleQueue()
        self._unsampled: list[_QueuedRow] = []  # their receipts are written, their samples aren't
        self._stop = Event()
        # Each of these counts is changed by only one thread.
        self._put = self._refused = self._left = 0
        self._written = self._dropped = self._failures = 0
        self._prompts_put = self._prompts_gone = 0
        self._samples_due = self._samples = self._samples_out = 0
        self._closing = self._down = self._away = self._has_tables = False
        self._last_error_kind = ""
        self._thread = Thread(target=self._run, name="receipts", daemon=True)
        self._thread.start()

    async def keep(self, record: Record, sample: SampleDraft | None = None) -> bool:
        """Write a receipt or a score, and wait until it is written.

        Args:
            record: The receipt or score.
            sample: The receipt's request, if it was sampled; it is written soon, without waiting.

        Returns:
            Whether it is known to be in the database. After `wait_seconds`, or while the database
            is unavailable, it stays in the queue; if the queue is full or closed, it is lost.
        """
        full = self._put - self._written - self._dropped >= self._most
        if full or self._closing or not self._thread.is_alive():
            self._refused += 1
            return False
        loop = asyncio.get_running_loop()
        result: asyncio.Future[bool] = loop.create_future()
        prompt = record.prompt if isinstance(record, Receipt) else None
        texts = prompt if isinstance(prompt, str) else [turn["content"] for turn in prompt or ()]
        size = len(texts) if isinstance(texts, str) else sum(map(len, texts))
        size += 0 if sample is None else sample.length
        if self._prompts_put - self._prompts_gone + size > _PROMPTS and isinstance(record, Receipt):
            record, sample, size = replace(record, prompt=None), None, 0
        self._put += 1
        self._prompts_put += size
        self._queue.put(_QueuedRow(record, sample, size, result, loop))
        if self._away:
            return False
        timer = loop.call_later(self._wait, _settle, [(result, False)])
        self._awaited.add(result)
        try:
            return await result
        finally:
            timer.cancel()
            self._awaited.discard(result)

    @property
    def healthy(self) -> bool:
        """Whether the last attempt to write succeeded and the thread is alive."""
        return self._thread.is_alive() and not self._down

    def stats(self) -> WriterStats:
        """The state of the writer."""
        return WriterStats(
            written=self._written,
            waiting=self._put - self._written - self._dropped - self._left,
            lost=self._refused + self._dropped + self._left,
            deleted=self._retention.deleted,
            failures=self._failures,
            last_error_kind=self._last_error_kind,
            samples=self._samples,
            samples_left_out=self._samples_out,
            samples_waiting=self._samples_due - self._samples - self._samples_out,
        )

    async def close(self, seconds: float = 10.0) -> int:
        """Write what is queued, and end.

        Returns:
            The number of rows that were left after this many seconds; they are lost.
        """
        if not self._closing:
            self._closing = True
            self._queue.put(None)
        await asyncio.to_thread(self._thread.join, seconds)
        self._stop.set()
        await asyncio.to_thread(self._thread.join, 1.0)
        self._left = self._put - self._written - self._dropped
        return self._left

    def _run(self) -> None:
        ended = False
        while not ended:
            batch, ended = self._gather_rows()
            if batch:
                self._write_batch(batch)
            if ended or not batch or len(self._unsampled) >= _MOST_SAMPLES:
                self._write_samples()
            if not ended:
                try:
                    self._retention.work()
                except StoreError as error:
                    self._count_failure(error)
        self._store.close()

    def _gather_rows(self) -> tuple[list[_QueuedRow], bool]:
        """Wait for queued rows and return them, and whether the queue is closed.

        Returns no rows when it is time for samples, or to look for old receipts.
        """
        batch: list[_QueuedRow] = []
        pause = self._retention.wait()
        if self._unsampled:
            pause = _SAMPLE_PAUSE if pause is None else min(pause, _SAMPLE_PAUSE)
        try:
            item = self._queue.get(timeout=pause)
            while item is not None:
                batch.append(item)
                if len(batch) == _TOGETHER:
                    break
                item = self._queue.get_nowait()
        except Empty:
            return batch, False
        return batch, item is None

    def _count_failure(self, error: StoreError) -> None:
        self._failures += 1
        self._last_error_kind = error.kind if isinstance(error, DownError) else "unusable"

    def _write_batch(self, batch: Sequence[_QueuedRow]) -> None:
        """Write a batch, retrying as long as the database is down."""
        rows = [_PreparedRow(item.record, _make_row(item.record, self.redaction)) for item in batch]
        pause = _FIRST_PAUSE
        while not self._stop.is_set():
            try:
                written = self._insert_rows(rows)
            except StoreError as error:
                self._count_failure(error)
                self._report_state(away=self._down, batch=batch)  # only from the second failure on
                self._down = True
                self._stop.wait(pause)
                pause = min(2 * pause, _LONGEST_PAUSE)
            else:
                self._down = False
                self._report_state(away=False, batch=batch)
                self._written += sum(written)
                self._dropped += len(batch) - sum(written)
                with_samples = [item for item in batch if item.sample is not None]
                self._samples_due += len(with_samples)
                self._unsampled += with_samples
                self._prompts_gone += sum(item.prompt for item in batch if item.sample is None)
                _give_results(batch, written)
                return

    def _report_state(self, *, away: bool, batch: Sequence[_QueuedRow]) -> None:
        """Record whether the database is unavailable; log changes, and release waiting answers."""
        before, self._away = self._away, away
        if away and not before:
            _log.warning(
                "receipts can't be written (%s); they are queued in memory, and answers don't wait",
                self._last_error_kind,
            )
            for loop in {item.loop for item in batch}:
                _call_soon(loop, lambda: _settle([(result, False) for result in self._awaited]))
        elif before and not away:
            _log.info("receipts are written again")

    def _insert_rows(self, rows: Sequence[_PreparedRow]) -> list[bool]:
        """Write all rows at once, or one by one if the database rejects one."""
        good = [item for item in rows if item.row is not None]
        try:
            if good:
                insert_rows(
                    self._store,
                    [item.row for item in good if item.row and isinstance(item.record, Receipt)],
                    [item.row for item in good if item.row and isinstance(item.record, Feedback)],
                )
        except RowError:
            return [len(rows) > 1 and self._insert_rows([row])[0] for row in rows]
        return [item.row is not None for item in rows]

    def _write_samples(self) -> None:
        """Write the sampled requests whose receipts were written, as far as they can be."""
        rows, self._unsampled = self._unsampled, []
        statements = [
            _make_sample_insert(row.sample, self.redaction)
            for row in rows
            if row.sample is not None
        ]
        count = self._insert_samples(
            [statement for statement in statements if statement is not None]
        )
        self._samples += count
        self._samples_out += len(rows) - count
        self._prompts_gone += sum(row.prompt for row in rows)

    def _insert_samples(self, statements: Sequence[Statement], *, again: bool = True) -> int:
        """Write samples, making their tables if need be; returns how many were written."""
        if not statements:
            return 0
        try:
            if not self._has_tables:
                make_learning_tables(self._store)
                self._has_tables = True
            return sum(self._store.change(statements))
        except RowError:
            return sum(map(self._insert_samples, zip(statements))) if statements[1:] else 0
        except StoreError as error:
            self._has_tables = False  # another file may stand there now
            if again:
                return self._insert_samples(statements, again=False)
            _log.warning("sampled requests can't be kept: %s", error)
            return 0


def _make_row(record: Record, redaction: Redaction) -> Row | None:
    """The row of a receipt or score; None where it can't be converted."""
    try:
        row = to_row(record) if isinstance(record, Receipt) else record.row()
        return tuple(redaction.redact_known(v) if isinstance(v, str) else v for v in row)
    except (TypeError, ValueError, RecursionError, OverflowError):
        return None


def _make_sample_insert(draft: SampleDraft, redaction: Redaction) -> Statement | None:
    """The statement that writes a sampled request; None where it can't be kept."""
    try:
        sample = draft.sample()
        return None if sample is None else sample_insert(sample, redact=redaction.redact_known)
    except (TypeError, ValueError, RecursionError):
        return None


def _give_results(batch: Sequence[_QueuedRow], results_of_rows: Sequence[bool]) -> None:
    """Give the results to all waiters, with one call per loop."""
    ends: dict[asyncio.AbstractEventLoop, list[tuple[asyncio.Future[bool], bool]]] = {}
    for item, ok in zip(batch, results_of_rows, strict=True):
        ends.setdefault(item.loop, []).append((item.result, ok))
    for loop, results in ends.items():
        _call_soon(loop, _settle, results)


def _call_soon(
    loop: asyncio.AbstractEventLoop, call: Callable[..., None], *arguments: object
) -> None:
    with suppress(RuntimeError):  # the loop is closed, so nothing waits
        loop.call_soon_threadsafe(call, *arguments)


def _settle(ends: Sequence[tuple[asyncio.Future[bool], bool]]) -> None:
    for future, is_written in ends:
        if not future.done():
            future.set_result(is_written)


_FIXED = ("id", "prompt")
"""Columns that a report doesn't touch, so that a text that is being purged doesn't come back."""
_UPDATED = [place for place, column in enumerate(COLUMNS) if column.name not in _FIXED]
_UPDATE = (
    f"UPDATE {RECEIPTS} SET {', '.join(f'{NAMES[place]} = ?' for place in _UPDATED)} "
    "WHERE id = ? AND outcome = 'routed'"
)


def report_outcome(
    url: str, decision: str, reported: Callable[[Receipt], Receipt], *, key: str | None = None
) -> Receipt | Literal["unknown", "known"]:
    """Write the outcome of a request that was only decided; the first report holds.

    Args:
        url: See `open_store`.
        decision: The decision's id.
        reported: Adds the outcome to the receipt.
        key: The name of the key that the decision must belong to; None for any.

    Returns:
        The receipt with its outcome; `unknown` where there is none, and `known` where it has an
        outcome already, by an earlier report or since the gateway called the target itself.

    Raises:
        StoreError: The database can't be read or changed now, or the receipt is damaged.
    """
    owned, values = ("", [decision]) if key is None else (" AND client_key = ?", [decision, key])
    query = f"SELECT {', '.join(NAMES)} FROM {RECEIPTS} WHERE id = ?{owned}"
    with closing(open_store(url)) as store:
        rows = store.select(query, values)
        if not rows:
            return "unknown"
        before = from_row(rows[0])
        if before.outcome.kind != "routed":
            return "known"
        after = reported(before)
        row = to_row(after)
        (changed,) = store.change([(_UPDATE, [*(row[place] for place in _UPDATED), decision])])
        return after if changed else "known"


_MOST_RECENT = 2000
_HOUR, _MINUTE = 3600, 60
_BAD = ("failed", "cut")


@final
@dataclass(slots=True)
class MinuteCounts:
    """The requests of one minute.

    Attributes:
        number: The minute, counted since 1970.
        requests: The number of requests.
        failed: Requests without a complete answer, not because of the client.
        fallbacks: Requests decided without a forecast.
        cost: US dollars, as far as known.
    """

    number: int
    requests: int = 0
    failed: int = 0
    fallbacks: int = 0
    cost: float = 0.0


@final
class RecentRequests:
    """The latest receipts, the newest last, and counts of the last hour by minute."""

    def __init__(self) -> None:
        self._recent: deque[tuple[int, Receipt]] = deque(maxlen=_MOST_RECENT)
        self._minutes: deque[MinuteCounts] = deque()
        self._number = 0
        self._process = f"{time.time_ns():x}"

    def add(self, receipt: Receipt) -> None:
        """Add a request that ended."""
        self._number += 1
        self._recent.append((self._number, receipt))
        minute = int(receipt.at // _MINUTE)
        if not self._minutes or self._minutes[-1].number < minute:
            self._minutes.append(MinuteCounts(minute))
            while self._minutes[0].number <= minute - _HOUR // _MINUTE:
                self._minutes.popleft()
        counts = self._minutes[-1]  # a request may have arrived before one that ended earlier
        counts.requests += 1
        counts.failed += receipt.outcome.kind in _BAD
        counts.fallbacks += receipt.choice.fallback is not None
        counts.cost += receipt.cost or 0.0

    def replace(self, receipt: Receipt) -> None:
        """Take the outcome of a request that was only decided."""
        entries = enumerate(self._recent)
        place = next((p for p, (_, r) in entries if r.choice.id == receipt.choice.id), None)
        if place is not None:
            self._recent[place] = (self._recent[place][0], receipt)
        number = int(receipt.at // _MINUTE)
        for minute in (m for m in self._minutes if m.number == number):
            minute.failed += receipt.outcome.kind in _BAD
            minute.cost += receipt.cost or 0.0

    def fill(self, receipts: Iterable[Receipt]) -> None:
        """Add stored receipts, oldest first."""
        for receipt in receipts:
            self.add(receipt)

    @property
    def cursor(self) -> str:
        """A cursor to the current end, valid in this process alone."""
        return f"{self._process}-{self._number}"

    def since(
        self, cursor: str | None, limit: int, *, selects: Callable[[Receipt], bool] | None = None
    ) -> list[Receipt]:
        """The requests that ended since a cursor, or the latest if it is unknown; newest first.

        Args:
            cursor: An earlier value of `cursor`.
            limit: The most receipts.
            selects: Selects receipts; None for all.
        """
        process, _, place = (cursor or "").partition("-")
        is_current = process == self._process and place.isascii() and place.isdigit()
        after = int(place) if is_current else 0
        receipts: list[Receipt] = []
        for number, receipt in reversed(self._recent):
            if number <= after or len(receipts) == limit:
                break
            if selects is None or selects(receipt):
                receipts.append(receipt)
        return receipts

    def find(self, name: str) -> Receipt | None:
        """The receipt of a decision; None if it isn't among the latest."""
        return next((r for _, r in reversed(self._recent) if r.choice.id == name), None)

    def all(self) -> list[Receipt]:
        """All remembered receipts, oldest first."""
        return [receipt for _, receipt in self._recent]

    def last_hour(self) -> tuple[float, list[Receipt]]:
        """The time since which all receipts are remembered, and the last hour's, oldest first."""
        since = time.time() - _HOUR
        if len(self._recent) == _MOST_RECENT:
            since = max(since, self._recent[0][1].at)
        return since, [receipt for _, receipt in self._recent if receipt.at >= since]

    def minutes(self) -> list[MinuteCounts]:
        """The last hour, minute by minute; those without a request are left out."""
        since = int(time.time() // _MINUTE) - _HOUR // _MINUTE
        return [minute for minute in self._minutes if minute.number > since]

    def requests_last_hour(self) -> int:
        """The number of requests in the last hour, to the minute."""
        return sum(minute.requests for minute in self.minutes())
