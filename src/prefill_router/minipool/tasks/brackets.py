"""The brackets that close what is still open."""

from random import Random

from prefill_router.minipool.tasks.base import Family

_WORDINGS = (
    "Close the brackets {text}",
    "Which brackets close {text}",
    "Complete {text}",
)
_CLOSING = {"(": ")", "[": "]", "{": "}"}
_SHAPES = {1: (2, 4, 0, 1), 2: (3, 4, 1, 2), 3: (4, 5, 2, 3), 4: (5, 6, 3, 4), 5: (7, 8, 4, 6)}
"""From and to how many brackets stay open, and from and to how many pairs are closed already."""


def _draw(random: Random, level: int) -> tuple[str, str]:
    least, most, fewest_pairs, most_pairs = _SHAPES[level]
    text = opened = "".join(random.choices("([{", k=random.randint(least, most)))
    for _ in range(random.randint(fewest_pairs, most_pairs)):
        place, kind = random.randint(0, len(text)), random.choice("([{")
        text = text[:place] + kind + _CLOSING[kind] + text[place:]
    missing = "".join(_CLOSING[kind] for kind in reversed(opened))
    return random.choice(_WORDINGS).format(text=text), missing


BRACKETS = Family("brackets", _WORDINGS, _draw)
