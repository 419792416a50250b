"""Readability: the school grade, in the United States, that a text asks of its reader.

Each formula takes counts. A text without words has grade 0 by each of them; grades of odd texts may
be negative or have no limit.
"""

import math

from prefill_router.features.complexity.syllables import syllables
from prefill_router.features.complexity.words import Words

_MANY_SYLLABLES = 3


def flesch_kincaid(*, words: int, sentences: int, syllables: int) -> float:
    """0.39 words / sentence + 11.8 syllables / word - 15.59.

    Kincaid, Fishburne, Rogers and Chissom (1975), Derivation of new readability formulas for Navy
    enlisted personnel, Research Branch Report 8-75.
    """
    return 0.39 * words / sentences + 11.8 * syllables / words - 15.59 if words else 0.0


def coleman_liau(*, words: int, sentences: int, letters: int) -> float:
    """0.0588 letters - 0.296 sentences - 15.8, both per 100 words.

    Coleman and Liau (1975), A computer readability formula designed for machine scoring, Journal of
    Applied Psychology 60(2).
    """
    return (5.88 * letters - 29.6 * sentences) / words - 15.8 if words else 0.0


def automated_readability(*, words: int, sentences: int, characters: int) -> float:
    """4.71 characters / word + 0.5 words / sentence - 21.43; characters are letters and digits.

    Smith and Senter (1967), Automated readability index, AMRL-TR-66-220.
    """
    return 4.71 * characters / words + 0.5 * words / sentences - 21.43 if words else 0.0


def smog(*, sentences: int, polysyllables: int) -> float:
    """1.043 sqrt(30 polysyllables / sentences) + 3.1291; those are words of 3 syllables or more.

    McLaughlin (1969), SMOG grading: a new readability formula, Journal of Reading 12(8); meant for
    thirty sentences and more, and applied to any number here.
    """
    return 1.043 * math.sqrt(30 * polysyllables / sentences) + 3.1291 if sentences else 0.0


def readability(text: Words) -> tuple[float, float, float, float]:
    """Flesch-Kincaid grade, Coleman-Liau index, automated readability index and SMOG grade."""
    each = [(syllables(word), count) for word, count in text.words.items()]
    words, sentences, letters = text.count, text.sentences, text.letters
    return (
        flesch_kincaid(
            words=words, sentences=sentences, syllables=sum(n * count for n, count in each)
        ),
        coleman_liau(words=words, sentences=sentences, letters=letters),
        automated_readability(words=words, sentences=sentences, characters=letters + text.digits),
        smog(
            sentences=sentences,
            polysyllables=sum(count for n, count in each if n >= _MANY_SYLLABLES),
        ),
    )
