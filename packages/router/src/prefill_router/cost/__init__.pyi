from .estimate import CostEstimator as CostEstimator, CostScale as CostScale
from .output import (
    HIGH as HIGH,
    Expected as Expected,
    OutputFit as OutputFit,
    OutputHead as OutputHead,
    fit_output as fit_output,
)
