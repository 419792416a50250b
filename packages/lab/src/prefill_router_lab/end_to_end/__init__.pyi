from .contender import (
    Contender as Contender,
    Latency as Latency,
    PerCell as PerCell,
    Speed as Speed,
    answer_seconds as answer_seconds,
    read_speeds as read_speeds,
    time_routing as time_routing,
)
from .options import EndToEndOptions as EndToEndOptions
from .study import (
    NAME as NAME,
    ROUTER as ROUTER,
    EndToEndPoint as EndToEndPoint,
    EndToEndStudy as EndToEndStudy,
    study_end_to_end as study_end_to_end,
)
