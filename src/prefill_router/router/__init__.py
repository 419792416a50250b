"""The assembled router: save, load, route."""

from prefill_router.router.cascade import CascadePlan, CascadeStage, plan_cascade
from prefill_router.router.decision import Decision, Segment
from prefill_router.router.forecast import Forecast
from prefill_router.router.record import Interval, Record, TrainedOn
from prefill_router.router.request import Request, as_prompt
from prefill_router.router.router import Router
from prefill_router.router.sources import EncoderSources

__all__ = [
    "CascadePlan",
    "CascadeStage",
    "Decision",
    "EncoderSources",
    "Forecast",
    "Interval",
    "Record",
    "Request",
    "Router",
    "Segment",
    "TrainedOn",
    "as_prompt",
    "plan_cascade",
]
