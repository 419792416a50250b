"""How much each query counts in a loss."""

import numpy as np
from jaxtyping import Float64
from numpy.typing import NDArray

from prefill_router.data import Regime, regimes
from prefill_router.errors import ConfigError
from prefill_router.predictors.fitted import Labels


def query_weights(
    correct: Labels, *, disagreement_weight: float = 1.0
) -> Float64[NDArray[np.float64], " query"]:
    """Weights of the queries, 1 on average over the labels that were measured.

    Args:
        correct: Labels, NaN where missing.
        disagreement_weight: The weight of a query on which targets disagree (labels cut at 0.5)
            relative to any other's, positive.
    """
    differ = regimes(correct) == str(Regime.DISAGREEMENT)
    weights = np.where(differ, disagreement_weight, 1.0)
    measured = (~np.isnan(correct)).sum(axis=1)
    mean = np.average(weights, weights=measured) if measured.any() else 1.0
    return np.asarray(weights / mean)


def check_disagreement_weight(weight: float) -> None:
    """Check the weight of queries on which targets disagree.

    Raises:
        ConfigError: It isn't positive and finite.
    """
    if not 0 < weight < np.inf:
        raise ConfigError(f"disagreement_weight is {weight}; it must be positive and finite")
