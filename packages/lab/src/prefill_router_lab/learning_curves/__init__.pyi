from .curves import (
    LearningCurve as LearningCurve,
    PowerLaw as PowerLaw,
    SizePoint as SizePoint,
    Trend as Trend,
)
from .result import NAME as NAME, LearningStudy as LearningStudy
from .study import check_options as check_options, study_learning as study_learning
from .subsamples import FULL as FULL, Size as Size, sizes_for as sizes_for, thinned as thinned
