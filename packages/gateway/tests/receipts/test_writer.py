"""The writer: its answers to callers, and no loss that can be avoided."""

import asyncio
import json
import sqlite3
import threading
import time
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from packages.gateway.tests.receipts.example_receipts import (
    example_receipt,
    receipt_id,
    write_receipts,
)
from prefill_router.database import Database, DownError, RowError, Statement
from prefill_router_gateway.receipts import (
    Feedback,
    ReceiptWriter,
    insert_rows,
    latest_feedback,
    open_store,
    read_receipts,
    writer as writer_module,
)
from prefill_router_gateway.receipts.rows import COLUMNS, to_row
from prefill_router_gateway.settings import ReceiptSettings

PROMPT = [column.name for column in COLUMNS].index("prompt")


class PausedStore(Database):
    """Keeps rows in memory; writes while `may_write` is set, and first fails `failures` times."""

    dialect = "sqlite"
    tables_query = "{}"
    place = "memory"

    def __init__(self, *, failures: int = 0, never: str = "") -> None:
        super().__init__()
        self.may_write = threading.Event()
        self.may_write.set()
        self.started = threading.Event()
        self.failures, self.never = failures, never
        self.batches: list[list[str]] = []
        self.prompts: list[Any] = []
        self.closed = False

    def change(self, statements: Sequence[Statement]) -> list[int]:
        self.started.set()
        self.may_write.wait()
        if self.failures:
            self.failures -= 1
            raise DownError("down", kind="out for lunch")
        rows = [row for statement in statements for row in split_rows(*statement)]
        ids = [str(row[0]) for row in rows]
        if self.never in ids:
            raise RowError("never")
        self.batches.append(ids)
        receipts = (row for row in rows if len(row) == len(COLUMNS))
        self.prompts += [json.loads(row[PROMPT] or "null") for row in receipts]
        return [1] * len(statements)

    def _run(self, statements: Sequence[Any], read: Any) -> list[Any]:
        raise AssertionError(f"only rows are inserted here, and not {statements} for {read}")

    def close(self) -> None:
        self.closed = True


def split_rows(query: str, values: Sequence[Any]) -> list[Sequence[Any]]:
    """The rows of an INSERT."""
    width = query.partition(") VALUES")[0].count(",") + 1
    return [values[start : start + width] for start in range(0, len(values), width)]


def receipt_ids(*numbers: int) -> list[str]:
    return [receipt_id(n) for n in numbers]


def test_what_has_gathered_is_written_together_in_order() -> None:
    store = PausedStore()

    async def work() -> None:
        writer = ReceiptWriter(store, wait_seconds=60)
        store.may_write.clear()
        tasks = [asyncio.create_task(writer.keep(example_receipt(0)))]
        await asyncio.to_thread(store.started.wait)
        tasks += [asyncio.create_task(writer.keep(example_receipt(n))) for n in range(1, 40)]
        await asyncio.sleep(0)
        assert writer.stats().waiting == 40
        store.may_write.set()
        assert all(await asyncio.gather(*tasks))
        assert (writer.stats().written, writer.stats().waiting) == (40, 0)
        assert await writer.close() == 0
        assert not await writer.keep(example_receipt(41))  # after the end
        assert writer.stats().lost == 1

    asyncio.run(work())
    assert store.batches == [receipt_ids(0), receipt_ids(*range(1, 40))]
    assert store.closed


def test_nobody_waits_longer_than_they_want_and_nothing_is_lost() -> None:
    store = PausedStore()

    async def work() -> None:
        writer = ReceiptWriter(store, wait_seconds=0.001)
        store.may_write.clear()
        assert not await writer.keep(example_receipt(1))
        assert (writer.stats().written, writer.stats().waiting, writer.stats().lost) == (0, 1, 0)
        store.may_write.set()
        assert await writer.close() == 0
        assert writer.stats().written == 1

    asyncio.run(work())
    assert store.batches == [receipt_ids(1)]


def test_a_client_that_stops_waiting_changes_nothing() -> None:
    store = PausedStore()

    async def work() -> None:
        writer = ReceiptWriter(store, wait_seconds=60)
        store.may_write.clear()
        task = asyncio.create_task(writer.keep(example_receipt(1)))
        await asyncio.to_thread(store.started.wait)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        store.may_write.set()
        assert await writer.keep(example_receipt(2))
        await writer.close()

    asyncio.run(work())
    assert [name for batch in store.batches for name in batch] == receipt_ids(1, 2)


