"""Who answers: policies from predicted correctness and cost to a choice, and their exact paths.

    lambda      the best score of Equation 2 (the paper's)
    argmax      the most probable target
    tolerance   the cheapest target that is nearly as probable as the best
    threshold   of a strong and a weak target, the strong one where it is likely enough to win
    tiered      the best of the cheapest tier that is good enough
    cascade     one after the other, until an answer passes a quality check

`FrugalCascade` learns a cascade's order, thresholds and scorer.

Each has one parameter in [0, 1], from the cheapest or weakest end to the most accurate one.
"""

from prefill_router.policy.base import Policy
from prefill_router.policy.cascade import Cascade, CascadeAttempt, CascadeRun
from prefill_router.policy.frugal import FrugalCascade, FrugalFit
from prefill_router.policy.path import LambdaPath, check_lam, choose, lambda_path, rank, score
from prefill_router.policy.policies import Argmax, Lambda, Threshold, Tiered, Tolerance, WinScore
from prefill_router.policy.predictions import OperatingPoints, Predictions
from prefill_router.policy.registry import KINDS, from_dict
from prefill_router.policy.scorer import AnswerScorer

__all__ = [
    "KINDS",
    "AnswerScorer",
    "Argmax",
    "Cascade",
    "CascadeAttempt",
    "CascadeRun",
    "FrugalCascade",
    "FrugalFit",
    "Lambda",
    "LambdaPath",
    "OperatingPoints",
    "Policy",
    "Predictions",
    "Threshold",
    "Tiered",
    "Tolerance",
    "WinScore",
    "check_lam",
    "choose",
    "from_dict",
    "lambda_path",
    "rank",
    "score",
]
