"""A receipt survives as a row, whatever clients and providers put into it."""

import math
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st

from packages.gateway.tests.receipts.example_receipts import example_receipt, plain_values
from prefill_router.endpoints import Usage
from prefill_router.errors import CorruptError, DataError
from prefill_router_gateway import Receipt
from prefill_router_gateway.receipts import Feedback
from prefill_router_gateway.receipts.rows import COLUMNS, NAMES, from_row, to_row
from prefill_router_gateway.records import TargetAttempt

RECEIPT_FIELDS: dict[str, dict[str, Any]] = {
    "usual": {},
    "with a prompt": {"prompt": "What is 17 * 23?\0\ud800 é"},
    "with a chat": {"prompt": [{"role": "user", "content": "hello"}]},
    "named": {
        "choice": {
            "reason": "named",
            "lam": None,
            "lam_asked": None,
            "correctness": {},
            "estimated_cost": {},
            "policy_target": None,
            "novelty": None,
            "session": None,
        },
        "router": "",
        "policy": "",
        "key": None,
        "cost": None,
        "forecast_seconds": None,
    },
    "failed": {
        "choice": {
            "reason": "fallback",
            "fallback": "deadline",
            "excluded": {"small": "no images"},
        },
        "outcome": {
            "kind": "failed",
            "target": None,
            "status": 502,
            "usage": None,
            "attempts": (
                TargetAttempt(
                    target="large",
                    end="connect",
                    status=None,
                    seconds=0.5,
                    failure="its endpoint can't be reached; check its base_url",
                ),
                TargetAttempt(target="middle", end="server_error", status=500, seconds=0.125),
            ),
            "response_id": None,
            "tool_calls": (),
            "first_byte_seconds": None,
        },
    },
    "without counts": {"outcome": {"usage": Usage(), "usage_is_estimated": True}},
    "decided alone": {"outcome": {"kind": "routed", "target": None, "attempts": ()}},
}


@pytest.mark.parametrize("what", RECEIPT_FIELDS)
def test_a_receipt_comes_back_as_it_was(what: str) -> None:
    receipt = example_receipt(7, **RECEIPT_FIELDS[what])
    row = to_row(receipt)
    assert plain_values(from_row(row)) == plain_values(receipt)
    for column, value in zip(COLUMNS, row, strict=True):
        assert (value is None) <= column.optional, column.name
        kinds = {"text": str, "json": str, "real": float, "integer": int, "flag": int}
        assert value is None or type(value) is kinds[column.kind], column.name


TEXTS = st.text(st.characters(), max_size=50)  # with zero bytes and lone surrogates
COUNTS = st.none() | st.integers(min_value=-(10**30), max_value=10**30)


@pytest.mark.slow
@given(requested=TEXTS, key=st.none() | TEXTS, tokens=COUNTS, cost=st.none() | st.floats())
@settings(max_examples=200, deadline=None)
def test_what_others_send_fits_into_any_database(
    requested: str, key: str | None, tokens: int | None, cost: float | None
) -> None:
    usage = Usage(input_tokens=tokens, reported={"prompt_tokens": tokens})
    receipt = example_receipt(
        1, requested=requested, key=key, cost=cost, outcome={"usage": usage}, prompt=requested
    )
    for value in to_row(receipt):
        if isinstance(value, str):
            assert "\0" not in value
            value.encode()
        elif isinstance(value, int):
            assert abs(value) < 2**63
        else:
            assert value is None or math.isfinite(value)
    assert from_row(to_row(receipt)).prompt == requested


def test_a_long_text_is_cut() -> None:
    assert len(from_row(to_row(example_receipt(1, requested="x" * 5000))).requested) == 1000


@pytest.mark.parametrize(
    ("column", "value"),
    [("answer", "{"), ("ranking", "[]x"), ("attempts", '[["a"]]'), ("answer", "{}")],
)
def test_a_broken_row_is_told(column: str, value: str) -> None:
    row = list(to_row(example_receipt(1)))
    row[NAMES.index(column)] = value
    with pytest.raises(CorruptError, match="is damaged"):
        from_row(row)


@pytest.mark.parametrize(
    "changes",
    [
        {"score": 1.1},
        {"score": -0.1},
        {"score": math.nan},
        {"at": math.inf},
        {"id": ""},
        {"source": "a\nb"},
        {"source": "x" * 201},
        {"id": "\ud800"},
    ],
)
def test_feedback_that_makes_no_sense_is_refused(changes: dict[str, Any]) -> None:
    fields: dict[str, Any] = {"id": "pr_1", "score": 0.5, "at": 1.0}
    assert Feedback(**fields).row() == ("pr_1", "user", 1.0, 0.5, None)
    with pytest.raises(DataError, match="must"):
        Feedback(**{**fields, **changes})


def test_receipts_name_their_columns_once() -> None:
    assert len(set(NAMES)) == len(NAMES) == len(to_row(example_receipt(1)))
    assert isinstance(from_row(to_row(example_receipt(2))), Receipt)
