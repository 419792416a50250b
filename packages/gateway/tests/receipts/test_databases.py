"""Both databases do the same: each row comes back once, and sums are right."""

import asyncio
import sqlite3
import time
import traceback
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import pytest

from packages.gateway.tests.receipts.example_receipts import (
    COSTS,
    START,
    example_receipt,
    plain_values,
    receipt_id,
)
from packages.gateway.tests.receipts.postgres_server import (
    IN_URL,
    PASSWORD,
    PostgresServer,
)
from prefill_router.database import DownError, RowError
from prefill_router.endpoints import Usage
from prefill_router.errors import ConfigError, CorruptError, StoreError
from prefill_router_gateway.receipts import (
    Feedback,
    ReceiptWriter,
    RequestSpend,
    SessionTurn,
    insert_rows,
    latest_feedback,
    open_store,
    read_receipts,
    recent,
    savings_since,
    sessions_since,
    spend_since,
    summary,
)
from prefill_router_gateway.receipts.retention import Retention
from prefill_router_gateway.receipts.rows import NAMES, to_row
from prefill_router_gateway.settings import SavingsSettings

pytestmark = pytest.mark.slow


def run_statements(url: str, *statements: str) -> None:
    """Run statements on a database without the gateway."""
    if url.startswith("sqlite"):
        with closing(sqlite3.connect(url.removeprefix("sqlite:///"))) as file:
            for statement in statements:
                file.execute(statement)
            file.commit()
        return
    import psycopg

    with psycopg.connect(url) as connection:
        for statement in statements:
            connection.execute(statement.encode())


def fill(url: str, count: int, *feedback: Feedback) -> None:
    with closing(open_store(url)) as store:
        rows = [to_row(example_receipt(n)) for n in range(count)]
        insert_rows(store, rows, [f.row() for f in feedback])


def test_what_is_written_comes_back(url: str) -> None:
    fill(url, 4)
    odd = example_receipt(4, choice={"session": None}, requested="é\0", prompt="\ud800\0")
    with closing(open_store(url)) as store:
        insert_rows(store, [to_row(odd)], [])
        assert PASSWORD not in store.place
        assert IN_URL not in store.place
    receipts = list(read_receipts(url))
    assert [plain_values(r) for r in receipts[:4]] == [
        plain_values(example_receipt(n)) for n in range(4)
    ]
    assert receipts[4].requested == "é�"
    assert receipts[4].prompt == odd.prompt


def test_what_is_written_twice_is_there_once(url: str) -> None:
    score = Feedback(id=receipt_id(1), score=1, at=5)
    fill(url, 3, score)
    fill(url, 5, score)
    assert [r.choice.id for r in read_receipts(url)] == [receipt_id(n) for n in range(5)]
    assert latest_feedback(url) == {receipt_id(1): [score]}


def test_a_row_that_is_never_taken_spoils_its_transaction_alone(url: str) -> None:
    fill(url, 1)
    row = list(to_row(example_receipt(2)))
    row[NAMES.index("requested")] = None
    with closing(open_store(url)) as store:
        with pytest.raises(RowError, match="rejected a row"):
            insert_rows(store, [to_row(example_receipt(1)), tuple(row)], [])
        assert store.select("SELECT count(*) FROM receipts") == [(1,)]
        insert_rows(store, [to_row(example_receipt(3))], [])
    assert [r.choice.id for r in read_receipts(url)] == [receipt_id(0), receipt_id(3)]


def test_gateways_that_write_at_once_lose_nothing(url: str) -> None:
    open_store(url).close()

    def write(writer: int) -> None:
        with closing(open_store(url)) as store:
            for number in range(60):
                insert_rows(store, [to_row(example_receipt(1000 * writer + number))], [])

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(write, range(4)))
    with closing(open_store(url, create=False)) as store:
        assert store.select("SELECT count(*) FROM receipts") == [(240,)]


