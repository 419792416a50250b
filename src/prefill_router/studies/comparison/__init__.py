"""Any set of routers, fitted and judged side by side on one split."""

from prefill_router.studies.comparison.comparison import (
    ALL,
    ComparedRouter,
    ComparisonPlan,
    ComparisonResult,
    draw_for,
    recipes_of,
    run_plan,
)
from prefill_router.studies.comparison.report import STUDY, write

__all__ = [
    "ALL",
    "STUDY",
    "ComparedRouter",
    "ComparisonPlan",
    "ComparisonResult",
    "draw_for",
    "recipes_of",
    "run_plan",
    "write",
]
