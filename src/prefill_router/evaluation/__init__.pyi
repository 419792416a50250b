from .accuracy_cost_plane import (
    Anchors as Anchors,
    Axis as Axis,
    frontier as frontier,
    oracle_distance as oracle_distance,
    padded_area as padded_area,
)
from .binning import Bins as Bins
from .bootstrap import (
    LEVEL as LEVEL,
    Band as Band,
    Bootstrap as Bootstrap,
    Estimate as Estimate,
    Estimates as Estimates,
    PerResample as PerResample,
    Weights as Weights,
    chunks as chunks,
    divide as divide,
    known_mean as known_mean,
    mean_over as mean_over,
    ones as ones,
    plain as plain,
)
from .calibrator_comparison import (
    CalibratorComparison as CalibratorComparison,
    try_calibrators as try_calibrators,
)
from .catalogue import (
    HEADLINE as HEADLINE,
    NOTHING as NOTHING,
    PER as PER,
    REGIME as REGIME,
    TARGET as TARGET,
    UNKNOWN as UNKNOWN,
    Better as Better,
    MetricEntry as MetricEntry,
    Unit as Unit,
    digits as digits,
    dollars as dollars,
    interval as interval,
    worded as worded,
)
from .chance_labels import (
    ChanceLabels as ChanceLabels,
    Overlap as Overlap,
    TargetOverlap as TargetOverlap,
    weighted_means as weighted_means,
)
from .curve import LambdaSweep as LambdaSweep, Points as Points
from .evaluation import (
    DEFAULT_LAM as DEFAULT_LAM,
    Comparison as Comparison,
    Evaluation as Evaluation,
    evaluate as evaluate,
)
from .fixed_mix import FixedChoice as FixedChoice, MixPoint as MixPoint
from .judged_predictions import Trial as Trial
from .metrics import (
    PairRankings as PairRankings,
    Ranking as Ranking,
    auc_by_target as auc_by_target,
    brier_by_target as brier_by_target,
    macro_mean as macro_mean,
    rankings as rankings,
)
from .off_policy import PolicyValue as PolicyValue, PolicyValues as PolicyValues
from .operating_points import (
    Curve as Curve,
    Step as Step,
    choose_operating_points as choose_operating_points,
)
from .paired_comparison import Paired as Paired, compare as compare, paired as paired
from .quality_checks import (
    QualityCheck as QualityCheck,
    RecordedCheck as RecordedCheck,
    SimulatedCheck as SimulatedCheck,
)
from .reliability import (
    brier_parts_by_target as brier_parts_by_target,
    calibration_error as calibration_error,
    chance_error as chance_error,
    ece_by_target as ece_by_target,
    with_chance as with_chance,
)
from .reliability_diagram import (
    Diagram as Diagram,
    Reliability as Reliability,
    reliability_of as reliability_of,
)
from .scores import Scorer as Scorer, best_point as best_point, single_points as single_points
from .verdict import (
    WORTH as WORTH,
    MixReference as MixReference,
    Verdict as Verdict,
    Word as Word,
    judge as judge,
    points as points,
)
