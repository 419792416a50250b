"""What was kept to learn from goes with its receipts, by age, and when it is purged."""

import asyncio
import json
import sqlite3
import threading
from collections.abc import Iterable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from packages.gateway.tests.receipts.receipts_made import START, made_receipt, name_of
from packages.router.tests.commands import refused, succeeded
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


def secret(number: int) -> str:
    """A text that is nowhere else, over several pages of a database."""
    return f"<secret {number}>" * 500


def fill(url: str, numbers: Iterable[int], **changed: Any) -> None:
    """Receipts, each with feedback, a sample, a draw, a side answer and a label, a day apart."""
    receipts, feedback, learned = [], [], list[LearningRow]()
    for n in numbers:
        name, at, text = name_of(n), START + n * DAY, secret(n)
        receipts.append(to_row(made_receipt(n, at=at, prompt=text, **changed)))
        feedback.append(Feedback(id=name, score=1, at=at).row())
        learned += [
            SampledRequest(
                id=name, at=at, share=0.5, endpoint="chat", body={"input": text}, answer=text
            ),
            SideQuestions(id=name, at=at + 9, propensity={"t": 0.5}, drawn=["t"]),
            SideAnswer(id=name, target="t", at=at + 9, propensity=0.5, answer=text),
            AnswerLabel(id=name, target="t", source="judge:j", at=at + 9, score=1),
        ]
    with closing(open_learning(url)) as store:
        insert_rows(store, receipts, feedback)
        write_learning(store, learned)


def left(url: str) -> list[list[str]]:
    """The ids in each table."""
    receipts = [receipt.choice.id for receipt in read_receipts(url)]
    learned = [[row.id for row in read_learning(url, kind)] for kind in KINDS]
    return [receipts, sorted(latest_feedback(url)), *learned]


def names(*numbers: int) -> list[str]:
    return [name_of(n) for n in numbers]


def bytes_of(folder: Path) -> bytes:
    """All bytes of an SQLite file and its journal."""
    return b"".join(path.read_bytes() for path in folder.iterdir() if path.is_file())


def test_what_was_learned_goes_with_its_receipt_and_after_days_of_its_own(url: str) -> None:
    fill(url, range(6))
    with closing(open_store(url)) as store:
        late = AnswerLabel(id=name_of(9), target="t", source="user", at=START, score=1)
        write_learning(store, [late])
        while Retention(store, 2, None, clock=lambda: START + 4 * DAY).work():
            pass
        assert left(url)[:3] == [names(2, 3, 4, 5)] * 3
        while Retention(store, None, 1, clock=lambda: START + 5 * DAY + 5).work():
            pass
    assert left(url) == [names(2, 3, 4, 5)] * 2 + [names(5)] * 4


def test_databases_without_these_tables_are_looked_after_too(url: str) -> None:
    with closing(open_store(url)) as store:
        insert_rows(store, [to_row(made_receipt(n)) for n in range(3)], [])
        assert not Retention(store, 1, 1, clock=lambda: START + 9 * DAY).work()
    assert purge(url, before=START) == {"receipts": 0, "receipt_feedback": 0}
    assert list(read_receipts(url)) == []


def test_a_purge_deletes_by_key_and_by_age_and_counts_first(url: str) -> None:
    fill(url, range(4))
    fill(url, range(4, 6), key="ann")
    before = left(url)
    found = purge(url, key="team", before=START + 2 * DAY, dry_run=True)
    assert set(found.values()) == {2}
    assert left(url) == before
    assert purge(url, key="team", before=START + 2 * DAY) == found
    assert left(url) == [names(2, 3, 4, 5)] * 6
    assert purge(url, key="ann")["receipts"] == 2
    assert left(url) == [names(2, 3)] * 6
    assert purge(url, key="nobody")["receipts"] == 0


