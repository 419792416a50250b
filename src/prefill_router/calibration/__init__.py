"""Calibration: from a predictor's scores to probabilities that hold.

none         as predicted
platt        a logistic curve of the logit
isotonic     the best rising curve there is
percentile   the rank among the calibration predictions; no probability
z_score      distance from their mean in standard deviations; no probability
"""

from prefill_router.calibration.base import Calibrator, CalibratorFit
from prefill_router.calibration.registry import (
    KINDS,
    CalibratorKind,
    find,
    fit_calibrator,
    load_calibrator,
)

__all__ = [
    "KINDS",
    "Calibrator",
    "CalibratorFit",
    "CalibratorKind",
    "find",
    "fit_calibrator",
    "load_calibrator",
]
