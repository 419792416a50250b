"""From features to each target's probability of a correct answer."""

from prefill_router.predictors.base import Examples, Predictor, PredictorConfig, PredictorFit
from prefill_router.predictors.registry import load_predictor
from prefill_router.predictors.trunk import (
    SharedTrunkNet,
    TrainingCurves,
    TrunkConfig,
    TrunkFit,
    fit_trunk,
)

__all__ = [
    "Examples",
    "Predictor",
    "PredictorConfig",
    "PredictorFit",
    "SharedTrunkNet",
    "TrainingCurves",
    "TrunkConfig",
    "TrunkFit",
    "fit_trunk",
    "load_predictor",
]
