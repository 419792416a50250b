"""Statistics that several packages need, in NumPy alone: ROC-AUC and the logistic function.

The ROC-AUC of every target is a rank statistic. The logistic function is here so that a decision,
which needs nothing else of scipy, doesn't load it.
"""

import numpy as np
from jaxtyping import Float, Float64
from numpy.typing import NDArray

from prefill_router.data import Table, binary
from prefill_router.errors import ConfigError


def auc_by_target(
    scores: Float[NDArray[np.floating], "query target"], correct: Table
) -> Float64[NDArray[np.float64], " target"]:
    """How often a right answer's score is above a wrong one's, ties counting half.

    Args:
        scores: Finite; higher means more probably correct.
        correct: Labels, cut at 0.5; NaN, not measured, is left out.

    Returns:
        In [0, 1] for each target; NaN where only one class was measured.

    Raises:
        ConfigError: The shapes differ.
    """
    if scores.shape != correct.shape:
        raise ConfigError(f"scores are {scores.shape} and labels {correct.shape}; give one of each")
    labels = binary(correct)
    return np.array(
        [_auc(s[y == 1], s[y == 0]) for s, y in zip(scores.T, labels.T, strict=True)],
        dtype=np.float64,
    )


def _auc(right: NDArray[np.floating], wrong: NDArray[np.floating]) -> float:
    if not len(right) or not len(wrong):
        return float("nan")
    ordered = np.sort(wrong)
    below = np.searchsorted(ordered, right, side="left").sum(dtype=np.int64)
    upto = np.searchsorted(ordered, right, side="right").sum(dtype=np.int64)
    return float(below + upto) / (2 * len(right) * len(wrong))


Logits = Float64[NDArray[np.float64], "*shape"]


def sigmoid(logits: Logits) -> Logits:
    """1 / (1 + exp(-x)), exact to a few units in the last place for any x."""
    small = np.exp(-np.abs(logits))  # at most 1, so nothing overflows
    result: Logits = np.where(logits < 0, small, 1) / (1 + small)
    return result
