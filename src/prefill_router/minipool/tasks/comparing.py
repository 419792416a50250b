"""The largest or smallest of some numbers."""

from random import Random

from prefill_router.minipool.tasks.base import Family

_LARGEST = (
    "Which is the largest: {numbers}?",
    "Find the largest of {numbers}.",
    "Give the maximum of {numbers}.",
)
_SMALLEST = (
    "Which is the smallest: {numbers}?",
    "Find the smallest of {numbers}.",
    "Give the minimum of {numbers}.",
)
_SHAPES = {1: (2, 2), 2: (3, 2), 3: (3, 3), 4: (4, 3), 5: (4, 4)}
"""How many numbers, of how many digits."""


def _draw(random: Random, level: int) -> tuple[str, str]:
    count, digits = _SHAPES[level]
    shared = random.randrange(digits)  # leading digits in common: the more, the harder
    step = 10 ** (digits - shared)
    base = random.randrange(10 ** (digits - 1), 10**digits) // step * step
    numbers = random.sample(range(max(base, 10 ** (digits - 1)), base + step), count)
    if random.random() < 0.5:
        wording, best = random.choice(_LARGEST), max(numbers)
    else:
        wording, best = random.choice(_SMALLEST), min(numbers)
    return wording.format(numbers=" ".join(map(str, numbers))), str(best)


COMPARING = Family("comparing", _LARGEST + _SMALLEST, _draw)
