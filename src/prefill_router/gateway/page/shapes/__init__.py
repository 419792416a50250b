"""The JSON that the page reads: every reply of `/page/api`, in one place.

Times `at` are seconds since 1970, durations are seconds, money is US dollars, prices are dollars
per million tokens, and shares and probabilities lie in [0, 1]. A value that isn't known is null.
Numbers are finite. No prompt and no key is ever part of any of them.
"""

from prefill_router.gateway.page.shapes.decisions import (
    AttemptView,
    Decision,
    DecisionDetail,
    Decisions,
    Stretch,
    TargetView,
    Timings,
    Tokens,
    Turn,
)
from prefill_router.gateway.page.shapes.health import (
    Breaker,
    Drift,
    FeatureDrift,
    MinuteView,
    Overview,
    State,
    TargetHealth,
    Targets,
    Timeline,
)
from prefill_router.gateway.page.shapes.money import (
    BudgetState,
    Curve,
    CurvePoint,
    Instead,
    KeySpend,
    LamSet,
    Move,
    Single,
    Spend,
    SpendWindow,
    TargetSpend,
    WhatIf,
)

__all__ = [
    "AttemptView",
    "Breaker",
    "BudgetState",
    "Curve",
    "CurvePoint",
    "Decision",
    "DecisionDetail",
    "Decisions",
    "Drift",
    "FeatureDrift",
    "Instead",
    "KeySpend",
    "LamSet",
    "MinuteView",
    "Move",
    "Overview",
    "Single",
    "Spend",
    "SpendWindow",
    "State",
    "Stretch",
    "TargetHealth",
    "TargetSpend",
    "TargetView",
    "Targets",
    "Timeline",
    "Timings",
    "Tokens",
    "Turn",
    "WhatIf",
]
