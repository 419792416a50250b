"""Judge routers: metrics, the exact accuracy-cost curve, bootstrap intervals, reports."""

from typing import TYPE_CHECKING

from prefill_router.evaluation.area import Anchors, Axis, frontier, oracle_distance, padded_area
from prefill_router.evaluation.bootstrap import Estimate
from prefill_router.evaluation.curve import Sweep
from prefill_router.evaluation.evaluation import Comparison, Evaluation
from prefill_router.evaluation.judging import evaluate
from prefill_router.evaluation.mix import MixPoint
from prefill_router.evaluation.operating import Curve, Step
from prefill_router.evaluation.operating_points import OperatingPoints
from prefill_router.evaluation.paired import Paired, compare, paired
from prefill_router.evaluation.predictions import Predictions
from prefill_router.evaluation.quality import QualityCheck, RecordedCheck, SimulatedCheck
from prefill_router.evaluation.trial import Trial
from prefill_router.evaluation.verdict import Verdict, judge
from prefill_router.on_demand import on_demand

if TYPE_CHECKING:
    from prefill_router.evaluation.report import check_replaceable, is_report, write_report

_HOME = dict.fromkeys(("check_replaceable", "is_report", "write_report"), "report")

__all__ = [
    "Anchors",
    "Axis",
    "Comparison",
    "Curve",
    "Estimate",
    "Evaluation",
    "MixPoint",
    "OperatingPoints",
    "Paired",
    "Predictions",
    "QualityCheck",
    "RecordedCheck",
    "SimulatedCheck",
    "Step",
    "Sweep",
    "Trial",
    "Verdict",
    "check_replaceable",
    "compare",
    "evaluate",
    "frontier",
    "is_report",
    "judge",
    "oracle_distance",
    "padded_area",
    "paired",
    "write_report",
]

__getattr__ = on_demand(__name__, _HOME)
