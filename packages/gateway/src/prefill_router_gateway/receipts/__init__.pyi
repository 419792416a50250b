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
    version_details as version_details,
    version_name_of as version_name_of,
    version_of as version_of,
    version_step_of as version_step_of,
)
from .labels import (
    REVERSED as REVERSED,
    USER_ERROR as USER_ERROR,
    AnswerLabel as AnswerLabel,
    ChangeKind as ChangeKind,
    LabelledSample as LabelledSample,
    LearningRow as LearningRow,
    RecordedChange as RecordedChange,
    RepeatedRequest as RepeatedRequest,
    SampleDraft as SampleDraft,
    SampledRequest as SampledRequest,
    SideAnswer as SideAnswer,
    SideQuestions as SideQuestions,
    combine_labels as combine_labels,
    labelled_samples as labelled_samples,
    learning_insert as learning_insert,
    open_learning as open_learning,
    read_learning as read_learning,
    write_learning as write_learning,
)
from .person_turns import (
    PersonTurn as PersonTurn,
    turns_by_request as turns_by_request,
    turns_of as turns_of,
)
from .reader import (
    RequestSpend as RequestSpend,
    SessionTurn as SessionTurn,
    is_recorded as is_recorded,
    latest_feedback as latest_feedback,
    read_receipts as read_receipts,
    recent as recent,
    scored_receipts as scored_receipts,
    sessions_before as sessions_before,
    sessions_since as sessions_since,
    since_time as since_time,
    spend_since as spend_since,
)
from .receipt_replay import (
    Replay as Replay,
    ReplaySetting as ReplaySetting,
    at_prices as at_prices,
    by_router as by_router,
    check_any as check_any,
    replay as replay,
    replay_sessions as replay_sessions,
    replay_setting as replay_setting,
)
from .receipt_summary import (
    KeyTotals as KeyTotals,
    Mean as Mean,
    ReceiptsSummary as ReceiptsSummary,
    TargetTotals as TargetTotals,
    compare_share as compare_share,
    summary as summary,
)
from .replay_figure import write_picture as write_picture
from .replay_table import (
    ExpectedCurve as ExpectedCurve,
    Recorded as Recorded,
    ReplayPoint as ReplayPoint,
)
from .retention import purge as purge
from .rows import (
    Feedback as Feedback,
    ReceiptColumn as ReceiptColumn,
    latest_scores as latest_scores,
    prompt_of as prompt_of,
)
from .savings import (
    CHARGES as CHARGES,
    Deduction as Deduction,
    RequestSaving as RequestSaving,
    Savings as Savings,
    SavingsEstimate as SavingsEstimate,
    read_costs as read_costs,
    request_saving as request_saving,
    savings_since as savings_since,
)
from .store import (
    file_of as file_of,
    insert_rows as insert_rows,
    make_table as make_table,
    open_store as open_store,
)
from .writer import (
    ReceiptWriter as ReceiptWriter,
    RecentRequests as RecentRequests,
    WriterStats as WriterStats,
    report_outcome as report_outcome,
)
