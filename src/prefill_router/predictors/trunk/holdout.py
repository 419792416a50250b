"""Which rows the validation loss is measured on; the same for all seeds."""

from dataclasses import dataclass
from typing import final

import numpy as np
from jaxtyping import Int
from numpy.typing import NDArray

from prefill_router.predictors.base import Features


@final
@dataclass(frozen=True, eq=False)
class Holdout:
    """Rows to fit on and rows held out, both in rising order."""

    fit: Int[NDArray[np.int64], " fitted"]
    held: Int[NDArray[np.int64], " held"]

    @property
    def shared(self) -> bool:
        """Whether there was only one distinct row, so that both are all rows."""
        return len(self.fit) > 0 and np.array_equal(self.fit, self.held)


def hold_out(features: Features, *, share: float, seed: int) -> Holdout:
    """Draw the rows to hold out; rows with equal features stay together.

    At least one distinct row is held out and one is fitted on. A single distinct row does both.

    Args:
        features: The rows, at least one.
        share: The share that is held out, in (0, 1).
        seed: Another seed, another draw.
    """
    numbers: dict[bytes, int] = {}
    group = np.array([numbers.setdefault(row.tobytes(), len(numbers)) for row in features])
    order = np.random.default_rng(seed).permutation(len(numbers))
    if len(order) == 1:
        everything = np.arange(len(features))
        return Holdout(everything, everything)
    sizes = np.bincount(group)[order]
    count = int(np.searchsorted(np.cumsum(sizes), share * len(features)))
    held = np.isin(group, order[: min(max(count, 1), len(order) - 1)])
    return Holdout(np.flatnonzero(~held), np.flatnonzero(held))
