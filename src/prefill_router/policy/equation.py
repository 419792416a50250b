"""Who answers: the score of Equation 2.

    s[k, q] = lam * p[k, q] - (1 - lam) * c[k, q]

with p the predicted correctness and c the normalised cost. Among equal scores the cheaper target
wins, then the more probable one, then the first; so a target that is dearer and no better is never
chosen.
"""

import numpy as np
from jaxtyping import Float, Int
from numpy.typing import NDArray

from prefill_router.errors import ConfigError

PerCell = Float[NDArray[np.float64], "query target"]


def check_lam(lam: float) -> float:
    """The same lam.

    Raises:
        ConfigError: It is outside [0, 1] or NaN.
    """
    if not 0 <= lam <= 1:
        raise ConfigError(f"lam is {lam}; it must be in [0, 1]: 0 is cheapest, 1 is most probable")
    return lam


def score(correctness: PerCell, cost: PerCell, lam: float) -> PerCell:
    """Equation 2.

    Args:
        correctness: Predicted probabilities of a correct answer.
        cost: Normalised costs, `CostScale.normalise`.
        lam: From 0, cheapest, to 1, most probable.
    """
    check_lam(lam)
    return lam * correctness - (1 - lam) * cost


def rank(correctness: PerCell, cost: PerCell, lam: float) -> Int[NDArray[np.int64], "query target"]:
    """Targets of each query from the best score to the worst, ties as the module says."""
    check_tables(correctness, cost)
    keys = (-correctness, cost, -score(correctness, cost, lam))
    order: Int[NDArray[np.int64], "query target"] = np.lexsort(keys, axis=1)
    return order


def choose(correctness: PerCell, cost: PerCell, lam: float) -> Int[NDArray[np.int64], " query"]:
    """The winning target of each query at one lam."""
    return rank(correctness, cost, lam)[:, 0]


def check_tables(correctness: PerCell, cost: PerCell) -> None:
    """Check that both tables are alike and finite.

    Raises:
        ConfigError: The shapes differ, there is no target, or a number isn't finite.
    """
    if correctness.shape != cost.shape or correctness.ndim != 2 or not correctness.shape[1]:
        raise ConfigError(
            f"correctness has the shape {correctness.shape} and cost {cost.shape}; both must be "
            "[query, target] with at least one target"
        )
    if not (np.isfinite(correctness).all() and np.isfinite(cost).all()):
        raise ConfigError("correctness and cost must be finite; check the predictor and the prices")
