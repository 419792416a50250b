"""Learning curves: how good a router is with fewer labels, and whether more would help."""

from prefill_router.studies.learning.power import PowerLaw
from prefill_router.studies.learning.result import Curve, Learning, SizePoint, Trend
from prefill_router.studies.learning.study import Plan, study_learning
from prefill_router.studies.learning.thinning import FULL, Size, sizes_for, thinned

__all__ = [
    "FULL",
    "Curve",
    "Learning",
    "Plan",
    "PowerLaw",
    "Size",
    "SizePoint",
    "Trend",
    "sizes_for",
    "study_learning",
    "thinned",
]
