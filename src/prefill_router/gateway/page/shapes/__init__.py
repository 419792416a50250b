"""The JSON that the page reads: every reply of `/page/api`, in one place.

Times `at` are seconds since 1970, durations are seconds, money is US dollars, prices are dollars
per million tokens, and shares and probabilities lie in [0, 1]. A value that isn't known is null.
Numbers are finite. No prompt and no key is ever part of any of them.
"""

from prefill_router.gateway.page.shapes.decisions import (
    AttemptView,
    DecisionDetail,
    DecisionRow,
    Decisions,
    Stretch,
    SwitchPoint,
    TargetView,
    Timings,
    Tokens,
)
from prefill_router.gateway.page.shapes.status import (
    Breaker,
    BudgetView,
    CurvePoint,
    CurveView,
    DriftView,
    FeatureDrift,
    KeySpend,
    LamSet,
    MinuteView,
    Move,
    Overview,
    Single,
    SingleTargetView,
    Spend,
    SpendWindow,
    State,
    TargetHealth,
    Targets,
    TargetSpend,
    Timeline,
    WhatIf,
)

__all__ = [
    "AttemptView",
    "Breaker",
    "BudgetView",
    "CurvePoint",
    "CurveView",
    "DecisionDetail",
    "DecisionRow",
    "Decisions",
    "DriftView",
    "FeatureDrift",
    "KeySpend",
    "LamSet",
    "MinuteView",
    "Move",
    "Overview",
    "Single",
    "SingleTargetView",
    "Spend",
    "SpendWindow",
    "State",
    "Stretch",
    "SwitchPoint",
    "TargetHealth",
    "TargetSpend",
    "TargetView",
    "Targets",
    "Timeline",
    "Timings",
    "Tokens",
    "WhatIf",
]
