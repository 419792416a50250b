"""Words whose letters are moved along the alphabet."""

from random import Random

from prefill_router.minipool.tasks.base import Family, letters

_WORDINGS = (
    "Shift {word} by {key}.",
    "Encode {word} with key {key}.",
    "Move the letters {word} by {key}.",
)
_SHAPES = {1: (2, 2), 2: (3, 3), 3: (4, 4), 4: (5, 6), 5: (6, 9)}
"""The length of the word, and the largest key."""


def _draw(random: Random, level: int) -> tuple[str, str]:
    length, largest = _SHAPES[level]
    word, key = letters(random, length), random.randint(1, largest)
    moved = "".join(chr((ord(c) - ord("a") + key) % 26 + ord("a")) for c in word)
    return random.choice(_WORDINGS).format(word=word, key=key), moved


CIPHER = Family("cipher", _WORDINGS, _draw)
