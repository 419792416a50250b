"""Linear probes: how well a plain logistic regression reads each target's correctness."""

from prefill_router.probes.crossval import FOLDS, cross_validated_auc
from prefill_router.probes.logistic import Probes
from prefill_router.probes.ranking import auc_by_target

__all__ = ["FOLDS", "Probes", "auc_by_target", "cross_validated_auc"]
