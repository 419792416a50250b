"""Outcomes of decisions that others carried out, in both databases."""

from contextlib import closing
from dataclasses import replace

import pytest

from packages.gateway.tests.receipts.example_receipts import example_receipt, plain_values
from prefill_router_gateway import Receipt
from prefill_router_gateway.receipts import (
    insert_rows,
    open_store,
    purge,
    read_receipts,
    report_outcome,
)
from prefill_router_gateway.receipts.rows import to_row
from prefill_router_gateway.records import RequestOutcome

pytestmark = pytest.mark.slow

ROUTED = RequestOutcome(kind="routed", target=None, status=200, attempts=())
ANSWERED = example_receipt(0, outcome={}, prompt="Who?")
BEFORE = replace(ANSWERED, outcome=ROUTED, cost=None)


def add_outcome(before: Receipt, *, cost: float = 0.5) -> Receipt:
    return replace(before, outcome=ANSWERED.outcome, cost=cost)


@pytest.fixture
def url(url: str) -> str:
    with closing(open_store(url)) as store:
        insert_rows(store, [to_row(BEFORE), to_row(example_receipt(1))], [])
    return url


def test_the_receipt_is_as_if_the_gateway_had_called(url: str) -> None:
    receipt = report_outcome(url, BEFORE.choice.id, add_outcome)
    assert isinstance(receipt, Receipt)
    (read,) = read_receipts(url, ids=[BEFORE.choice.id])
    assert plain_values(read) == plain_values(receipt) == plain_values(replace(ANSWERED, cost=0.5))


def test_of_two_reports_at_once_one_holds(url: str) -> None:
    def report_first(before: Receipt) -> Receipt:
        assert isinstance(report_outcome(url, BEFORE.choice.id, add_outcome), Receipt)
        return add_outcome(before, cost=2.0)

    assert report_outcome(url, BEFORE.choice.id, report_first) == "known"
    (read,) = read_receipts(url, ids=[BEFORE.choice.id])
    assert read.cost == 0.5


def test_others_receipts_stay(url: str) -> None:
    before = [plain_values(receipt) for receipt in read_receipts(url)]
    assert report_outcome(url, "pr_none", add_outcome) == "unknown"
    assert report_outcome(url, BEFORE.choice.id, add_outcome, key="nobody") == "unknown"
    assert report_outcome(url, example_receipt(1).choice.id, add_outcome) == "known"
    assert [plain_values(receipt) for receipt in read_receipts(url)] == before


def test_a_text_that_is_purged_meanwhile_stays_purged(url: str) -> None:
    def purge_first(before: Receipt) -> Receipt:
        assert before.prompt == "Who?"
        purge(url, before=2e9, texts_only=True)
        return add_outcome(before)

    report_outcome(url, BEFORE.choice.id, purge_first)
    (read,) = read_receipts(url, ids=[BEFORE.choice.id])
    assert (read.prompt, read.cost) == (None, 0.5)
