"""Any set of routers, fitted and judged side by side on one split."""

from prefill_router.reports.compare.plan import ALL, Plan, draw_for, recipes_of
from prefill_router.reports.compare.report import STUDY, write
from prefill_router.reports.compare.run import Judged, Result, run_plan

__all__ = [
    "ALL",
    "STUDY",
    "Judged",
    "Plan",
    "Result",
    "draw_for",
    "recipes_of",
    "run_plan",
    "write",
]
