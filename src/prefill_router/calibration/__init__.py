"""Calibration: from a predictor's scores to probabilities that hold.

none         as predicted
platt        a logistic curve of the logit
isotonic     the best rising curve there is
percentile   the rank among the calibration predictions; no probability
z_score      distance from their mean in standard deviations; no probability

Before it, a router's predictions are shrunk towards base rates, see `Shrinkage`.
"""

from prefill_router.calibration.base import Calibrator, CalibratorFit
from prefill_router.calibration.registry import (
    KINDS,
    CalibratorKind,
    find,
    fit_calibrator,
    load_calibrator,
)
from prefill_router.calibration.shrinkage import Shrinkage

__all__ = [
    "KINDS",
    "Calibrator",
    "CalibratorFit",
    "CalibratorKind",
    "Shrinkage",
    "find",
    "fit_calibrator",
    "load_calibrator",
]
