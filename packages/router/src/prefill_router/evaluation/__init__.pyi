from .bootstrap import (
    LEVEL as LEVEL,
    SAME as SAME,
    Band as Band,
    Bootstrap as Bootstrap,
    Estimate as Estimate,
    Estimates as Estimates,
    PerResample as PerResample,
    Weights as Weights,
    chunks as chunks,
    count_groups as count_groups,
    divide as divide,
    estimates_to_dict as estimates_to_dict,
    known_mean as known_mean,
    mean_over as mean_over,
    ones as ones,
    plain as plain,
    warn_of_few as warn_of_few,
)
from .chance_labels import (
    ChanceLabels as ChanceLabels,
    Choice as Choice,
    Overlap as Overlap,
    TargetOverlap as TargetOverlap,
    weighted_means as weighted_means,
)
from .curve import CPT as CPT, LambdaSweep as LambdaSweep, Points as Points
from .evaluation import (
    Curve as Curve,
    Evaluation as Evaluation,
    Step as Step,
    evaluate as evaluate,
)
from .fixed_mix import (
    Anchors as Anchors,
    Axis as Axis,
    FixedChoice as FixedChoice,
    MixPoint as MixPoint,
    envelope_targets as envelope_targets,
    frontier as frontier,
    oracle_distance as oracle_distance,
    padded_area as padded_area,
)
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
    BUDGETS as BUDGETS,
    MARGIN as MARGIN,
    Goal as Goal,
    SettingRule as SettingRule,
    choose_operating_points as choose_operating_points,
    paired_mean as paired_mean,
)
from .paired_comparison import (
    Comparison as Comparison,
    Paired as Paired,
    compare as compare,
    paired as paired,
)
from .quality_checks import (
    QualityCheck as QualityCheck,
    RecordedCheck as RecordedCheck,
    SimulatedCheck as SimulatedCheck,
)
from .references import (
    MixedReference as MixedReference,
    RateChoice as RateChoice,
    References as References,
    ReferenceTable as ReferenceTable,
    Rule as Rule,
)
from .reliability import (
    Bins as Bins,
    brier_parts_by_target as brier_parts_by_target,
    calibration_error as calibration_error,
    chance_error as chance_error,
    ece_by_target as ece_by_target,
    with_chance as with_chance,
)
from .reliability_diagram import (
    CalibratorComparison as CalibratorComparison,
    Diagram as Diagram,
    Reliability as Reliability,
    reliability_of as reliability_of,
    try_calibrators as try_calibrators,
)
from .scores import (
    HEADLINE as HEADLINE,
    NOTHING as NOTHING,
    PER as PER,
    REGIME as REGIME,
    TARGET as TARGET,
    UNKNOWN as UNKNOWN,
    Better as Better,
    MetricEntry as MetricEntry,
    Scorer as Scorer,
    Unit as Unit,
    best_point as best_point,
    digits as digits,
    interval as interval,
    single_points as single_points,
    worded as worded,
)
from .verdict import (
    NORMAL as NORMAL,
    WORTH as WORTH,
    CurvePoint as CurvePoint,
    JudgedPart as JudgedPart,
    PricePoint as PricePoint,
    ReferenceGain as ReferenceGain,
    Verdict as Verdict,
    Word as Word,
    judge as judge,
    points as points,
    trace_price as trace_price,
)
from .win_rate import (
    FixedRanking as FixedRanking,
    VotedPart as VotedPart,
    WinVerdict as WinVerdict,
    judge_votes as judge_votes,
)
