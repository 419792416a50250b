"""Receipts: one row for each request, in SQLite or PostgreSQL."""

from prefill_router.gateway.receipts.explain import Explanation, TargetLine, decide_again, explain
from prefill_router.gateway.receipts.export import Export, export
from prefill_router.gateway.receipts.feedback import Feedback
from prefill_router.gateway.receipts.kept import as_kept, prompt_of
from prefill_router.gateway.receipts.opening import open_store
from prefill_router.gateway.receipts.reading import (
    Spending,
    Turn,
    is_recorded,
    latest_feedback,
    read_receipts,
    recent,
    scored_receipts,
    sessions_since,
    spend_since,
)
from prefill_router.gateway.receipts.receipt import Receipt
from prefill_router.gateway.receipts.recorded import ExpectedCurve, Point, Recorded
from prefill_router.gateway.receipts.replay import (
    Replay,
    Setting,
    at_prices,
    by_router,
    check_any,
    replay,
    setting,
)
from prefill_router.gateway.receipts.scaled import (
    Keeping,
    keeping_details,
    keeping_of,
    scale_details,
)
from prefill_router.gateway.receipts.store import DownError, RowError, Store
from prefill_router.gateway.receipts.summary import (
    Instead,
    KeyTotals,
    ReceiptsSummary,
    TargetTotals,
    summary,
)
from prefill_router.gateway.receipts.writer import Writer, WriterStats

__all__ = [
    "DownError",
    "ExpectedCurve",
    "Explanation",
    "Export",
    "Feedback",
    "Instead",
    "Keeping",
    "KeyTotals",
    "Point",
    "Receipt",
    "ReceiptsSummary",
    "Recorded",
    "Replay",
    "RowError",
    "Setting",
    "Spending",
    "Store",
    "TargetLine",
    "TargetTotals",
    "Turn",
    "Writer",
    "WriterStats",
    "as_kept",
    "at_prices",
    "by_router",
    "check_any",
    "decide_again",
    "explain",
    "export",
    "is_recorded",
    "keeping_details",
    "keeping_of",
    "latest_feedback",
    "open_store",
    "prompt_of",
    "read_receipts",
    "recent",
    "replay",
    "scale_details",
    "scored_receipts",
    "sessions_since",
    "setting",
    "spend_since",
    "summary",
]