def test_receipts_are_found_by_what_is_asked_for(url: str) -> None:
    fill(url, 1200)  # more than one page of rows

    def read_numbers(**options: object) -> list[int]:
        return [int(r.at - START) for r in read_receipts(url, **options)]  # type: ignore[arg-type]

    assert read_numbers() == list(range(1200))
    assert read_numbers(newest_first=True) == list(range(1199, -1, -1))
    assert read_numbers(limit=700) == list(range(700))
    assert read_numbers(since=START + 10, until=START + 13) == [10, 11, 12]
    assert read_numbers(since=START + 100) == list(range(100, 1200))
    assert read_numbers(until=START + 1100, newest_first=True) == list(range(1099, -1, -1))
    assert read_numbers(ids=[receipt_id(5), receipt_id(3), "pr_none"]) == [3, 5]
    assert read_numbers(ids=[]) == []
    assert read_numbers(target="large", limit=2) == [1, 3]
    assert read_numbers(outcome="failed") == []
    assert [int(r.at - START) for r in recent(url, 2)] == [1199, 1198]


def test_receipts_of_one_moment_are_all_read(url: str) -> None:
    with closing(open_store(url)) as store:
        insert_rows(store, [to_row(example_receipt(n, at=START)) for n in range(1100)], [])
    assert {r.choice.id for r in read_receipts(url)} == {receipt_id(n) for n in range(1100)}


def test_the_latest_score_of_each_source_counts(url: str) -> None:
    scores = [
        Feedback(id=receipt_id(1), score=0, at=1),
        Feedback(id=receipt_id(1), score=0.5, at=3),
        Feedback(id=receipt_id(1), score=1, at=2),
        Feedback(id=receipt_id(1), score=0.25, at=1, source="judge"),
        Feedback(id=receipt_id(2), score=1, at=1),
    ]
    fill(url, 1, *scores)
    scores_by_id = latest_feedback(url)
    assert {f.source: f.score for f in scores_by_id[receipt_id(1)]} == {"user": 0.5, "judge": 0.25}
    assert list(latest_feedback(url, [receipt_id(2)])) == [receipt_id(2)]
    assert latest_feedback(url, []) == {}


def test_budgets_and_sessions_are_restored(url: str) -> None:
    fill(url, 3)
    with closing(open_store(url)) as store:
        failure = example_receipt(3, outcome={"target": None, "kind": "failed"}, cost=None)
        single = example_receipt(4, choice={"session": None})
        response = example_receipt(5, choice={"session": None}, endpoint="responses")
        refusal = example_receipt(6, outcome={"kind": "refused"}, cost=None)
        without_calls = example_receipt(
            7, outcome={"tool_calls": ()}, choice={"session": None}, cost=None
        )
        routed = {"target": None, "kind": "routed", "tool_calls": (), "usage": None}
        dry_run = example_receipt(8, outcome=routed, choice={"input_tokens": 77}, cost=None)
        cut_response = example_receipt(9, outcome={"kind": "cut"}, endpoint="responses", cost=None)
        cut_chat = example_receipt(10, outcome={"kind": "cut"}, cost=None)
        rows = (failure, single, response, refusal, without_calls, dry_run, cut_response, cut_chat)
        insert_rows(store, [to_row(r) for r in rows], [])
    assert list(spend_since(url, START + 1)) == [
        RequestSpend("team", START + n, 2 * COSTS["large" if n % 2 else "small"])
        for n in (1, 2, 4, 5)
    ]
    assert list(sessions_since(url, START + 1)) == [
        SessionTurn("s1", "large", 121, START + 1, ("call_1",), None, "team"),
        SessionTurn("s2", "small", 122, START + 2, ("call_2",), None, "team"),
        SessionTurn(None, "small", 124, START + 4, ("call_4",), None, "team"),
        SessionTurn(None, "large", 125, START + 5, ("call_5",), "resp_5", "team"),
        SessionTurn("s2", "small", 77, START + 8, (), None, "team"),
        SessionTurn(None, "large", 129, START + 9, (), "resp_9", "team"),
    ]


