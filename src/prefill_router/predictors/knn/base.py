"""The mean of neighbours' labels, weighted or not: what both kNN predictors compute."""

from collections.abc import Callable

import numpy as np

from prefill_router.errors import ConfigError
from prefill_router.predictors.base import Correctness, Features, check_features
from prefill_router.predictors.knn.memory import Distances, Memory
from prefill_router.predictors.knn.weights import Weights

_ROWS = 2048  # of one pass; bounds the memory of a large set of queries


def neighbours_mean(
    memory: Memory, features: Features, *, k: int, weigh: Callable[[Distances], Weights]
) -> Correctness:
    """The weighted mean of the labels of each target's k nearest measured rows.

    Args:
        memory: The train rows.
        features: Of the queries.
        k: How many neighbours.
        weigh: Weights of the neighbours by their distances, one per query in all.

    Raises:
        ConfigError: The width is another one, or a feature isn't finite.
        MissingExtraError: FAISS isn't installed.
    """
    check_features(features, width=memory.width)
    result = np.tile(memory.rates.astype(np.float64), (len(features), 1))
    for start in range(0, len(features), _ROWS):
        rows = slice(start, start + _ROWS)
        for search in memory.searches:
            for target, distances, votes in search.nearest(features[rows], k):
                mean = (weigh(distances) * votes).sum(axis=1)
                result[rows, target] = np.clip(mean, 0, 1)
    return result


def check_neighbours(k: int) -> None:
    """Check how many neighbours are asked for.

    Raises:
        ConfigError: Fewer than one.
    """
    if k < 1:
        raise ConfigError(f"k is {k}; it must be at least 1")
