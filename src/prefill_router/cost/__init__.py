"""What an answer will cost: Equation 1 of the paper, and the length that is expected of it."""

from prefill_router.cost.estimate import CostEstimator, CostScale
from prefill_router.cost.output import HIGH, Expected, OutputFit, OutputHead, fit_output

__all__ = [
    "HIGH",
    "CostEstimator",
    "CostScale",
    "Expected",
    "OutputFit",
    "OutputHead",
    "fit_output",
]
