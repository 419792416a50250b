"""The complexity of the text: readability, diversity, structure and information (section 3.2).

A text is split once for all of them, into characters, words and sentences (`Words`).

Readability is the US school grade that a reader needs. Each formula takes counts. A text without
words has grade 0; grades of unusual texts may be negative or very large. The number of syllables of
a word is estimated from its hyphenation points and its groups of vowels.

Lexical diversity is how little a text repeats its words; case is ignored.

Structure measures negations, mathematics, code, nested brackets and numbers. Mathematics and code
are recognised by marks that are rare in prose, as 1 or 0.

Information measures the characters' entropy, their compressibility, and the text's length.
"""

import math
import re
import unicodedata
import zlib
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any, ClassVar, final

import numpy as np
from jaxtyping import Float32, Float64
from numpy.typing import NDArray

from prefill_router.activations import Activations
from prefill_router.data import Prompt, RoutingDataset, prompt_text
from prefill_router.errors import ConfigError, FitError
from prefill_router.features.base import (
    Columns,
    ColumnScaler,
    Family,
    FamilyConfig,
    FamilyEntry,
    PromptStates,
)
from prefill_router.lazy_imports import optional_imports
from prefill_router.progress import Progress

# Quantifiers that could backtrack are possessive, and no pattern can start inside a run that it has
# rejected: the time is linear in the length of any text.
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
    """The counts that the formulas use.

    Attributes:
        text: The text itself.
        characters: The count of each character.
        words: The count of each word in lower case. A word consists of letters, digits and
            underscores. Hyphens, apostrophes and a number's points and commas can join them. So
            numbers, compounds and contractions are one word each, as Kincaid et al. (1975) count
            them.
        sentences: The number of stretches with a word, between marks that end a sentence or blank
            lines; at least 1 where there is a word.
    """

    text: str
    characters: Counter[str]
    words: Counter[str]
    sentences: int

    @classmethod
    def of(cls, text: str) -> "Words":
        """Count the parts of a text."""
        words = Counter(_WORD.findall(text.lower()))
        stretches = _END_OF_SENTENCE.split(text)
        sentences = sum(1 for stretch in stretches if _HAS_WORD.search(stretch))
        return cls(text, Counter(text), words, sentences)

    @cached_property
    def count(self) -> int:
        """The number of words."""
        return self.words.total()

    @property
    def letters(self) -> int:
        """The number of letters of any script."""
        return sum(count for c, count in self.characters.items() if c.isalpha())

    @property
    def digits(self) -> int:
        """The number of digits."""
        return sum(count for c, count in self.characters.items() if c.isdigit())


_JOINTS = re.compile(r"[-'\u2019_]")
_VOWELS = re.compile(r"[aeiouy]+")
_SILENT = re.compile(r"(?:[^aeiouyl]e|[^aeiouytd]ed|[^aeiouysxzcgh]es)$")
_LONGEST = 40
"""The most letters of a word; for longer strings only groups of vowels are counted."""


def syllables(word: str) -> int:
    """The estimated number of syllables of a word in lower case, at least 1.

    English is assumed. Parts joined by hyphens or apostrophes are counted separately. A part has
    one syllable more than its hyphenation points (Liang's patterns, by Pyphen), or as many as its
    groups of vowels without a silent -e, -es or -ed, whichever is more. Hyphenation never splits a
    syllable but misses some boundaries. A group of vowels may be two syllables. A part without
    Latin vowels counts as one. The estimate agrees with the CMU pronouncing dictionary for 96.5 %
    of the words of MMLU-Pro's questions; hyphenation alone for 91.4 %, vowels alone for 94.9 %.

    Raises:
        MissingExtraError: Pyphen isn't installed.
    """
    if len(word) > _LONGEST:
        return max(1, len(_VOWELS.findall(word)))
    return _of_word(word)


@lru_cache(maxsize=1 << 16)
def _of_word(word: str) -> int:
    return max(1, sum(map(_of_part, _JOINTS.split(word))))


def _of_part(part: str) -> int:
    points = _count_points(part) if part.isascii() and part.isalpha() else 0
    return max(1 + points if points else 0, _by_vowels(part))


def _count_points(part: str) -> int:
    patterns = _load_patterns()
    count = len(patterns.positions(part))
    patterns.hd.cache.clear()  # it is unbounded; the result is cached above
    return count


def _by_vowels(part: str) -> int:
    plain = unicodedata.normalize("NFKD", part)
    count = len(_VOWELS.findall(plain))
    return count - 1 if count > 1 and _SILENT.search(plain) else count


