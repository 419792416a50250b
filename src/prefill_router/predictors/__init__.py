"""From features to each target's probability of a correct answer."""

from prefill_router.predictors.base import Predictor
from prefill_router.predictors.loading import load_predictor
from prefill_router.predictors.trunk import (
    SharedTrunkNet,
    TrainingCurves,
    TrunkConfig,
    TrunkFit,
    fit_trunk,
)

__all__ = [
    "Predictor",
    "SharedTrunkNet",
    "TrainingCurves",
    "TrunkConfig",
    "TrunkFit",
    "fit_trunk",
    "load_predictor",
]
