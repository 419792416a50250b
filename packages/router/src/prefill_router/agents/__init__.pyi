from .harness import (
    Harness as Harness,
    Harnesses as Harnesses,
    RequestKind as RequestKind,
    load_harnesses as load_harnesses,
    read_harnesses as read_harnesses,
)
from .request_reading import (
    EARLIER as EARLIER,
    SHORT as SHORT,
    RequestReading as RequestReading,
    Turn as Turn,
    TurnRole as TurnRole,
    read_request as read_request,
)
