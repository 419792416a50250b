"""Letters into alphabetical order."""

from random import Random

from prefill_router.minipool.tasks.base import Family, letters

_WORDINGS = (
    "Sort the letters {word}.",
    "Put {word} in order.",
    "Write {word} from a to z.",
)
_LENGTHS = {1: (3, 3), 2: (4, 4), 3: (5, 5), 4: (6, 7), 5: (8, 10)}


def _draw(random: Random, level: int) -> tuple[str, str]:
    word = letters(random, random.randint(*_LENGTHS[level]))
    return random.choice(_WORDINGS).format(word=word), "".join(sorted(word))


SORTING = Family("sorting", _WORDINGS, _draw)
