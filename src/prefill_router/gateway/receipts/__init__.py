"""Receipts: one row for each request, in SQLite or PostgreSQL."""

from prefill_router.gateway.receipts.explain import Explanation, TargetLine, decide_again, explain
from prefill_router.gateway.receipts.feedback import Feedback
from prefill_router.gateway.receipts.opening import open_store
from prefill_router.gateway.receipts.reading import (
    Spending,
    Turn,
    latest_feedback,
    read_receipts,
    recent,
    sessions_since,
    spend_since,
)
from prefill_router.gateway.receipts.receipt import Receipt
from prefill_router.gateway.receipts.recorded import ExpectedCurve, Point, Recorded
from prefill_router.gateway.receipts.scaled import scale_details
from prefill_router.gateway.receipts.store import DownError, RowError, Store
from prefill_router.gateway.receipts.summary import (
    Instead,
    ReceiptsSummary,
    TargetTotals,
    summary,
)
from prefill_router.gateway.receipts.writer import Writer, WriterStats

__all__ = [
    "DownError",
    "ExpectedCurve",
    "Explanation",
    "Feedback",
    "Instead",
    "Point",
    "Receipt",
    "ReceiptsSummary",
    "Recorded",
    "RowError",
    "Spending",
    "Store",
    "TargetLine",
    "TargetTotals",
    "Turn",
    "Writer",
    "WriterStats",
    "decide_again",
    "explain",
    "latest_feedback",
    "open_store",
    "read_receipts",
    "recent",
    "scale_details",
    "sessions_since",
    "spend_since",
    "summary",
]