def test_sums(url: str) -> None:
    fill(url, 10)
    with closing(open_store(url)) as store:
        failure = example_receipt(11, outcome={"target": None, "kind": "failed"}, cost=None)
        named_choice = {"reason": "named", "correctness": {}, "estimated_cost": {"helper": 1.0}}
        named_request = example_receipt(
            12, choice=named_choice, outcome={"target": "helper"}, cost=0.0
        )
        insert_rows(store, [to_row(failure), to_row(named_request)], [])
    sums = summary(url, START + 2)
    assert list(sums.by_target) == ["large", "small", "helper"]
    large, small, _ = sums.by_target.values()
    assert (large.requests, large.outcomes) == (5, {"answered": 4, "failed": 1})
    assert (small.requests, small.outcomes) == (4, {"answered": 4})
    assert large.cost == pytest.approx(4 * 0.02)
    assert sums.cost == pytest.approx(4 * 0.02 + 4 * 0.0002)
    assert sums.requests == 10
    assert small.input_tokens == 102 + 104 + 106 + 108
    assert (small.cached_tokens, small.output_tokens, small.reasoning_tokens) == (40, 80, 0)
    assert large.probability == pytest.approx(0.9)

    nothing = summary(url, START + 99)
    assert (nothing.requests, nothing.cost) == (0, 0)


def test_counts_that_no_integer_holds_are_summed_all_the_same(url: str) -> None:
    most = Usage(input_tokens=2**63 - 1, output_tokens=1)
    with closing(open_store(url)) as store:
        insert_rows(
            store, [to_row(example_receipt(2 * n, outcome={"usage": most})) for n in range(3)], []
        )
    (sums,) = summary(url, 0).by_target.values()
    assert sums.input_tokens == pytest.approx(3 * 2**63)
    assert sums.output_tokens == 3


@pytest.mark.parametrize("text", ["{", "[]"])
def test_rows_that_somebody_broke_are_told_wherever_they_are_read(
    tmp_path: Path, text: str
) -> None:
    url = f"sqlite:///{tmp_path}/a.sqlite"
    fill(url, 1)
    run_statements(url, f"UPDATE receipts SET answer = '{text}', estimated_costs = '{text}'")
    for read in (read_receipts, lambda url: sessions_since(url, 0)):
        with pytest.raises(CorruptError, match="is damaged"):
            list(read(url))


def test_old_receipts_go_with_their_feedback(url: str) -> None:
    late = 600  # odd requests are scored that many seconds late
    scores = [
        Feedback(id=receipt_id(n), score=1, at=START + n + late * (n % 2)) for n in range(400)
    ]
    orphan = Feedback(id="pr_none", score=1, at=START)
    fill(url, 400, *scores, orphan)
    with closing(open_store(url)) as store:
        retention = Retention(store, 2, clock=lambda: START + 300 + 2 * 86_400)
        rounds = []
        while len(rounds) < 3:
            time.sleep(retention.wait() or 0)
            rounds.append(retention.work())
            if rounds == [True]:  # the oldest are deleted first
                assert [r.choice.id for r in read_receipts(url, limit=1)] == [receipt_id(256)]
            if not rounds[-1]:
                break
    assert rounds == [True, False]
    assert retention.deleted == 300
    assert [r.choice.id for r in read_receipts(url)] == [receipt_id(n) for n in range(300, 400)]
    assert latest_feedback(url) == {receipt_id(n): [scores[n]] for n in range(300, 400)}
    assert not retention.work()  # the next run isn't due yet
    assert Retention(store, None).wait() is None


def test_what_is_done_in_part_is_undone(url: str) -> None:
    score = Feedback(id=receipt_id(1), score=1, at=5)
    fill(url, 2, score)
    with closing(open_store(url)) as store:
        with pytest.raises(DownError):
            store.change([("DELETE FROM receipt_feedback", []), ("DELETE FROM absent", [])])
        assert store.change([("DELETE FROM receipts WHERE at > ?", [START])]) == [1]
    assert latest_feedback(url) == {receipt_id(1): [score]}


def test_other_databases_are_refused(url: str) -> None:
    # There is no database, and reading makes none.
    with pytest.raises(StoreError, match="name the"):
        list(read_receipts(url))
    fill(url, 1)
    run_statements(url, "UPDATE receipts_schema SET version = 7")
    for create in (True, False):
        with pytest.raises(StoreError, match=r"version 7; a newer prefill-router .* upgrade"):
            open_store(url, create=create)
    run_statements(url, "DROP TABLE receipts_schema")
    for create in (True, False):
        with pytest.raises(StoreError, match="another program"):
            open_store(url, create=create)


