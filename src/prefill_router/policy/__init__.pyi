from .base import KINDS as KINDS, Policy as Policy, from_dict as from_dict
from .cascade import (
    AnswerScorer as AnswerScorer,
    Cascade as Cascade,
    CascadeAttempt as CascadeAttempt,
    CascadeRun as CascadeRun,
)
from .frugal import FrugalCascade as FrugalCascade, FrugalFit as FrugalFit
from .path import (
    LambdaPath as LambdaPath,
    check_lam as check_lam,
    choose as choose,
    lambda_path as lambda_path,
    rank as rank,
    score as score,
)
from .policies import (
    Argmax as Argmax,
    Lambda as Lambda,
    Threshold as Threshold,
    Tiered as Tiered,
    Tolerance as Tolerance,
    WinScore as WinScore,
)
from .predictions import OperatingPoints as OperatingPoints, Predictions as Predictions
