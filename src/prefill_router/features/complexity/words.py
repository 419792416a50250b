"""A text taken apart, once for all formulas: characters, words and sentences."""

import re
from collections import Counter
from dataclasses import dataclass
from functools import cached_property
from typing import final

# Every quantifier that another could take characters from is possessive, and no pattern can start
# inside a run that it has rejected: the time is linear in the text, whatever it holds.
_WORD = re.compile(r"\w+(?:[-'\u2019]\w+|(?<=\d)[.,](?=\d)\w+)*+")
_END_OF_SENTENCE = re.compile(
    r"(?<![.!?…])[.!?…]++[\"'\u201d\u2019)\]]*+(?=\s|$)"  # not within a number or a name
    r"|[。\uff01\uff1f]++"
    r"|\n[^\S\n]*+\n"
)
_HAS_WORD = re.compile(r"\w")


@final
@dataclass(frozen=True, eq=False)
class Words:
    """What the formulas count.

    Attributes:
        text: The text itself.
        characters: How often each occurs.
        words: How often each occurs, in lower case. One is made of letters, digits and
            underscores, and what hyphens, apostrophes and a number's points and commas join, so
            that numbers, compounds and contractions are one word each, as Kincaid et al. (1975)
            count them.
        sentences: Stretches with a word in them, between marks that end a sentence or blank lines;
            at least 1 where there is a word.
    """

    text: str
    characters: Counter[str]
    words: Counter[str]
    sentences: int

    @classmethod
    def of(cls, text: str) -> "Words":
        """Take a text apart."""
        words = Counter(_WORD.findall(text.lower()))
        stretches = _END_OF_SENTENCE.split(text)
        sentences = sum(1 for stretch in stretches if _HAS_WORD.search(stretch))
        return cls(text, Counter(text), words, sentences)

    @cached_property
    def count(self) -> int:
        """How many words there are."""
        return self.words.total()

    @property
    def letters(self) -> int:
        """How many characters are letters of any script."""
        return sum(count for c, count in self.characters.items() if c.isalpha())

    @property
    def digits(self) -> int:
        """How many characters are digits."""
        return sum(count for c, count in self.characters.items() if c.isdigit())