def test_receipts_of_version_1_are_upgraded_by_who_writes_them(url: str) -> None:
    fill(url, 3)
    run_statements(url, "DROP INDEX receipts_session")
    run_statements(url, "ALTER TABLE receipt_feedback DROP COLUMN conversation")
    run_statements(url, "ALTER TABLE receipts DROP COLUMN baseline")
    run_statements(url, "UPDATE receipts_schema SET version = 1")
    with pytest.raises(StoreError, match=r"version 1; .* start the gateway on it"):
        list(read_receipts(url))
    with closing(open_store(url)) as store:
        insert_rows(store, [to_row(example_receipt(3))], [])
    assert [receipt.baseline for receipt in read_receipts(url)] == [None, None, None, "large"]
    assert savings_since(url, SavingsSettings()).unnamed == 3


def test_waiting_receipts_are_written_when_the_server_is_back(postgres: PostgresServer) -> None:
    postgres.clear()

    async def work() -> tuple[list[bool], list[bool]]:
        writer = ReceiptWriter(open_store(postgres.url), wait_seconds=60)
        before = [await writer.keep(example_receipt(n)) for n in range(3)]
        await asyncio.to_thread(postgres.stop)
        waiting = [asyncio.create_task(writer.keep(example_receipt(n))) for n in range(3, 9)]
        while not writer.stats().failures:
            await asyncio.sleep(0.01)
        assert not writer.healthy
        after = list(await asyncio.gather(*waiting))  # the writer knows that the server is down
        await asyncio.to_thread(postgres.start)
        while writer.stats().waiting:
            await asyncio.sleep(0.01)
        stats = writer.stats()
        assert (stats.written, stats.waiting, stats.lost) == (9, 0, 0)
        assert stats.last_error_kind
        assert writer.healthy
        assert await writer.close() == 0
        return before, after

    before, after = asyncio.run(work())
    assert before == [True] * 3
    assert len(after) == 6
    assert [r.choice.id for r in read_receipts(postgres.url)] == [receipt_id(n) for n in range(9)]


def test_a_password_is_in_no_error(postgres: PostgresServer) -> None:
    reasons = {
        postgres.url.replace("tester", "nobody"): "user or password refused",
        postgres.url.replace("/postgres", "/absent"): "no such",
        postgres.url.replace(f":{postgres.port}", ":1"): "connection refused",
        postgres.url.replace(IN_URL, "s3cret%zz"): "can't be read as",
        postgres.url + "?s3cret=s3cret": "can't be read as",
        postgres.url.replace("@", "@[s3cret"): "can't be read as",
    }
    for url, why in reasons.items():
        with pytest.raises((DownError, ConfigError), match=why) as caught:
            open_store(url)
        assert "s3cret" not in "".join(traceback.format_exception(caught.value)), why


def test_a_user_who_may_only_read_and_write_is_enough(postgres: PostgresServer) -> None:
    postgres.clear()
    fill(postgres.url, 1)
    rights = "SELECT, INSERT, DELETE ON receipts, receipt_feedback, receipts_schema"
    run_statements(postgres.url, "CREATE ROLE clerk LOGIN PASSWORD 's3cret'")
    clerk = postgres.url.replace(f"tester:{IN_URL}", "clerk:s3cret")
    with pytest.raises(DownError, match="the user lacks the permission"):
        open_store(clerk)
    try:
        run_statements(postgres.url, f"GRANT {rights} TO clerk")
        fill(clerk, 2, Feedback(id=receipt_id(1), score=1, at=START))
        with closing(open_store(clerk)) as store:
            assert not Retention(store, 1).work()
        assert list(read_receipts(clerk)) == []
    finally:
        postgres.clear()
        run_statements(postgres.url, "DROP ROLE clerk")


def test_two_gateways_that_start_at_once_make_the_tables_once(postgres: PostgresServer) -> None:
    postgres.clear()

    async def work() -> None:
        stores = await asyncio.gather(
            *(asyncio.to_thread(open_store, postgres.url) for _ in range(4))
        )
        for store in stores:
            store.close()

    asyncio.run(work())
    fill(postgres.url, 1)
    assert [r.choice.id for r in read_receipts(postgres.url)] == [receipt_id(0)]