def test_texts_alone_go_and_numbers_stay(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("prefill_router_gateway.receipts.retention._AT_ONCE", 8)
    fill(url, range(20))
    found = purge(url, before=START + 19 * DAY, texts_only=True, dry_run=True)
    assert found == {"receipts": 19, "receipt_samples": 19, "receipt_side_answers": 19}
    assert purge(url, before=START + 19 * DAY, texts_only=True) == found
    assert set(purge(url, before=START + 19 * DAY, texts_only=True).values()) == {0}
    assert [len(found) for found in left(url)] == [20] * 6
    *purged, whole = read_learning(url, SampledRequest)
    assert {(str(s.body), s.answer, s.share) for s in purged} == {("{}", "", 0.5)}
    assert whole.answer == secret(19)
    assert [s.answer is None for s in read_learning(url, SideAnswer)] == [True] * 19 + [False]
    assert [r.prompt is None for r in read_receipts(url)] == [True] * 19 + [False]


@pytest.mark.parametrize("texts_only", [False, True])
def test_nothing_of_a_text_is_left_in_the_bytes(tmp_path: Path, texts_only: bool) -> None:
    url = f"sqlite:///{tmp_path}/r.sqlite"
    fill(url, range(0, 40, 2), key="ann")
    fill(url, range(1, 40, 2))
    with closing(sqlite3.connect(tmp_path / "r.sqlite")) as gateway:  # which keeps it open
        gateway.execute("SELECT count(*) FROM receipts").fetchall()
        purge(url, key="ann", texts_only=texts_only)
        found = bytes_of(tmp_path)
    assert [n for n in range(40) if f"<secret {n}>".encode() in found] == list(range(1, 40, 2))


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
    assert b"<secret" not in bytes_of(tmp_path)


def test_a_purge_says_what_it_needs(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="nothing says what to purge"):
        purge("absent.sqlite")
    with pytest.raises(StoreError, match="doesn't exist"):
        purge(f"{tmp_path}/absent.sqlite", key="ann")
    assert not (tmp_path / "absent.sqlite").exists()


def test_the_command_counts_and_purges(tmp_path: Path) -> None:
    file = tmp_path / "r.sqlite"
    fill(str(file), range(-999, -996))
    told = json.loads(succeeded("purge", file, "--older-than", "1m", "--dry-run", "--json"))
    assert (told["dry_run"], told["rows"]["receipt_samples"]) == (True, 3)
    assert "receipt_labels" in succeeded("purge", file, "--key", "team")
    assert left(str(file)) == [[]] * 6
    refused("give --key, --older-than, or both", "purge", file, code=2)


def draft(number: int, text: str = "hi") -> SampleDraft:
    answer = AnswerText("chat")
    answer.take(json.dumps({"choices": [{"message": {"content": "yes"}}]}).encode())
    body = json.dumps({"model": "auto", "messages": text}).encode()
    return SampleDraft(
        id=name_of(number),
        at=START,
        share=1,
        endpoint="chat",
        body=body,
        answer=answer,
        prompt="yes?",
    )


def keep(url: str, *pairs: tuple[int, SampleDraft | None]) -> None:
    async def work() -> None:
        writer = ReceiptWriter(open_store(url), wait_seconds=60)
        for number, sample in pairs:
            assert await writer.keep(made_receipt(number), sample)
        await writer.close()

    asyncio.run(work())


def test_a_sample_is_written_with_its_receipt_and_its_tables_are_made(url: str) -> None:
    keep(url, (0, None), (1, draft(1)), (2, draft(2)))
    assert left(url) == [names(0, 1, 2), [], names(1, 2), [], [], []]


class HeldAnswer:
    """The text of an answer that can't be read yet."""

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
            sample = draft(number)
            object.__setattr__(sample, "answer", answer)
            assert await writer.keep(made_receipt(number), sample)
            if number:
                purge(url, key="team")
            answer.may.set()
            while writer.stats().samples_waiting:
                await asyncio.sleep(1e-3)
        await writer.close()
        return writer.stats()

    stats = asyncio.run(work())
    assert left(url) == [[]] * 6
    assert (stats.samples, stats.samples_left_out) == (1, 1)


def test_samples_wait_for_a_pause_between_receipts_but_not_more_than_a_few(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("prefill_router_gateway.receipts.writer._SAMPLE_PAUSE", 60)
    monkeypatch.setattr("prefill_router_gateway.receipts.writer._MOST_SAMPLES", 3)

    async def work() -> None:
        writer = ReceiptWriter(open_store(url), wait_seconds=60)
        for number in range(5):
            assert await writer.keep(made_receipt(number), draft(number))
            if number == 1:
                assert (writer.stats().samples, writer.stats().samples_waiting) == (0, 2)
        while writer.stats().samples < 3:
            await asyncio.sleep(1e-3)
        assert left(url)[2] == names(0, 1, 2)
        await writer.close()

    asyncio.run(work())
    assert left(url)[2] == names(*range(5))


def test_a_sample_that_cannot_be_kept_costs_no_receipt(url: str) -> None:
    wrong = draft(1)
    object.__setattr__(wrong, "body", b"{")
    keep(url, (1, wrong))
    object.__setattr__(wrong, "body", b"{}")
    object.__setattr__(wrong, "share", None)
    keep(url, (2, wrong))
    dropped = draft(3)
    dropped.answer.drop()
    keep(url, (3, dropped))
    assert left(url)[0] == names(1, 2, 3)
    assert list(read_learning(url, SampledRequest)) == []


def test_where_the_tables_cannot_be_made_receipts_are_written_and_the_log_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(_: object) -> None:
        raise DownError("the user lacks the permission", kind="permission")

    monkeypatch.setattr("prefill_router_gateway.receipts.writer.make_learning_tables", refuse)
    url = f"sqlite:///{tmp_path}/r.sqlite"
    keep(url, (1, draft(1)))
    assert left(url) == [names(1), [], [], [], [], []]
    assert "sampled requests can't be kept: the user lacks the permission" in caplog.text


def test_a_file_that_is_moved_away_is_made_again_with_all_tables(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/r.sqlite"

    async def work() -> None:
        writer = ReceiptWriter(open_store(url), wait_seconds=60)
        assert await writer.keep(made_receipt(1), draft(1))
        (tmp_path / "r.sqlite").rename(tmp_path / "old.sqlite")
        await writer.keep(made_receipt(2), draft(2))
        await writer.close()

    asyncio.run(work())
    assert left(url) == [names(2), [], names(2), [], [], []]


def test_samples_beyond_the_memory_of_the_queue_are_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("prefill_router_gateway.receipts.writer._PROMPTS", 2000)
    url = f"sqlite:///{tmp_path}/r.sqlite"
    keep(url, (1, draft(1)), (2, draft(2, "hi" * 1000)))
    assert left(url) == [names(1, 2), [], names(1), [], [], []]
