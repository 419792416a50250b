from .curves import (
    LearningCurve as LearningCurve,
    PowerLaw as PowerLaw,
    SizePoint as SizePoint,
    Trend as Trend,
)
from .options import FULL as FULL, LearningOptions as LearningOptions, Size as Size
from .result import NAME as NAME, LearningStudy as LearningStudy
from .study import study_learning as study_learning
from .subsamples import choose_sizes as choose_sizes, thin as thin
