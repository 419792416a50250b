"""ROC-AUC of weighted queries.

The AUC is how often a correctly answered query has the higher score, ties counting half; 0.5 is
chance. `probes.ranking` has it for rows that count once.
"""

from dataclasses import dataclass
from typing import final

import numpy as np
from jaxtyping import Float, Int
from numpy.typing import NDArray

from prefill_router.data import binary
from prefill_router.evaluation.weighted import PerResample, Weights, divide


@final
@dataclass(frozen=True, eq=False)
class Ranking:
    """Scores sorted once, so that the AUC of any weights needs no sorting.

    Attributes:
        right: The queries answered correctly.
        wrong: The queries answered wrongly, by rising score.
        below: For each of `right`, how many of `wrong` score less.
        upto: For each of `right`, how many of `wrong` score no more.
    """

    right: Int[NDArray[np.int64], " right"]
    wrong: Int[NDArray[np.int64], " wrong"]
    below: Int[NDArray[np.int64], " right"]
    upto: Int[NDArray[np.int64], " right"]

    @classmethod
    def of(
        cls,
        scores: Float[NDArray[np.float64], " query"],
        labels: Float[NDArray[np.float64], " query"],
    ) -> "Ranking":
        """Sort the scores of the measured queries."""
        cut = binary(labels[:, None])[:, 0]
        right = np.flatnonzero(cut == 1)
        right = right[np.argsort(scores[right], kind="stable")]
        wrong = np.flatnonzero(cut == 0)
        wrong = wrong[np.argsort(scores[wrong], kind="stable")]
        below = np.searchsorted(scores[wrong], scores[right], side="left")
        upto = np.searchsorted(scores[wrong], scores[right], side="right")
        return cls(right, wrong, below.astype(np.int64), upto.astype(np.int64))

    def auc(self, weights: Weights) -> PerResample:
        """The AUC in each resample; NaN where one class has no weight."""
        wrong, right = weights[:, self.wrong], weights[:, self.right]
        heap = np.zeros((len(weights), len(self.wrong) + 1))
        np.cumsum(wrong, axis=1, out=heap[:, 1:])
        won = (right * (heap[:, self.below] + heap[:, self.upto])).sum(axis=1) / 2
        return divide(won, right.sum(axis=1) * heap[:, -1])