def test_a_full_queue_loses_what_comes_and_counts_it() -> None:
    store = PausedStore()

    async def work() -> None:
        writer = ReceiptWriter(store, wait_seconds=60, max_queue=2)
        store.may_write.clear()
        tasks = [asyncio.create_task(writer.keep(example_receipt(n))) for n in range(5)]
        await asyncio.to_thread(store.started.wait)
        assert [task.done() for task in tasks] == [False, False, True, True, True]
        assert (writer.stats().waiting, writer.stats().lost) == (2, 3)
        store.may_write.set()
        assert await asyncio.gather(*tasks) == [True, True, False, False, False]
        assert await writer.keep(example_receipt(5))
        await writer.close()

    asyncio.run(work())
    assert sorted(name for batch in store.batches for name in batch) == receipt_ids(0, 1, 5)


def test_prompts_that_wait_have_a_limit_and_receipts_are_kept_without(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(writer_module, "_PROMPTS", 10)
    store = PausedStore()
    turns = [{"role": "user", "content": "eight of"}]

    async def work() -> None:
        writer = ReceiptWriter(store, wait_seconds=60)
        store.may_write.clear()
        prompts = ["seven c", "four", "and", "longer than ten"]
        receipts = [example_receipt(n, prompt=prompt) for n, prompt in enumerate(prompts)]
        tasks = [asyncio.create_task(writer.keep(receipt)) for receipt in receipts]
        await asyncio.to_thread(store.started.wait)
        store.may_write.set()
        assert all(await asyncio.gather(*tasks))
        assert await writer.keep(example_receipt(4, prompt=turns))  # the queue is empty again
        await writer.close()

    asyncio.run(work())
    assert store.prompts == ["seven c", None, "and", None, turns]


def test_a_database_that_is_down_is_asked_again() -> None:
    store = PausedStore(failures=1)

    async def work() -> None:
        writer = ReceiptWriter(store, wait_seconds=60)
        assert await writer.keep(example_receipt(1))
        stats = writer.stats()
        assert (stats.written, stats.failures, stats.last_error_kind) == (1, 1, "out for lunch")
        assert writer.healthy
        await writer.close()
        assert not writer.healthy

    asyncio.run(work())
    assert store.batches == [receipt_ids(1)]


def test_nobody_waits_for_a_database_that_is_known_to_be_away(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("INFO", "prefill_router_gateway")
    store = PausedStore(failures=10**9)

    async def work() -> None:
        writer = ReceiptWriter(store, wait_seconds=10**6)
        waiting = [asyncio.create_task(writer.keep(example_receipt(n))) for n in range(3)]
        assert not any(await asyncio.gather(*waiting))
        for n in range(3, 6):
            assert not await writer.keep(example_receipt(n))
        assert (writer.healthy, writer.stats().waiting) == (False, 6)
        store.failures = 0
        while writer.stats().waiting:
            await asyncio.sleep(0.001)
        assert await writer.keep(example_receipt(6))
        await writer.close()

    asyncio.run(work())
    assert [name for batch in store.batches for name in batch] == receipt_ids(*range(7))
    loss, recovery = (record.message for record in caplog.records)
    assert loss.startswith("receipts can't be written (out for lunch)")
    assert recovery == "receipts are written again"


def test_what_is_left_at_the_end_is_counted() -> None:
    store = PausedStore(failures=10**9)

    async def work() -> None:
        writer = ReceiptWriter(store, wait_seconds=0.001)
        for n in range(3):
            assert not await writer.keep(example_receipt(n))
        assert not writer.healthy
        assert await writer.close(0.01) == 3
        assert (writer.stats().waiting, writer.stats().lost) == (0, 3)

    asyncio.run(work())
    assert store.batches == []


def test_a_row_that_is_never_taken_is_lost_alone() -> None:
    store = PausedStore(never=receipt_id(2))
    loop: dict[str, Any] = {}
    loop["itself"] = loop

    async def work() -> None:
        writer = ReceiptWriter(store, wait_seconds=60)
        store.may_write.clear()
        first = asyncio.create_task(writer.keep(example_receipt(0)))
        await asyncio.to_thread(store.started.wait)
        others = [example_receipt(1), example_receipt(2), example_receipt(3, details=loop)]
        score = Feedback(id=receipt_id(1), score=1, at=1)
        tasks = [asyncio.create_task(writer.keep(item)) for item in (*others, score)]
        await asyncio.sleep(0)
        store.may_write.set()
        assert await first
        assert await asyncio.gather(*tasks) == [True, False, False, True]
        assert (writer.stats().written, writer.stats().lost, writer.stats().waiting) == (3, 2, 0)
        await writer.close()

    asyncio.run(work())
    assert store.batches == [
        receipt_ids(0),
        receipt_ids(1),
        receipt_ids(1),
    ]  # a receipt, and its score


class BrokenStore(PausedStore):
    def change(self, statements: Sequence[Statement]) -> list[int]:
        raise ZeroDivisionError(len(statements))


# The test is about a thread that ends with an error.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_writer_that_broke_says_so_and_holds_nobody_up() -> None:
    async def work() -> None:
        writer = ReceiptWriter(BrokenStore(), wait_seconds=0.001)
        assert not await writer.keep(example_receipt(1))
        while writer.healthy:
            await asyncio.sleep(0.001)
        assert not await writer.keep(example_receipt(2))
        assert writer.stats().lost == 1
        assert await writer.close() == 1
        assert writer.stats().lost == 2

    asyncio.run(work())


def test_a_locked_file_is_waited_for(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/receipts.sqlite"

    async def work() -> None:
        writer = ReceiptWriter(open_store(url), wait_seconds=60)
        assert await writer.keep(example_receipt(0))
        with closing(sqlite3.connect(tmp_path / "receipts.sqlite", isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")
            tasks = [asyncio.create_task(writer.keep(example_receipt(n))) for n in (1, 2)]
            await asyncio.sleep(0.05)
            assert not any(task.done() for task in tasks)
            other.execute("ROLLBACK")
            assert await asyncio.gather(*tasks) == [True, True]
            assert writer.stats().failures == 0
        assert await writer.keep(Feedback(id=receipt_id(1), score=0.5, at=1))
        await writer.close()

    asyncio.run(work())
    assert [r.choice.id for r in read_receipts(url)] == receipt_ids(0, 1, 2)
    assert latest_feedback(url)[receipt_id(1)][0].score == 0.5


def test_a_file_that_stays_locked_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("prefill_router_gateway.receipts.store.BUSY_SECONDS", 0.05)
    store = open_store(f"sqlite:///{tmp_path}/receipts.sqlite")
    with closing(sqlite3.connect(tmp_path / "receipts.sqlite", isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(DownError, match="database is locked") as caught:
            insert_rows(store, [to_row(example_receipt(0))], [])
        assert caught.value.kind == "SQLITE_BUSY"
        other.execute("ROLLBACK")
        insert_rows(store, [to_row(example_receipt(0))], [])
    store.close()


def test_a_full_disk_is_waited_for(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/receipts.sqlite"
    store = open_store(url)
    (pages,) = store.select("PRAGMA page_count")[0]

    async def work() -> None:
        store.select(f"PRAGMA max_page_count = {pages + 4}")  # simulates a full disk
        writer = ReceiptWriter(store, wait_seconds=60)
        tasks = [
            asyncio.create_task(writer.keep(example_receipt(n, prompt="x" * 50_000)))
            for n in range(4)
        ]
        while not writer.stats().failures:
            await asyncio.sleep(0.001)
        assert writer.stats().last_error_kind == "SQLITE_FULL"
        assert not writer.healthy
        assert list(read_receipts(url)) == []
        assert not any(await asyncio.gather(*tasks))  # the writer knows of the failure
        store.select("PRAGMA max_page_count = 1000000")
        assert await writer.close() == 0

    asyncio.run(work())
    assert [r.choice.id for r in read_receipts(url)] == receipt_ids(0, 1, 2, 3)


def test_old_receipts_are_deleted_between_writes(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    secret = "what nobody is to find"
    file = write_receipts(
        tmp_path / "receipts.sqlite",
        [example_receipt(n, at=float(n), prompt=secret) for n in range(5)],
        [Feedback(id=receipt_id(1), score=1, at=1)],
    )
    url = f"sqlite:///{file}"
    now = time.time()

    async def work() -> None:
        writer = ReceiptWriter(open_store(url), wait_seconds=60, keep_days=1)
        assert await writer.keep(example_receipt(9, at=now))
        while writer.stats().deleted < 5:
            await asyncio.sleep(0.001)
        assert await writer.keep(Feedback(id=receipt_id(9), score=1, at=now))
        await writer.close()
        assert (writer.stats().written, writer.stats().failures) == (2, 0)

    with caplog.at_level("INFO"):
        asyncio.run(work())
    assert [r.choice.id for r in read_receipts(url)] == receipt_ids(9)
    assert list(latest_feedback(url)) == receipt_ids(9)
    assert "5 receipts older than 1 days were deleted" in caplog.text
    assert secret.encode() not in b"".join(f.read_bytes() for f in tmp_path.iterdir())


def test_what_cannot_be_deleted_now_is_counted_and_stops_no_write() -> None:
    class UndeletableStore(PausedStore):
        def select(self, query: str, values: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
            raise DownError(query, kind=str(values))

    async def work() -> None:
        writer = ReceiptWriter(UndeletableStore(), wait_seconds=60, keep_days=1)
        while not writer.stats().failures:
            await asyncio.sleep(0.001)
        assert await writer.keep(example_receipt(1))
        assert writer.healthy
        await writer.close()

    asyncio.run(work())


def test_a_day_is_kept_at_least() -> None:
    with pytest.raises(ValueError, match="must be at least 1"):
        ReceiptSettings(keep_days=0)
    assert ReceiptSettings(keep_days=1).keep_days == 1
