"""What routing costs and how long it takes with everything counted: encoder, decision, answer."""

from prefill_router.studies.end_to_end.contender import Charge, Contender, tokens_read
from prefill_router.studies.end_to_end.latency import (
    Latency,
    Speed,
    answer_seconds,
    read_speeds,
    time_routing,
)
from prefill_router.studies.end_to_end.result import EndToEndPoint, EndToEndStudy
from prefill_router.studies.end_to_end.study import LAMS, study_end_to_end

__all__ = [
    "LAMS",
    "Charge",
    "Contender",
    "EndToEndPoint",
    "EndToEndStudy",
    "Latency",
    "Speed",
    "answer_seconds",
    "read_speeds",
    "study_end_to_end",
    "time_routing",
    "tokens_read",
]
