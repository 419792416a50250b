"""Receipts: one row for each request, in SQLite or PostgreSQL."""

from prefill_router.gateway.receipts.dataset_export import DatasetExport, export
from prefill_router.gateway.receipts.explanation import (
    AffinityRule,
    Explanation,
    TargetLine,
    affinity_rule_details,
    affinity_rule_of,
    decide_again,
    explain,
    scale_details,
)
from prefill_router.gateway.receipts.reader import (
    RequestSpend,
    SessionTurn,
    is_recorded,
    latest_feedback,
    read_receipts,
    recent,
    scored_receipts,
    sessions_since,
    spend_since,
)
from prefill_router.gateway.receipts.receipt_replay import (
    Replay,
    ReplaySetting,
    at_prices,
    by_router,
    check_any,
    replay,
    replay_setting,
)
from prefill_router.gateway.receipts.receipt_summary import (
    KeyTotals,
    ReceiptsSummary,
    SingleTargetCosts,
    TargetTotals,
    summary,
)
from prefill_router.gateway.receipts.replay_table import ExpectedCurve, Recorded, ReplayPoint
from prefill_router.gateway.receipts.rows import Feedback, as_kept, prompt_of
from prefill_router.gateway.receipts.store import DownError, RowError, Store, open_store
from prefill_router.gateway.receipts.writer import ReceiptWriter, WriterStats
from prefill_router.gateway.records import Receipt

__all__ = [
    "AffinityRule",
    "DatasetExport",
    "DownError",
    "ExpectedCurve",
    "Explanation",
    "Feedback",
    "KeyTotals",
    "Receipt",
    "ReceiptWriter",
    "ReceiptsSummary",
    "Recorded",
    "Replay",
    "ReplayPoint",
    "ReplaySetting",
    "RequestSpend",
    "RowError",
    "SessionTurn",
    "SingleTargetCosts",
    "Store",
    "TargetLine",
    "TargetTotals",
    "WriterStats",
    "affinity_rule_details",
    "affinity_rule_of",
    "as_kept",
    "at_prices",
    "by_router",
    "check_any",
    "decide_again",
    "explain",
    "export",
    "is_recorded",
    "latest_feedback",
    "open_store",
    "prompt_of",
    "read_receipts",
    "recent",
    "replay",
    "replay_setting",
    "scale_details",
    "scored_receipts",
    "sessions_since",
    "spend_since",
    "summary",
]
