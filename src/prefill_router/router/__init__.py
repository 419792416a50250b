"""The assembled router: save, load, route."""

from prefill_router.router.cascade import CascadePlan, CascadeStage, plan_cascade
from prefill_router.router.decision import Decision, Forecast, Request, Segment, as_prompt
from prefill_router.router.record import Interval, RouterRecord, TrainedOn
from prefill_router.router.router import Router
from prefill_router.router.states import EncoderSources

__all__ = [
    "CascadePlan",
    "CascadeStage",
    "Decision",
    "EncoderSources",
    "Forecast",
    "Interval",
    "Request",
    "Router",
    "RouterRecord",
    "Segment",
    "TrainedOn",
    "as_prompt",
    "plan_cascade",
]
