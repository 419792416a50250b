"""What routing costs and how long it takes with everything counted: encoder, decision, answer."""

from prefill_router.studies.end_to_end.charge import Charge, tokens_read
from prefill_router.studies.end_to_end.contender import Contender
from prefill_router.studies.end_to_end.latency import Latency, time_routing
from prefill_router.studies.end_to_end.result import EndToEnd, Point
from prefill_router.studies.end_to_end.speeds import Speed, answer_seconds, read_speeds
from prefill_router.studies.end_to_end.study import LAMS, study_end_to_end

__all__ = [
    "LAMS",
    "Charge",
    "Contender",
    "EndToEnd",
    "Latency",
    "Point",
    "Speed",
    "answer_seconds",
    "read_speeds",
    "study_end_to_end",
    "time_routing",
    "tokens_read",
]
