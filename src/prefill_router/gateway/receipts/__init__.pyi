from .canary import Mean as Mean, compare_share as compare_share
from .dataset_export import DatasetExport as DatasetExport, export as export
from .explanation import (
    AffinityRule as AffinityRule,
    Explanation as Explanation,
    TargetLine as TargetLine,
    affinity_rule_details as affinity_rule_details,
    affinity_rule_of as affinity_rule_of,
    decide_again as decide_again,
    explain as explain,
    scale_details as scale_details,
)
from .postgres import postgres_options as postgres_options, unreachable as unreachable
from .reader import (
    RequestSpend as RequestSpend,
    SessionTurn as SessionTurn,
    is_recorded as is_recorded,
    latest_feedback as latest_feedback,
    read_receipts as read_receipts,
    recent as recent,
    scored_receipts as scored_receipts,
    sessions_since as sessions_since,
    spend_since as spend_since,
)
from .receipt_replay import (
    Replay as Replay,
    ReplaySetting as ReplaySetting,
    at_prices as at_prices,
    by_router as by_router,
    check_any as check_any,
    replay as replay,
    replay_setting as replay_setting,
)
from .receipt_summary import (
    KeyTotals as KeyTotals,
    ReceiptsSummary as ReceiptsSummary,
    SingleTargetCosts as SingleTargetCosts,
    TargetTotals as TargetTotals,
    summary as summary,
)
from .replay_figure import write_picture as write_picture
from .replay_table import (
    ExpectedCurve as ExpectedCurve,
    Recorded as Recorded,
    ReplayPoint as ReplayPoint,
)
from .rows import Feedback as Feedback, as_kept as as_kept, prompt_of as prompt_of
from .session_replay import replay_sessions as replay_sessions
from .store import (
    DownError as DownError,
    RowError as RowError,
    Store as Store,
    file_of as file_of,
    open_store as open_store,
)
from .writer import ReceiptWriter as ReceiptWriter, WriterStats as WriterStats
