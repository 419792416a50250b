"""Rows for learning are deleted with their receipts, by age, and by a purge."""

import asyncio
import json
import sqlite3
import threading
from collections.abc import Iterable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from packages.gateway.tests.receipts.example_receipts import START, example_receipt, receipt_id
from packages.router.tests.commands import check_refused, run_ok
from prefill_router.database import DownError
from prefill_router.errors import DataError, StoreError
from prefill_router_gateway.answer_text import AnswerText
from prefill_router_gateway.receipts import (
    AnswerLabel,
    Feedback,
    ReceiptWriter,
    SampleDraft,
    SampledRequest,
    SideAnswer,
    SideQuestions,
    WriterStats,
    insert_rows,
    latest_feedback,
    open_learning,
    open_store,
    purge,
    read_learning,
    read_receipts,
    write_learning,
)
from prefill_router_gateway.receipts.labels import LearningRow
from prefill_router_gateway.receipts.retention import Retention
from prefill_router_gateway.receipts.rows import to_row

pytestmark = pytest.mark.slow

DAY = 86_400
KINDS = (SampledRequest, SideQuestions, SideAnswer, AnswerLabel)


def build_secret(number: int) -> str:
    """A unique text that fills several pages of a database."""
    return f"<secret {number}>" * 500


def fill(url: str, numbers: Iterable[int], **fields: Any) -> None:
    """Write receipts a day apart, with feedback, a sample, a draw, a side answer and a label."""
    receipts, feedback, learning_rows = [], [], list[LearningRow]()
    for n in numbers:
        name, at, text = receipt_id(n), START + n * DAY, build_secret(n)
        receipts.append(to_row(example_receipt(n, at=at, prompt=text, **fields)))
        feedback.append(Feedback(id=name, score=1, at=at).row())
        learning_rows += [
            SampledRequest(
                id=name, at=at, share=0.5, endpoint="chat", body={"input": text}, answer=text
            ),
            SideQuestions(id=name, at=at + 9, propensity={"t": 0.5}, drawn=["t"]),
            SideAnswer(id=name, target="t", at=at + 9, propensity=0.5, answer=text),
            AnswerLabel(id=name, target="t", source="judge:j", at=at + 9, score=1),
        ]
    with closing(open_learning(url)) as store:
        insert_rows(store, receipts, feedback)
        write_learning(store, learning_rows)


def list_ids(url: str) -> list[list[str]]:
    """The ids in each table."""
    receipts = [receipt.choice.id for receipt in read_receipts(url)]
    learning_rows = [[row.id for row in read_learning(url, kind)] for kind in KINDS]
    return [receipts, sorted(latest_feedback(url)), *learning_rows]


def receipt_ids(*numbers: int) -> list[str]:
    return [receipt_id(n) for n in numbers]


def read_bytes(folder: Path) -> bytes:
    """All bytes of an SQLite file and its journal."""
    return b"".join(path.read_bytes() for path in folder.iterdir() if path.is_file())


def test_what_was_learned_goes_with_its_receipt_and_after_days_of_its_own(url: str) -> None:
    fill(url, range(6))
    with closing(open_store(url)) as store:
        late = AnswerLabel(id=receipt_id(9), target="t", source="user", at=START, score=1)
        write_learning(store, [late])
        while Retention(store, 2, None, clock=lambda: START + 4 * DAY).work():
            pass
        assert list_ids(url)[:3] == [receipt_ids(2, 3, 4, 5)] * 3
        while Retention(store, None, 1, clock=lambda: START + 5 * DAY + 5).work():
            pass
    assert list_ids(url) == [receipt_ids(2, 3, 4, 5)] * 2 + [receipt_ids(5)] * 4


def test_databases_without_these_tables_are_looked_after_too(url: str) -> None:
    with closing(open_store(url)) as store:
        insert_rows(store, [to_row(example_receipt(n)) for n in range(3)], [])
        assert not Retention(store, 1, 1, clock=lambda: START + 9 * DAY).work()
    assert purge(url, before=START) == {"receipts": 0, "receipt_feedback": 0}
    assert list(read_receipts(url)) == []


