"""Words written backwards."""

from random import Random

from prefill_router.minipool.tasks.base import Family, letters

_WORDINGS = (
    "Reverse {word}.",
    "Write {word} backwards.",
    "Spell {word} from its end.",
)
_LENGTHS = {1: (3, 3), 2: (4, 4), 3: (5, 6), 4: (7, 8), 5: (9, 11)}


def _draw(random: Random, level: int) -> tuple[str, str]:
    word = letters(random, random.randint(*_LENGTHS[level]))
    return random.choice(_WORDINGS).format(word=word), word[::-1]


REVERSING = Family("reversing", _WORDINGS, _draw)
