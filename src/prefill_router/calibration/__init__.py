"""Calibration: from a predictor's scores to probabilities that hold.

none         as predicted
platt        a logistic curve of the logit
isotonic     the best rising curve there is
percentile   the rank among the calibration predictions; no probability
z_score      distance from their mean in standard deviations; no probability

Before it, a router's predictions are shrunk towards base rates, see `Shrinkage`.
"""

from prefill_router.lazy_imports import face

__getattr__, __dir__, __all__ = face(__name__, __file__)
