from .page import NAME as NAME, report_of as report_of
from .result import (
    LearningCurve as LearningCurve,
    LearningStudy as LearningStudy,
    PowerLaw as PowerLaw,
    SizePoint as SizePoint,
    Trend as Trend,
)
from .study import LearningPlan as LearningPlan, study_learning as study_learning
from .subsamples import FULL as FULL, Size as Size, sizes_for as sizes_for, thinned as thinned
