"""SharedTrunkNet and its training; importing it doesn't load torch, fitting does."""

from prefill_router.predictors.registry import Entry
from prefill_router.predictors.trunk.config import TrunkConfig
from prefill_router.predictors.trunk.curves import TrainingCurves
from prefill_router.predictors.trunk.fit import TrunkFit, fit_trunk
from prefill_router.predictors.trunk.network import SharedTrunkNet

ENTRY = Entry(TrunkConfig, SharedTrunkNet, "SharedTrunkNet", "section 3.1 of the paper")

__all__ = ["ENTRY", "SharedTrunkNet", "TrainingCurves", "TrunkConfig", "TrunkFit", "fit_trunk"]