@lru_cache(maxsize=1)
def _load_patterns() -> Any:
    with optional_imports("counting syllables for readability"):
        import pyphen
    return pyphen.Pyphen(lang="en_US", cache=False)


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
    """1.043 sqrt(30 polysyllables / sentences) + 3.1291; polysyllables have 3 syllables or more.

    McLaughlin (1969), SMOG grading: a new readability formula, Journal of Reading 12(8); designed
    for thirty sentences or more, and applied to any number here.
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


def type_token_ratio(counts: Counter[str]) -> float:
    """Distinct words / words; 0 without words (Templin 1957, Certain language skills in children).

    Args:
        counts: The count of each word.
    """
    words = counts.total()
    return len(counts) / words if words else 0.0


def hapax_ratio(counts: Counter[str]) -> float:
    """Words that occur once / words; 0 without words."""
    words = counts.total()
    return sum(1 for count in counts.values() if count == 1) / words if words else 0.0


def yule_k(counts: Counter[str]) -> float:
    """10^4 (sum of m^2 - N) / N^2, with m the count of each word and N the words; 0 without words.

    Ten thousand times the probability that two words drawn with replacement are the same, without
    the draws of one occurrence twice. It depends little on the length. Yule (1944), The statistical
    study of literary vocabulary, chapter 3.
    """
    words = counts.total()
    squares = sum(count * count for count in counts.values())
    return 1e4 * (squares - words) / words**2 if words else 0.0


def diversity(text: Words) -> tuple[float, float, float]:
    """Type-token ratio, hapax ratio and Yule's K."""
    return type_token_ratio(text.words), hapax_ratio(text.words), yule_k(text.words)


_NEGATIONS = frozenset(
    [
        *("no", "not", "never", "none", "nobody", "nothing", "nowhere"),
        *("neither", "nor", "cannot", "without", "except"),
    ]
)
_CONTRACTIONS = ("n't", "n\u2019t")
_SIGNS = frozenset("∑∏∫√∞∂∇∈∉⊂⊆\u222a∩∀∃≤≥≠≈≡±\u00d7÷⁰¹²³⁴⁵⁶⁷⁸⁹₀₁₂₃₄₅₆₇₈₉")
_COMMAND = re.compile(
    r"\\(?:frac|sqrt|sum|int|prod|lim|log|sin|cos|tan|infty|cdot|times|leq?|geq?|begin|left|math)"
)
_FORMULA = re.compile(r"\$(?=\S)[^$\n]++(?<=\S)\$(?!\d)")  # two prices don't make one
_RELATION = re.compile(r"[\w)\]}] ?[=<>^] ?[-+\w(\[{\\]")
_MARKS = ("```", "#include", "==", "!=", "->", "=>", "::", "&&", "||", "()", "</", "SELECT ")
_KEYWORDS = ("def ", "class ", "function", "import ")
_DEFINITION = re.compile(
    r"\bdef \w++\(|\bclass \w++[:({]|\bfunction\b ?\w*+\("
    r"|^[ \t]*+(?:from [\w.]++ import\b|import [\w.]++;?[ \t]*+$)",
    re.MULTILINE,
)
_LINE = re.compile(r"[)\]\"'\d];[ \t]*+$|\{[ \t]*+$|^[ \t]*+\}", re.MULTILINE)
_BRACKETS = re.compile(r"[()\[\]{}]")
_NUMBER = re.compile(r"\d++(?:[.,]\d++)*+")


def negations(words: Counter[str]) -> int:
    """The number of negating words, such as not, never, without and don't."""
    return sum(n for w, n in words.items() if w in _NEGATIONS or w.endswith(_CONTRACTIONS))


def has_mathematics(text: Words) -> bool:
    """Whether there is a LaTeX command or formula, a mathematical sign, or a relation."""
    characters, content = text.characters.keys(), text.text
    return (
        not characters.isdisjoint(_SIGNS)
        or ("\\" in characters and _COMMAND.search(content) is not None)
        or ("$" in characters and _FORMULA.search(content) is not None)
        or (not characters.isdisjoint("=<>^") and _RELATION.search(content) is not None)
    )


def has_code(text: Words) -> bool:
    """Whether there is a code fence, or a definition, call or operator of a program."""
    characters, content = text.characters.keys(), text.text
    return (
        any(mark in content for mark in _MARKS)
        or (any(w in content for w in _KEYWORDS) and _DEFINITION.search(content) is not None)
        or (not characters.isdisjoint(";{}") and _LINE.search(content) is not None)
    )


def bracket_depth(text: str) -> int:
    """The maximum nesting depth of brackets; any closing bracket closes any opening one."""
    depth = deepest = 0
    for bracket in _BRACKETS.findall(text):
        depth = depth + 1 if bracket in "([{" else max(0, depth - 1)
        deepest = max(deepest, depth)
    return deepest


def number_density(text: Words) -> float:
    """Numbers / words; 0 without words. `1,000.5` is one number."""
    return len(_NUMBER.findall(text.text)) / text.count if text.count else 0.0


