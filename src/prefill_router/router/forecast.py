"""What a router expects of one request, before anything is chosen."""

from dataclasses import dataclass
from typing import final

import numpy as np
from jaxtyping import Float
from numpy.typing import NDArray

from prefill_router.brief import brief


@brief
@final
@dataclass(frozen=True, eq=False)
class Forecast:
    """What a router expects of one request.

    Attributes:
        correctness: Every target's probability of a correct answer, in the order of the pool.
        tokens: What the encoder read, in its own tokens, before truncation.
        truncated: Whether the prompt was too long for the encoder and lost its middle.
        novelty: The share of train rows that lie closer to the others than this request does: near
            1 for what is unlike anything the router learned from. None where the router keeps no
            reference of its train rows.
        bins: For each feature that the reference watches, in which tenth of the train rows this
            request lies, 0 to 9; empty without a reference.
        output: What every target is expected to write, on average (`cost.Expected`); NaN where
            nothing is known of it; None where Equation 1's medians stand.
        output_high: What nine answers of ten don't exceed; None as `output`.
    """

    correctness: Float[NDArray[np.float64], " target"]
    tokens: int
    truncated: bool
    novelty: float | None = None
    bins: tuple[int, ...] = ()
    output: Float[NDArray[np.float64], " target"] | None = None
    output_high: Float[NDArray[np.float64], " target"] | None = None
