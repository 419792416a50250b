"""Remainders of longer and longer numbers."""

from random import Random

from prefill_router.minipool.tasks.base import Family

_WORDINGS = (
    "What is {a} mod {m}?",
    "Give the remainder of {a}/{m}.",
    "What is left after {a}/{m}?",
)
_RANGES = {1: (10, 59), 2: (60, 199), 3: (200, 999), 4: (1000, 4999), 5: (5000, 99999)}


def _draw(random: Random, level: int) -> tuple[str, str]:
    number, modulus = random.randint(*_RANGES[level]), random.randint(2, 10)
    wording = random.choice(_WORDINGS)
    return wording.format(a=number, m=modulus), str(number % modulus)


MODULO = Family("modulo", _WORDINGS, _draw)
