"""Choosing a token: the most probable, or one by chance, the same by the same seed."""

from typing import final

import numpy as np
from jaxtyping import Float
from numpy.typing import NDArray

from prefill_router.minipool.server.model import Sampling


@final
class Chooser:
    """Chooses the tokens of one answer.

    Its random numbers are its own, so that an answer depends on nothing generated beside it.
    """

    def __init__(self, sampling: Sampling) -> None:
        self._sampling = sampling
        self._random = np.random.Generator(np.random.Philox(key=sampling.seed % 2**64))

    @property
    def greedy(self) -> bool:
        """Whether it always takes the most probable token."""
        return self._sampling.temperature == 0

    def choose(self, logits: Float[np.ndarray, " token"]) -> int:
        """Draw a token from the distribution at the temperature, cut at `top_p`."""
        powers = np.exp((logits - logits.max()) / self._sampling.temperature)
        order = np.argsort(-powers, kind="stable")
        shares: NDArray[np.float64] = np.cumsum(powers[order]) / powers.sum()
        kept = int(np.searchsorted(shares, self._sampling.top_p)) + 1
        drawn = self._random.random() * shares[min(kept, len(shares)) - 1]
        return int(order[min(np.searchsorted(shares, drawn, side="right"), kept - 1)])
