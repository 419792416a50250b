"""The three consensus regimes of a query (Table 1 and section 4.2 of the paper)."""

from enum import StrEnum
from typing import Any, final

import numpy as np
from jaxtyping import Shaped
from numpy.typing import NDArray

from prefill_router.data.dataset import Table

CUT = 0.5
"""A soft label counts as correct from here on, where a statistic needs two classes."""


@final
class Regime(StrEnum):
    """Who answers a query correctly, of the targets that were measured on it."""

    ALL_CORRECT = "all correct"
    ALL_INCORRECT = "all incorrect"
    DISAGREEMENT = "disagreement"
    UNMEASURED = "unmeasured"


def binary(correct: Table) -> Table:
    """Labels cut at 0.5: 1, 0, or NaN where missing."""
    return np.where(np.isnan(correct), np.nan, correct >= CUT)


def regimes(correct: Table) -> Shaped[NDArray[Any], " query"]:
    """The regime of each query, over the targets measured on it.

    Args:
        correct: Labels, NaN where missing.

    Returns:
        One `Regime` value per query.
    """
    labels = binary(correct)
    right, measured = np.nansum(labels, axis=1), (~np.isnan(labels)).sum(axis=1)
    return np.select(
        [measured == 0, right == measured, right == 0],
        [str(Regime.UNMEASURED), str(Regime.ALL_CORRECT), str(Regime.ALL_INCORRECT)],
        default=str(Regime.DISAGREEMENT),
    ).astype(np.str_)
