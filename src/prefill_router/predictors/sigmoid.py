"""The logistic function, without loading scipy for it: a decision needs nothing else of that."""

import numpy as np
from jaxtyping import Float64
from numpy.typing import NDArray

Numbers = Float64[NDArray[np.float64], "*shape"]


def sigmoid(logits: Numbers) -> Numbers:
    """1 / (1 + exp(-x)), exact to a few units in the last place for any x."""
    small = np.exp(-np.abs(logits))  # at most 1, so nothing overflows
    result: Numbers = np.where(logits < 0, small, 1) / (1 + small)
    return result
