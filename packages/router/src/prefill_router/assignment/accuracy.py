"""How accurate the answers of an assignment will be, judged by queries with known outcomes.

The targets are chosen where the predictions are high, and some are high by error, so what is
predicted of the chosen ones may be too much. Judged queries that the router didn't learn from say
how much: they are decided at the same lam and the same prices, and predicted and observed
correctness of their chosen targets are compared. The difference corrects the forecast.

The interval holds the uncertainty of that difference (a bootstrap over the judged queries, in which
the turns of a conversation stay together) and the chance of the answers themselves. It doesn't hold
that the prompts may be unlike those queries.
"""

import math
from dataclasses import dataclass
from typing import Any, final

import numpy as np

from prefill_router.assignment.assignment import Assignment
from prefill_router.errors import DataError
from prefill_router.evaluation import NORMAL, Bootstrap, Estimate, Trial, mean_over
from prefill_router.policy import choose

_REASON = "no chosen target of a judged query has a label"


@final
@dataclass(frozen=True)
class ExpectedAccuracy:
    """The accuracy of an assignment's answers.

    Attributes:
        predicted: The mean of the predicted probabilities.
        error: What is observed more than predicted of the judged queries' chosen targets.
        corrected: The sum of both, and the 95 % interval in which the accuracy will lie if the
            prompts are like the judged queries.
        judged: The number of judged queries whose chosen target has a label.
    """

    predicted: float
    error: Estimate
    corrected: Estimate
    judged: int

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return {
            "predicted": self.predicted,
            "error": self.error.to_dict(),
            "corrected": self.corrected.to_dict(),
            "judged": self.judged,
        }


def expect_accuracy(
    assignment: Assignment, trial: Trial, *, resamples: int = 1000, seed: int = 0
) -> ExpectedAccuracy:
    """Correct an assignment's predicted accuracy by judged queries.

    Args:
        assignment: The assignment.
        trial: The same router's predictions, with labels, on queries that it didn't learn from. On
            the scale of costs of the assignment's predictions, to which lam belongs.
        resamples: Bootstrap resamples of the judged queries.
        seed: The seed of the resampling.

    Raises:
        DataError: The trial has other targets, or no chosen target has a label.
    """
    if trial.targets != assignment.targets:
        raise DataError(
            f"the judged queries are of {list(trial.targets)}; the assignment is of "
            f"{list(assignment.targets)}"
        )
    prices = np.array([assignment.prices.get(name, 0.0) for name in trial.targets])
    choice = choose(trial.correctness - prices, trial.cost, assignment.lam)
    errors = trial.of_choice(trial.correct - trial.correctness, choice)
    judged = int((~np.isnan(errors)).sum())
    if not judged:
        raise DataError(f"{_REASON}; give scored answers of the targets that are chosen")
    bootstrap = Bootstrap(len(errors), resamples, seed, 1, trial.conversations)
    error = bootstrap.estimate(lambda weights: mean_over(weights, errors), _REASON)
    predicted = assignment.expected_right / len(assignment)
    return ExpectedAccuracy(predicted, error, _with_chance(predicted, error, assignment), judged)


def _with_chance(predicted: float, error: Estimate, assignment: Assignment) -> Estimate:
    """The corrected accuracy; both sources of uncertainty are independent, so squares add up."""
    p = assignment.correctness
    chance = NORMAL * math.sqrt(float((p * (1 - p)).sum())) / len(p)
    value = min(max(predicted + error.value, 0.0), 1.0)
    below = math.hypot(error.value - error.lower, chance)
    above = math.hypot(error.upper - error.value, chance)
    return Estimate(value, max(value - below, 0.0), min(value + above, 1.0))
