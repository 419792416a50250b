"""The assembled router: save, load, route."""

from prefill_router.router.decision import Decision, Segment
from prefill_router.router.record import Interval, Record, TrainedOn
from prefill_router.router.router import EncoderSources, Request, Router, as_prompt

__all__ = [
    "Decision",
    "EncoderSources",
    "Interval",
    "Record",
    "Request",
    "Router",
    "Segment",
    "TrainedOn",
    "as_prompt",
]
