"""Learning curves: how good a router is with fewer labels, and whether more would help."""

from prefill_router.studies.learning.result import (
    LearningCurve,
    LearningStudy,
    PowerLaw,
    SizePoint,
    Trend,
)
from prefill_router.studies.learning.study import LearningPlan, study_learning
from prefill_router.studies.learning.subsamples import FULL, Size, sizes_for, thinned

__all__ = [
    "FULL",
    "LearningCurve",
    "LearningPlan",
    "LearningStudy",
    "PowerLaw",
    "Size",
    "SizePoint",
    "Trend",
    "sizes_for",
    "study_learning",
    "thinned",
]