def test_a_purge_deletes_by_key_and_by_age_and_counts_first(url: str) -> None:
    fill(url, range(4))
    fill(url, range(4, 6), key="ann")
    before = list_ids(url)
    counts = purge(url, key="team", before=START + 2 * DAY, dry_run=True)
    assert set(counts.values()) == {2}
    assert list_ids(url) == before
    assert purge(url, key="team", before=START + 2 * DAY) == counts
    assert list_ids(url) == [receipt_ids(2, 3, 4, 5)] * 6
    assert purge(url, key="ann")["receipts"] == 2
    assert list_ids(url) == [receipt_ids(2, 3)] * 6
    assert purge(url, key="nobody")["receipts"] == 0


def test_texts_alone_go_and_numbers_stay(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("prefill_router_gateway.receipts.retention._AT_ONCE", 8)
    fill(url, range(20))
    counts = purge(url, before=START + 19 * DAY, texts_only=True, dry_run=True)
    assert counts == {"receipts": 19, "receipt_samples": 19, "receipt_side_answers": 19}
    assert purge(url, before=START + 19 * DAY, texts_only=True) == counts
    assert set(purge(url, before=START + 19 * DAY, texts_only=True).values()) == {0}
    assert [len(ids) for ids in list_ids(url)] == [20] * 6
    *emptied, intact = read_learning(url, SampledRequest)
    assert {(str(s.body), s.answer, s.share) for s in emptied} == {("{}", "", 0.5)}
    assert intact.answer == build_secret(19)
    assert [s.answer is None for s in read_learning(url, SideAnswer)] == [True] * 19 + [False]
    assert [r.prompt is None for r in read_receipts(url)] == [True] * 19 + [False]


@pytest.mark.parametrize("texts_only", [False, True])
def test_nothing_of_a_text_is_left_in_the_bytes(tmp_path: Path, texts_only: bool) -> None:
    url = f"sqlite:///{tmp_path}/r.sqlite"
    fill(url, range(0, 40, 2), key="ann")
    fill(url, range(1, 40, 2))
    with closing(sqlite3.connect(tmp_path / "r.sqlite")) as gateway:  # keeps the file open
        gateway.execute("SELECT count(*) FROM receipts").fetchall()
        purge(url, key="ann", texts_only=texts_only)
        content = read_bytes(tmp_path)
    assert [n for n in range(40) if f"<secret {n}>".encode() in content] == list(range(1, 40, 2))


def test_a_journal_that_is_being_read_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("prefill_router_gateway.receipts.store.BUSY_SECONDS", 0.0)
    url = f"sqlite:///{tmp_path}/r.sqlite"
    fill(url, range(2))
    with closing(sqlite3.connect(tmp_path / "r.sqlite", isolation_level=None)) as reader:
        reader.execute("BEGIN")
        reader.execute("SELECT count(*) FROM receipts").fetchall()
        with pytest.raises(StoreError, match="the journal beside the file still has it"):
            purge(url, key="team")
    purge(url, key="team")
    assert b"<secret" not in read_bytes(tmp_path)


def test_a_purge_says_what_it_needs(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="nothing says what to purge"):
        purge("absent.sqlite")
    with pytest.raises(StoreError, match="doesn't exist"):
        purge(f"{tmp_path}/absent.sqlite", key="ann")
    assert not (tmp_path / "absent.sqlite").exists()


def test_the_command_counts_and_purges(tmp_path: Path) -> None:
    file = tmp_path / "r.sqlite"
    fill(str(file), range(-999, -996))
    value = json.loads(run_ok("purge", file, "--older-than", "1m", "--dry-run", "--json"))
    assert (value["dry_run"], value["rows"]["receipt_samples"]) == (True, 3)
    assert "receipt_labels" in run_ok("purge", file, "--key", "team")
    assert list_ids(str(file)) == [[]] * 6
    check_refused("give --key, --older-than, or both", "purge", file, code=2)


def build_draft(number: int, text: str = "hi") -> SampleDraft:
    answer = AnswerText("chat")
    answer.take(json.dumps({"choices": [{"message": {"content": "yes"}}]}).encode())
    body = json.dumps({"model": "auto", "messages": text}).encode()
    return SampleDraft(
        id=receipt_id(number),
        at=START,
        share=1,
        endpoint="chat",
        body=body,
        answer=answer,
        prompt="yes?",
    )


def keep_samples(url: str, *pairs: tuple[int, SampleDraft | None]) -> None:
    async def work() -> None:
        writer = ReceiptWriter(open_store(url), wait_seconds=60)
        for number, sample in pairs:
            assert await writer.keep(example_receipt(number), sample)
        await writer.close()

    asyncio.run(work())


def test_a_sample_is_written_with_its_receipt_and_its_tables_are_made(url: str) -> None:
    keep_samples(url, (0, None), (1, build_draft(1)), (2, build_draft(2)))
    assert list_ids(url) == [receipt_ids(0, 1, 2), [], receipt_ids(1, 2), [], [], []]


class HeldAnswer:
    """An answer whose text is read only once `may` is set."""

    length = 0

    def __init__(self) -> None:
        self.may = threading.Event()

    @property
    def text(self) -> str:
        self.may.wait()
        return "yes"


def test_a_receipt_does_not_wait_for_its_sample_which_is_not_kept_without_it(url: str) -> None:
    answers = [HeldAnswer(), HeldAnswer()]

    async def work() -> WriterStats:
        writer = ReceiptWriter(open_store(url), wait_seconds=60)
        for number, answer in enumerate(answers):
            sample = build_draft(number)
            object.__setattr__(sample, "answer", answer)
            assert await writer.keep(example_receipt(number), sample)
            if number:
                purge(url, key="team")
            answer.may.set()
            while writer.stats().samples_waiting:
                await asyncio.sleep(1e-3)
        await writer.close()
        return writer.stats()

    stats = asyncio.run(work())
    assert list_ids(url) == [[]] * 6
    assert (stats.samples, stats.samples_left_out) == (1, 1)


def test_samples_wait_for_a_pause_between_receipts_but_not_more_than_a_few(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("prefill_router_gateway.receipts.writer._SAMPLE_PAUSE", 60)
    monkeypatch.setattr("prefill_router_gateway.receipts.writer._MOST_SAMPLES", 3)

    async def work() -> None:
        writer = ReceiptWriter(open_store(url), wait_seconds=60)
        for number in range(5):
            assert await writer.keep(example_receipt(number), build_draft(number))
            if number == 1:
                assert (writer.stats().samples, writer.stats().samples_waiting) == (0, 2)
        while writer.stats().samples < 3:
            await asyncio.sleep(1e-3)
        assert list_ids(url)[2] == receipt_ids(0, 1, 2)
        await writer.close()

    asyncio.run(work())
    assert list_ids(url)[2] == receipt_ids(*range(5))


def test_a_sample_that_cannot_be_kept_costs_no_receipt(url: str) -> None:
    bad_draft = build_draft(1)
    object.__setattr__(bad_draft, "body", b"{")
    keep_samples(url, (1, bad_draft))
    object.__setattr__(bad_draft, "body", b"{}")
    object.__setattr__(bad_draft, "share", None)
    keep_samples(url, (2, bad_draft))
    dropped_draft = build_draft(3)
    dropped_draft.answer.drop()
    keep_samples(url, (3, dropped_draft))
    assert list_ids(url)[0] == receipt_ids(1, 2, 3)
    assert list(read_learning(url, SampledRequest)) == []


def test_where_the_tables_cannot_be_made_receipts_are_written_and_the_log_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(_: object) -> None:
        raise DownError("the user lacks the permission", kind="permission")

    monkeypatch.setattr("prefill_router_gateway.receipts.writer.make_learning_tables", refuse)
    url = f"sqlite:///{tmp_path}/r.sqlite"
    keep_samples(url, (1, build_draft(1)))
    assert list_ids(url) == [receipt_ids(1), [], [], [], [], []]
    assert "sampled requests can't be kept: the user lacks the permission" in caplog.text


def test_a_file_that_is_moved_away_is_made_again_with_all_tables(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/r.sqlite"

    async def work() -> None:
        writer = ReceiptWriter(open_store(url), wait_seconds=60)
        assert await writer.keep(example_receipt(1), build_draft(1))
        (tmp_path / "r.sqlite").rename(tmp_path / "old.sqlite")
        await writer.keep(example_receipt(2), build_draft(2))
        await writer.close()

    asyncio.run(work())
    assert list_ids(url) == [receipt_ids(2), [], receipt_ids(2), [], [], []]


def test_samples_beyond_the_memory_of_the_queue_are_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("prefill_router_gateway.receipts.writer._PROMPTS", 2000)
    url = f"sqlite:///{tmp_path}/r.sqlite"
    keep_samples(url, (1, build_draft(1)), (2, build_draft(2, "hi" * 1000)))
    assert list_ids(url) == [receipt_ids(1, 2), [], receipt_ids(1), [], [], []]
