"""ROC-AUC of every target, as a rank statistic."""

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
