"""Judge routers: metrics, the exact accuracy-cost curve, bootstrap intervals."""

from prefill_router.evaluation.accuracy_cost_plane import (
    Anchors,
    Axis,
    frontier,
    oracle_distance,
    padded_area,
)
from prefill_router.evaluation.bootstrap import Estimate
from prefill_router.evaluation.curve import LambdaSweep
from prefill_router.evaluation.curve_tables import Curve, Step
from prefill_router.evaluation.evaluation import Comparison, Evaluation, evaluate
from prefill_router.evaluation.fixed_mix import MixPoint
from prefill_router.evaluation.judged_predictions import Trial
from prefill_router.evaluation.operating_points import choose_operating_points
from prefill_router.evaluation.paired_comparison import Paired, compare, paired
from prefill_router.evaluation.quality_checks import QualityCheck, RecordedCheck, SimulatedCheck
from prefill_router.evaluation.verdict import Verdict, judge
from prefill_router.policy import OperatingPoints, Predictions

__all__ = [
    "Anchors",
    "Axis",
    "Comparison",
    "Curve",
    "Estimate",
    "Evaluation",
    "LambdaSweep",
    "MixPoint",
    "OperatingPoints",
    "Paired",
    "Predictions",
    "QualityCheck",
    "RecordedCheck",
    "SimulatedCheck",
    "Step",
    "Trial",
    "Verdict",
    "choose_operating_points",
    "compare",
    "evaluate",
    "frontier",
    "judge",
    "oracle_distance",
    "padded_area",
    "paired",
]
