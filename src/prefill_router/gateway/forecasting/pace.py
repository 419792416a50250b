"""How long the encoder takes for prompts: learned from its batches, told of those to come."""

from collections import Counter
from collections.abc import Sequence
from typing import final

_LEAST = 1e-5
_SURPRISE = 4.0  # one batch counts as at most so many times slower or faster than was expected
_RATE = 0.5


@final
class Pace:
    """The seconds of a batch: some for the batch itself, and some for each prompt, by its size.

    Each batch corrects what its seconds were expected from, all in the ratio of the two and each by
    its share (an exponentiated gradient, so that all stay above 0). Sizes are told apart by
    doublings: a prompt beyond the encoder's window takes no longer than one that fills it, and that
    shows here without being known.

    Args:
        first: What a prompt alone takes, as long as no batch was read.
    """

    def __init__(self, first: float = 0.0) -> None:
        self.begin(first)

    def begin(self, first: float) -> None:
        """Forget what was learned."""
        self._first = first / 2
        self._batch = max(first / 2, _LEAST)
        self._prompt: dict[int, float] = {}

    def of_batch(self, prompts: int, *, most: int) -> float:
        """What batches take beside their prompts, where so many prompts go, so many in each."""
        return -(-prompts // most) * self._batch

    def of(self, size: int) -> float:
        """What a prompt of such a `doubling` takes; of one not read yet, as the nearest."""
        found = self._prompt.get(size)
        if found is None and self._prompt:
            found = self._prompt[min(self._prompt, key=lambda other: abs(other - size))]
        return self._first if found is None else found

    def learn(self, sizes: Sequence[int], seconds: float) -> None:
        """Take into account how long one batch took, of prompts of such doublings."""
        counts = Counter(sizes)
        before = {size: max(self.of(size), _LEAST) for size in counts}
        told = self._batch + sum(before[size] * number for size, number in counts.items())
        ratio = min(max(seconds / told, 1 / _SURPRISE), _SURPRISE)
        self._batch = max(self._batch * ratio ** (_RATE * self._batch / told), _LEAST)
        for size, value in before.items():
            share = value * counts[size] / told
            self._prompt[size] = max(value * ratio ** (_RATE * share), _LEAST)


def doubling(characters: int) -> int:
    """The size of a prompt: how often one character is doubled to reach it."""
    return characters.bit_length()
