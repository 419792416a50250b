"""What a query loses against the promise: keep times the best target's label, minus the router's.

    r = keep * y_best - y_router          in [-1, keep]

The promise is kept where the mean of r over all queries is not above zero. A label that wasn't
measured could be anything in [0, 1], so r has a largest value that it could have, whatever made the
label missing: the router's label 0, the best target's 1; one and the same label where the router
chose the best target.
"""

import hashlib
from dataclasses import dataclass
from typing import final

import numpy as np
from jaxtyping import Bool, Float, Int
from numpy.typing import NDArray

from prefill_router.evaluation import Trial

PerQuery = Float[NDArray[np.float64], " query"]


@final
@dataclass(frozen=True, eq=False)
class Losses:
    """The labels of the router and of the best single target, on all queries.

    Attributes:
        keep: The share that is promised.
        router: Labels of the chosen targets; NaN where not measured.
        best: Labels of the best single target; NaN where not measured.
        same: Where the router chose the best single target.
    """

    keep: float
    router: PerQuery
    best: PerQuery
    same: Bool[NDArray[np.bool_], " query"]

    @classmethod
    def of(
        cls, trial: Trial, choice: Int[NDArray[np.int64], " query"], best: int, keep: float
    ) -> "Losses":
        """The losses of some choices.

        Args:
            trial: What happened.
            choice: The chosen target of each query.
            best: The best single target, a column.
            keep: The share that is promised.
        """
        router = trial.of_choice(trial.correct, choice)
        return cls(keep, router, trial.correct[:, best], choice == best)

    def __len__(self) -> int:
        return len(self.router)

    @property
    def measured(self) -> Bool[NDArray[np.bool_], " query"]:
        """Where both labels are known."""
        return ~(np.isnan(self.router) | np.isnan(self.best))

    @property
    def largest(self) -> PerQuery:
        """The largest losses that the missing labels allow; the losses r where none is missing."""
        apart = self.keep * np.nan_to_num(self.best, nan=1) - np.nan_to_num(self.router)
        return np.where(self.same & ~self.measured, max(0.0, self.keep - 1), apart)

    @property
    def scaled(self) -> PerQuery:
        """The largest losses on [0, 1], as the tests by betting need them."""
        return np.clip((self.largest + 1) / (1 + self.keep), 0, 1)

    @property
    def threshold(self) -> float:
        """No loss at all, on that scale."""
        return 1 / (1 + self.keep)

    @property
    def kept(self) -> float:
        """The router's accuracy as a share of the best target's, where both are measured.

        NaN where the best target's is 0.
        """
        right, best = (float(label[self.measured].sum()) for label in (self.router, self.best))
        return right / best if best else float("nan")

    @property
    def least(self) -> float:
        """The smallest share, on all these queries, that the missing labels allow; NaN as above."""
        both = self.same & ~self.measured
        right = float(np.nansum(self.router[~both]))
        best = float(np.nan_to_num(self.best[~both], nan=1).sum())
        ends = (0, int(both.sum()))  # of that one label's sum; the share is monotone in it
        shares = [(right + end) / (best + end) for end in ends if best + end]
        return min(shares, default=float("nan"))


def shuffled(ids: tuple[str, ...]) -> Int[NDArray[np.int64], " query"]:
    """An order of the queries that depends on their ids alone: not on their rows, nor on labels.

    Files are often sorted by subject or difficulty, and bets on a sorted file come out badly.
    """
    keys = [
        hashlib.sha256(f"order {name}".encode("utf-8", "surrogatepass")).digest() for name in ids
    ]
    return np.array(sorted(range(len(ids)), key=keys.__getitem__), dtype=np.int64)
