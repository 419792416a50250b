"""Choice AUC: do the probabilities tell which of two targets is right?

Most of a target's AUC is difficulty, which all targets share and which chooses nothing. What
chooses is the difference between two targets. So for each pair, over the queries that exactly one
of the two answers correctly, choice AUC is the AUC of the difference of their predicted log-odds;
0.5 is chance.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import combinations
from typing import final

import numpy as np
from jaxtyping import Bool, Float
from numpy.typing import NDArray

from prefill_router.data import binary
from prefill_router.evaluation.auc import Ranking
from prefill_router.evaluation.trial import PerCell
from prefill_router.evaluation.weighted import PerResample, Weights, divide

BEST = 6
"""How many of the most accurate targets `choice_auc_best` is of."""
_LEAST = 1e-6
"""Probabilities are kept so far from 0 and 1: their log-odds are finite."""


@final
@dataclass(frozen=True, eq=False)
class PairRankings:
    """The differences of log-odds of every pair of targets, sorted once.

    Attributes:
        rankings: One for each pair that is told apart by some query.
        best: Which of these are of two of the most accurate targets.
    """

    rankings: tuple[Ranking, ...]
    best: Bool[NDArray[np.bool_], " pair"]

    @classmethod
    def of(cls, correctness: PerCell, correct: PerCell) -> "PairRankings":
        """Sort the pairs; the most accurate targets are those of all the labels.

        Args:
            correctness: Predicted probabilities.
            correct: Labels in [0, 1]; NaN where missing.
        """
        known = ~np.isnan(correct)
        accuracy = divide(np.where(known, correct, 0).sum(axis=0), known.sum(axis=0) * 1.0)
        order = np.argsort(-np.nan_to_num(accuracy, nan=-1.0), kind="stable")
        leading = set(order[:BEST].tolist())
        found = list(_pairs(correctness, correct))
        best = [first in leading and second in leading for first, second, _ in found]
        return cls(tuple(ranking for _, _, ranking in found), np.array(best, dtype=np.bool_))

    def scores(self, weights: Weights) -> dict[str, PerResample]:
        """The mean over all pairs, and over those of the most accurate targets."""
        if not self.rankings:
            nothing = np.full(len(weights), np.nan)
            return {"choice_auc": nothing, "choice_auc_best": nothing}
        each = np.stack([ranking.auc(weights) for ranking in self.rankings], axis=1)
        return {"choice_auc": _mean(each), "choice_auc_best": _mean(each[:, self.best])}

    @property
    def width(self) -> int:
        """Numbers per resample in the largest table that scoring makes."""
        return max((len(one.right) + len(one.wrong) for one in self.rankings), default=0)


def _pairs(correctness: PerCell, correct: PerCell) -> Iterator[tuple[int, int, Ranking]]:
    chance = np.clip(correctness, _LEAST, 1 - _LEAST)
    odds = np.log(chance) - np.log1p(-chance)
    labels = binary(correct)
    for first, second in combinations(range(correct.shape[1]), 2):
        apart = labels[:, first] + labels[:, second] == 1
        if apart.any():
            label = np.where(apart, labels[:, first], np.nan)
            yield first, second, Ranking.of(odds[:, first] - odds[:, second], label)


def _mean(values: Float[NDArray[np.float64], "resample pair"]) -> PerResample:
    known = ~np.isnan(values)
    return divide(np.where(known, values, 0).sum(axis=1), known.sum(axis=1) * 1.0)
