from .run import (
    PERMANENT as PERMANENT,
    Answer as Answer,
    Attempt as Attempt,
    Retry as Retry,
    Run as Run,
    Task as Task,
)