def structure(text: Words) -> tuple[float, float, float, float, float]:
    """Logarithm of 1 + negations, mathematics, code, logarithm of 1 + depth, and number density."""
    return (
        math.log1p(negations(text.words)),
        float(has_mathematics(text)),
        float(has_code(text)),
        math.log1p(bracket_depth(text.text)),
        number_density(text),
    )


_LEVEL = 6


def character_entropy(characters: Mapping[str, int]) -> float:
    """Bits per character, from character frequencies; 0 for an empty text.

    Shannon (1951), Prediction and entropy of printed English, Bell System Technical Journal 30(1):
    the first approximation, F_1.

    Args:
        characters: The count of each character.
    """
    total = sum(characters.values())
    logs = sum(count * math.log2(count) for count in characters.values())
    return max(0.0, math.log2(total) - logs / total) if total else 0.0


def zlib_ratio(text: str) -> float:
    """Bytes compressed by zlib / bytes of UTF-8; 1 for an empty text, above 1 for short ones."""
    content = text.encode("utf-8", "surrogatepass")
    return len(zlib.compress(content, _LEVEL)) / len(content) if content else 1.0


def information(text: Words) -> tuple[float, float, float, float]:
    """Entropy, zlib ratio, and the logarithms of 1 + characters and 1 + words."""
    return (
        character_entropy(text.characters),
        zlib_ratio(text.text),
        math.log1p(len(text.text)),
        math.log1p(text.count),
    )


COLUMNS = (
    *("flesch_kincaid", "coleman_liau", "automated_readability", "smog"),
    *("type_token_ratio", "hapax_ratio", "yule_k"),
    *("negations", "mathematics", "code", "bracket_depth", "number_density"),
    *("character_entropy", "zlib_ratio", "characters", "words"),
)
"""The names of the measures, one per column."""
_TAIL = 0.005  # the quantiles of the train rows to which values are clipped

Bound = Float32[NDArray[np.float32], " column"]


@final
@dataclass(frozen=True, kw_only=True)
class ComplexityConfig(FamilyConfig):
    """The options of text complexity: none, every measure is a column."""

    def fit(
        self,
        train: RoutingDataset,
        states: Sequence[Activations],
        *,
        seed: int = 0,
        progress: Progress | None = None,
    ) -> "Complexity":
        """Measure the train texts, which give the clipping bounds and the scale; not random.

        Raises:
            FitError: There is no query.
            MissingExtraError: Pyphen isn't installed.
        """
        del states, seed, progress
        if not len(train):
            raise FitError("there is no query to measure; give train rows")
        raw = measure([query.prompt for query in train.queries])
        low, high = np.quantile(raw, [_TAIL, 1 - _TAIL], axis=0, method="closest_observation")
        rare = low == high  # for example code, where few texts have any
        low, high = np.where(rare, raw.min(axis=0), low), np.where(rare, raw.max(axis=0), high)
        bounded = np.clip(raw, low, high)
        return Complexity(
            low.astype(np.float32), high.astype(np.float32), ColumnScaler.fit(bounded), COLUMNS
        )


@final
@dataclass(frozen=True, eq=False)
class Complexity(Family):
    """Fitted measures of a text. Frozen; made by `ComplexityConfig.fit` or `from_dict`.

    Attributes:
        low: The lower clipping bound of each of `COLUMNS`: the train rows' 0.5 % quantile.
        high: The upper clipping bound: their 99.5 % quantile.
        standard: The scaler of the columns.
        columns: The names of the columns.
    """

    kind: ClassVar[str] = "complexity"

    axes: ClassVar[Mapping[str, str]] = {"column": "columns"}
    low: Bound
    high: Bound
    standard: ColumnScaler
    columns: tuple[str, ...]

    @property
    def width(self) -> int:
        """The number of columns."""
        return len(COLUMNS)

    def read(self, reading: PromptStates) -> Columns:
        """The columns of these queries, from their text alone."""
        return self.standard.apply(np.clip(measure(reading.prompts), self.low, self.high))

    def verify(self) -> None:
        """Check the columns' names, to which the saved scale belongs, and the bounds."""
        if self.columns != COLUMNS:
            raise ConfigError(f"its columns are {list(self.columns)}; they must be {list(COLUMNS)}")
        if (self.low > self.high).any():
            raise ConfigError("a lower bound is above its upper bound")


def measure(prompts: Sequence[Prompt]) -> Float64[NDArray[np.float64], "query column"]:
    """The measures of each text, finite, in the order of `COLUMNS`; a chat's turns are one text.

    Raises:
        MissingExtraError: Pyphen isn't installed.
    """
    rows = [_of_text(prompt_text(prompt)) for prompt in prompts]
    return np.array(rows, dtype=np.float64).reshape(-1, len(COLUMNS))


def _of_text(text: str) -> tuple[float, ...]:
    words = Words.of(text)
    return (*readability(words), *diversity(words), *structure(words), *information(words))


ENTRY = FamilyEntry(ComplexityConfig, Complexity)
