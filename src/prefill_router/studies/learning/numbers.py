"""What a learning curve is drawn of."""

from typing import Literal, final, get_args

import numpy as np

from prefill_router.evaluation import Trial
from prefill_router.evaluation.curve import Sweep
from prefill_router.evaluation.metrics import auc_by_target, brier_by_target, macro_mean, rankings
from prefill_router.evaluation.scores import best_point
from prefill_router.evaluation.weighted import (
    PerResample,
    Weights,
    divide,
    known_mean,
    mean_over,
)

Number = Literal["auc_mean", "brier_mean", "argmax_accuracy", "headroom_captured"]
NUMBERS: tuple[Number, ...] = get_args(Number)
"""As in `evaluation.catalogue.HEADLINE`."""
_SAME = 1e-12


@final
class Judge:
    """One fit on the test queries, sorted once."""

    def __init__(self, trial: Trial) -> None:
        self._trial, self._ranking, self._sweep = trial, rankings(trial), Sweep.of(trial)

    def numbers(self, weights: Weights) -> dict[Number, PerResample]:
        """Each number in each resample."""
        trial, same = self._trial, weights * self._trial.compared
        top, _ = best_point(self._sweep.points(weights))
        single = np.fmax.reduce(known_mean(same, trial.single_label), axis=1)
        room = mean_over(same, trial.best_label) - single
        label = trial.of_choice(trial.correct, trial.most_probable)
        return {
            "auc_mean": macro_mean(auc_by_target(self._ranking, weights)),
            "brier_mean": macro_mean(brier_by_target(trial, weights)),
            "argmax_accuracy": mean_over(same, label),
            "headroom_captured": divide(top - single, np.where(room > _SAME, room, 0)),
        }


def better(number: Number) -> int:
    """1 where a higher number is better, else -1."""
    return -1 if number == "brier_mean" else 1
