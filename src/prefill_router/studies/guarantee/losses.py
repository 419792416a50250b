"""What a query loses against the promise: keep times the best target's label, minus the router's.

    r = keep * y_best - y_router          in [-1, keep]

The promise is kept where the mean of r is not above zero. Only queries on which both labels were
measured have an r.
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
    """The labels of the router and of the best single target, on the queries where both are known.

    Attributes:
        keep: The share that is promised.
        router: Labels of the chosen targets.
        best: Labels of the best single target.
        known: Which queries of the trial these are.
    """

    keep: float
    router: Float[NDArray[np.float64], " known"]
    best: Float[NDArray[np.float64], " known"]
    known: Bool[NDArray[np.bool_], " query"]

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
        router, alone = trial.of_choice(trial.correct, choice), trial.correct[:, best]
        known = ~(np.isnan(router) | np.isnan(alone))
        return cls(keep, router[known], alone[known], known)

    def __len__(self) -> int:
        return len(self.router)

    @property
    def values(self) -> Float[NDArray[np.float64], " known"]:
        """The losses r."""
        return self.keep * self.best - self.router

    @property
    def scaled(self) -> Float[NDArray[np.float64], " known"]:
        """The losses on [0, 1], as the tests by betting need them."""
        return np.clip((self.values + 1) / (1 + self.keep), 0, 1)

    @property
    def threshold(self) -> float:
        """No loss at all, on that scale."""
        return 1 / (1 + self.keep)

    @property
    def kept(self) -> float:
        """The router's accuracy as a share of the best single target's; NaN where that is 0."""
        total = float(self.best.sum())
        return float(self.router.sum()) / total if total else float("nan")


def shuffled(ids: tuple[str, ...]) -> Int[NDArray[np.int64], " query"]:
    """An order of the queries that depends on their ids alone: not on their rows, nor on labels.

    Files are often sorted by subject or difficulty, and bets on a sorted file come out badly.
    """
    keys = [
        hashlib.sha256(f"order {name}".encode("utf-8", "surrogatepass")).digest() for name in ids
    ]
    return np.array(sorted(range(len(ids)), key=keys.__getitem__), dtype=np.int64)
