"""Roman numerals, written and read."""

from random import Random

from prefill_router.minipool.tasks.base import Family

_WRITING = (
    "Write {number} in Roman numerals.",
    "What is {number} as a Roman numeral?",
    "Give {number} as the Romans did.",
)
_READING = (
    "Which number is {roman}?",
    "Write {roman} in digits.",
    "Give the value of {roman}.",
)
_RANGES = {1: (1, 49), 2: (50, 99), 3: (100, 399), 4: (400, 999), 5: (1000, 3999)}
_SIGNS = (
    (1000, "M"),
    (900, "CM"),
    (500, "D"),
    (400, "CD"),
    (100, "C"),
    (90, "XC"),
    (50, "L"),
    (40, "XL"),
    (10, "X"),
    (9, "IX"),
    (5, "V"),
    (4, "IV"),
    (1, "I"),
)


def _draw(random: Random, level: int) -> tuple[str, str]:
    number = random.randint(*_RANGES[level])
    if random.random() < 0.5:
        return random.choice(_WRITING).format(number=number), _roman(number)
    return random.choice(_READING).format(roman=_roman(number)), str(number)


def _roman(number: int) -> str:
    text = ""
    for value, sign in _SIGNS:
        count, number = divmod(number, value)
        text += sign * count
    return text


NUMERALS = Family("numerals", _WRITING + _READING, _draw)
