"""The random draws of one seed: first weights, order of the rows, dropped units.

Each seed has a generator of its own and draws from it in the same order whether it is trained alone
or with others, so its losses don't depend on the company.
"""

from typing import final

import numpy as np
from jaxtyping import Bool, Float32, Int
from numpy.typing import NDArray

_STEPS = 1 << 16  # sixteen random bits a unit are exact enough, and four times as fast as a double


@final
class Draws:
    """What one seed draws."""

    def __init__(self, seed: int, index: int) -> None:
        self._bits = np.random.SFC64(np.random.SeedSequence([seed, index]))
        self._random = np.random.Generator(self._bits)

    def uniform(
        self, shape: tuple[int, ...], *, bound: float
    ) -> Float32[NDArray[np.float32], "..."]:
        """Uniform on [-bound, bound)."""
        draw = self._random.random(shape, dtype=np.float32)
        return (2 * draw - 1) * np.float32(bound)

    def order(self, count: int) -> Int[NDArray[np.int64], " row"]:
        """The rows 0 to count - 1 in random order."""
        return self._random.permutation(count)

    def kept(self, out: Bool[NDArray[np.bool_], "row unit"], *, dropout: float) -> None:
        """Draw which units stay, each with `keep_probability(dropout)`, into `out`."""
        words = self._bits.random_raw(-(-out.size // 4))
        bits = words.view(np.uint16)[: out.size].reshape(out.shape)
        np.greater_equal(bits, np.uint16(_dropped(dropout)), out=out)


def keep_probability(dropout: float) -> float:
    """The probability with which a unit stays: 1 - dropout, to sixteen bits."""
    return 1 - _dropped(dropout) / _STEPS


def _dropped(dropout: float) -> int:
    return min(round(dropout * _STEPS), _STEPS - 1)
