"""Calibration: from a predictor's scores to calibrated probabilities.

    none         as predicted
    platt        a logistic curve of the logit
    isotonic     the best non-decreasing curve
    percentile   the rank among the calibration predictions; not a probability
    z_score      distance from their mean in standard deviations; not a probability

Before that, a router's predictions are shrunk towards base rates; see `Shrinkage`.
"""

from prefill_router.lazy_imports import face

__getattr__, __dir__, __all__ = face(__name__, __file__)
