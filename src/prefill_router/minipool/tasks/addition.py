"""Sums of two numbers of growing length."""

from random import Random

from prefill_router.minipool.tasks.base import Family

_WORDINGS = (
    "What is {a}+{b}?",
    "Add {a} and {b}.",
    "How much is {a}+{b}?",
    "Give the sum {a}+{b}.",
)
_RANGES = {
    1: ((1, 99), (1, 9)),
    2: ((10, 99), (10, 99)),
    3: ((100, 999), (10, 99)),
    4: ((100, 999), (100, 999)),
    5: ((1000, 9999), (1000, 9999)),
}


def _draw(random: Random, level: int) -> tuple[str, str]:
    pair = [random.randint(low, high) for low, high in _RANGES[level]]
    random.shuffle(pair)
    wording = random.choice(_WORDINGS)
    return wording.format(a=pair[0], b=pair[1]), str(sum(pair))


ADDITION = Family("addition", _WORDINGS, _draw)
