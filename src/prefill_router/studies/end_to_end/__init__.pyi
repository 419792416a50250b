from .contender import (
    Charge as Charge,
    Contender as Contender,
    PerCell as PerCell,
    tokens_read as tokens_read,
)
from .latency import (
    Latency as Latency,
    Speed as Speed,
    answer_seconds as answer_seconds,
    read_speeds as read_speeds,
    time_routing as time_routing,
)
from .page import NAME as NAME, report_of as report_of
from .result import ROUTER as ROUTER, EndToEndPoint as EndToEndPoint, EndToEndStudy as EndToEndStudy
from .study import LAMS as LAMS, study_end_to_end as study_end_to_end
