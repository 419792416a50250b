"""Routed traffic against the rest: conversations, the period of both, intervals."""

import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from weakref import ref

import pytest

from packages.gateway.tests.receipts.example_receipts import (
    example_receipt,
    receipt_id,
    write_receipts,
)
from packages.router.tests.commands import check_refused, run_ok
from prefill_router.errors import DataError
from prefill_router_gateway import Receipt
from prefill_router_gateway.receipts import Feedback
from prefill_router_gateway.receipts.receipt_summary import Mean, compare_share


def build_receipt(
    number: int, reason: str, session: str | None, *, cost: float, **outcome: Any
) -> Receipt:
    return example_receipt(
        number, choice={"reason": reason, "session": session}, cost=cost, outcome=outcome
    )


TRAFFIC = [
    build_receipt(1, "policy", "before", cost=9.0),  # before the period of both
    build_receipt(2, "share", "a", cost=0.5),
    build_receipt(3, "policy", "b", cost=0.1),
    build_receipt(4, "tool_loop", "b", cost=0.2),
    build_receipt(5, "tool_loop", "a", cost=0.5),
    build_receipt(6, "named", None, cost=7.0),
    build_receipt(7, "fallback", None, cost=0.1, kind="failed", target=None),
    build_receipt(8, "share", None, cost=3.0),
    build_receipt(9, "policy", "after", cost=9.0),
]
SCORES = [Feedback(id=receipt_id(3), score=1, at=1), Feedback(id=receipt_id(2), score=0.5, at=1)]


def test_conversations_are_compared_while_there_were_both() -> None:
    scores = {score.id: [score] for score in SCORES}
    routed, rest = compare_share((r, scores.get(r.choice.id, [])) for r in TRAFFIC)
    assert [(arm.conversations, arm.requests) for arm in (routed, rest)] == [(2, 3), (2, 3)]
    assert (routed.cost.value, rest.cost.value) == (pytest.approx(0.2), 2.0)
    assert (routed.failed.value, rest.failed.value) == (0.5, 0.0)
    assert (routed.score.value, rest.score.value) == (1.0, 0.5)
    assert routed.seconds.conversations == 1
    less = routed.cost.less(rest.cost)
    assert less.value == pytest.approx(-1.8)
    assert less.half == pytest.approx(math.hypot(routed.cost.half, rest.cost.half))


def test_no_receipt_is_held_on_to() -> None:
    references: list[ref[Receipt]] = []

    def read() -> Iterator[tuple[Receipt, list[Feedback]]]:
        for number, reason in enumerate(["share", "policy"] * 3):
            receipt = build_receipt(number, reason, None, cost=1.0)
            references.append(ref(receipt))
            yield receipt, []
            assert not any(earlier() for earlier in references[:-1])

    routed, rest = compare_share(read())
    assert (routed.requests, rest.requests) == (2, 3)


def test_an_interval_is_that_of_a_normal_mean() -> None:
    mean = Mean.of([1.0, 2.0, 3.0, math.nan])
    assert (mean.value, mean.conversations) == (2.0, 3)
    assert mean.half == pytest.approx(1.96 / math.sqrt(3))
    assert math.isnan(Mean.of([1.0]).half)
    assert Mean.of([]).to_dict() == {"value": None, "half": None, "conversations": 0}


def test_what_cant_be_compared_is_told() -> None:
    with pytest.raises(DataError, match=r"traffic: \{share"):
        compare_share([(TRAFFIC[0], [])])
    with pytest.raises(DataError, match="prefill-router replay"):
        compare_share([(TRAFFIC[1], [])])


def test_the_command(tmp_path: Path) -> None:
    file = write_receipts(tmp_path / "a.sqlite", TRAFFIC, SCORES)
    value = json.loads(run_ok("canary", file, "--json"))
    assert value["rest"]["cost"]["value"] == 2.0
    assert value["difference"]["score"] == {"value": 0.5, "half": None, "conversations": 1}
    text = run_ok("canary", file)
    assert "-$1,800.00" in text
    assert "score" in text
    check_refused(
        "all of these requests were routed",
        "canary",
        write_receipts(tmp_path / "b.sqlite", TRAFFIC[:1]),
    )
