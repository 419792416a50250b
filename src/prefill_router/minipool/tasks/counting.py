"""How often a letter occurs in a word."""

from random import Random

from prefill_router.minipool.tasks.base import Family, letters

_WORDINGS = (
    "How many {letter} are in {word}?",
    "Count the {letter} in {word}.",
    "How often is {letter} in {word}?",
)
_LENGTHS = {1: (2, 3), 2: (4, 5), 3: (6, 7), 4: (8, 10), 5: (11, 14)}
_KINDS = 3  # different letters in one word: fewer would make the length tell the answer


def _draw(random: Random, level: int) -> tuple[str, str]:
    alphabet = "".join(random.sample("abcdefghijklmnopqrstuvwxyz", _KINDS))
    word = letters(random, random.randint(*_LENGTHS[level]), alphabet=alphabet)
    letter = random.choice(alphabet)
    wording = random.choice(_WORDINGS)
    return wording.format(letter=letter, word=word), str(word.count(letter))


COUNTING = Family("counting", _WORDINGS, _draw)
