from .cascade import (
    AnswerScorer as AnswerScorer,
    Cascade as Cascade,
    CascadeAttempt as CascadeAttempt,
    CascadeRun as CascadeRun,
)
from .path import (
    LambdaPath as LambdaPath,
    check_lam as check_lam,
    choose as choose,
    lambda_path as lambda_path,
    rank as rank,
    score as score,
)
from .policies import (
    KINDS as KINDS,
    POLICIES as POLICIES,
    Argmax as Argmax,
    Lambda as Lambda,
    OperatingPoints as OperatingPoints,
    Policy as Policy,
    Predictions as Predictions,
    Threshold as Threshold,
    Tiered as Tiered,
    Tolerance as Tolerance,
    WinScore as WinScore,
    from_dict as from_dict,
)
from .stages import FrugalCascade as FrugalCascade, FrugalFit as FrugalFit
