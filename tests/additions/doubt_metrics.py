"""How unsure a router is."""

import numpy as np

from prefill_router.evaluation.bootstrap import PerResample, mean_over
from prefill_router.evaluation.scores import Scores, metric


@metric("Doubt", "number", "lower", quoted="nowhere", compares=False)
def doubt(scores: Scores) -> PerResample:
    """How near the probabilities are to one half.

    Reading: of all targets
    """
    distance = np.abs(scores.trial.correctness - 0.5)
    return 1 - 2 * mean_over(scores.weights, distance.mean(axis=1))
