"""SharedTrunkNet and its training; importing it doesn't load torch, fitting does."""

from prefill_router.predictors.trunk.config import TrunkConfig
from prefill_router.predictors.trunk.curves import TrainingCurves
from prefill_router.predictors.trunk.fit import TrunkFit, fit_trunk
from prefill_router.predictors.trunk.network import SharedTrunkNet

__all__ = ["SharedTrunkNet", "TrainingCurves", "TrunkConfig", "TrunkFit", "fit_trunk"]
