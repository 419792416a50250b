from .run import (
    LOCK as LOCK,
    Answer as Answer,
    Attempt as Attempt,
    Retry as Retry,
    Run as Run,
    Task as Task,
    answer_text as answer_text,
    checksum as checksum,
    is_finished as is_finished,
    is_run as is_run,
    pack_text as pack_text,
    refuse_second as refuse_second,
    task_digest as task_digest,
    task_texts as task_texts,
)
from .run_database import (
    open_to_write as open_to_write,
)
