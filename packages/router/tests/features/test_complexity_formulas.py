"""The formulas of text complexity, by hand and by what was published."""

import math
import sys
from collections import Counter

import pytest

from prefill_router.errors import MissingExtraError
from prefill_router.features import complexity
from prefill_router.features.complexity import (
    Words,
    automated_readability,
    bracket_depth,
    character_entropy,
    coleman_liau,
    flesch_kincaid,
    hapax_ratio,
    has_code,
    has_mathematics,
    negations,
    number_density,
    readability,
    smog,
    syllables,
    type_token_ratio,
    yule_k,
    zlib_ratio,
)


def test_readability_of_published_counts() -> None:
    # The abstract in Coleman and Liau's own example: 639 letters, 119 words, 5 sentences.
    assert round(coleman_liau(words=119, sentences=5, letters=639), 1) == 14.5
    # textstat's long example: 372 words, 16 sentences, 519 syllables, 1748 characters.
    assert round(smog(sentences=16, polysyllables=32), 1) == 11.2
    assert flesch_kincaid(words=372, sentences=16, syllables=519) == pytest.approx(10.0, abs=0.1)
    assert automated_readability(words=372, sentences=16, characters=1748) == pytest.approx(
        12.3, abs=0.05
    )
    # "The cat sat on the mat." and the sentence on the platypus, as encyclopaedias grade them.
    assert flesch_kincaid(words=6, sentences=1, syllables=6) == pytest.approx(-1.45)
    assert round(flesch_kincaid(words=13, sentences=1, syllables=24), 1) == 11.3


def test_readability_of_texts() -> None:
    # textstat's short example has grade 2.88 by Flesch and Kincaid.
    grades = readability(Words.of("Cool dogs wear da sunglasses."))
    assert grades[0] == pytest.approx(0.39 * 5 + 11.8 * 7 / 5 - 15.59)
    assert round(grades[0], 2) == 2.88
    # 3 sentences, 10 words, 12 syllables, 1 word of three, 39 letters and 2 digits.
    text = "The cat sat. Was it beautiful? No, 42 birds left!"
    assert readability(Words.of(text)) == pytest.approx(
        (
            0.39 * 10 / 3 + 11.8 * 12 / 10 - 15.59,
            0.0588 * 340 - 0.296 * 30 - 15.8,
            4.71 * 36 / 10 + 0.5 * 10 / 3 - 21.43,
            1.043 * math.sqrt(30 * 1 / 3) + 3.1291,
        )
    )
    assert readability(Words.of("")) == readability(Words.of("?!")) == (0, 0, 0, 0)


@pytest.mark.parametrize(
    ("word", "count"),
    [
        *(("the", 1), ("make", 1), ("asked", 1), ("wanted", 2), ("houses", 2), ("table", 2)),
        *(("create", 2), ("science", 2), ("being", 2), ("beautiful", 3), ("sunglasses", 3)),
        *(("information", 4), ("well-balanced", 3), ("don't", 1), ("mr", 1), ("1984", 1)),
        *(("naïve", 1), ("crème", 1), ("дом", 1), ("漢字", 1), ("_", 1), ("a" * 500, 1)),
        ("ba" * 500, 500),
    ],
)
def test_syllables(word: str, count: int) -> None:
    assert syllables(word) == count


def test_counting_syllables_keeps_no_word_without_limit() -> None:
    for number in range(30):
        syllables("word" + chr(ord("a") + number % 26))
    assert len(complexity._load_patterns().hd.cache) == 0


def test_without_pyphen_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    complexity._load_patterns.cache_clear()
    complexity._of_word.cache_clear()
    monkeypatch.setitem(sys.modules, "pyphen", None)
    with pytest.raises(MissingExtraError, match=r"prefill-router\[complexity\]"):
        syllables("missing")


@pytest.mark.parametrize(
    ("text", "words", "sentences"),
    [
        ("", [], 0),
        ("... !", [], 0),
        ("One", ["one"], 1),
        ("Pi is 3.14. Is it?", ["pi", "is", "3.14", "is", "it"], 2),
        ("It's well-known, e.g.x!", ["it's", "well-known", "e", "g", "x"], 1),
        ('He said "no." Then: (yes!)', ["he", "said", "no", "then", "yes"], 2),
        ("A title\n \nand\nthat goes", ["a", "title", "and", "that", "goes"], 2),
        ("是的。不是\uff01", ["是的", "不是"], 2),
        ("Wait... what?!", ["wait", "what"], 2),
    ],
)
def test_words_and_sentences(text: str, words: list[str], sentences: int) -> None:
    counts = Words.of(text)
    assert counts.words == Counter(words)
    assert (counts.count, counts.sentences) == (len(words), sentences)
    assert counts.characters.total() == len(text)


def test_diversity_by_hand() -> None:
    counts = Counter({"a": 3, "rose": 3, "is": 2})  # 3, 3 and 2 of 8
    assert type_token_ratio(counts) == 3 / 8
    assert hapax_ratio(counts) == 0
    assert yule_k(counts) == pytest.approx(1e4 * (9 + 9 + 4 - 8) / 64)
    assert hapax_ratio(Counter({"to": 2, "be": 2, "or": 1, "not": 1})) == 2 / 6
    assert yule_k(Counter(["every", "word", "is", "new"])) == 0
    assert yule_k(Counter(["same"] * 4)) == 1e4 * 12 / 16
    empty: Counter[str] = Counter()
    assert type_token_ratio(empty) == hapax_ratio(empty) == yule_k(empty) == 0


def test_entropy_and_packing_by_hand() -> None:
    assert character_entropy(Counter("abcd")) == pytest.approx(2)
    assert character_entropy(Counter("aab")) == pytest.approx(
        -(2 * math.log2(2 / 3)) / 3 + 1.584963 / 3
    )
    assert character_entropy(Counter("aaaa")) == character_entropy(Counter()) == 0
    assert zlib_ratio("") == 1
    assert zlib_ratio("x") > 1
    assert zlib_ratio("the same again " * 200) < 0.05
    assert zlib_ratio("é") == zlib_ratio("é".encode().decode())


def test_negations() -> None:
    text = "No, I don\u2019t know; it isn't nothing. Never without NOT, nor a knot or a note."
    assert negations(Words.of(text).words) == 8
    assert negations(Words.of("Nonetheless, another innate want").words) == 0


@pytest.mark.parametrize(
    "text",
    [
        r"Compute \frac{1}{2}",
        "What is $x_1$ here?",
        "x = 3",
        "f(x) < 2",
        "n^2 apples",
        "an angle ≤ 90",
        "10 \u00d7 4",
    ],
)
def test_mathematics_is_found(text: str) -> None:
    assert has_mathematics(Words.of(text))


@pytest.mark.parametrize(
    "text", ["It costs $5, not $10.", "C:\\folder", "Why?", "", "a - b", "$ 5$"]
)
def test_prose_isn_t_mathematics(text: str) -> None:
    assert not has_mathematics(Words.of(text))


@pytest.mark.parametrize(
    "text",
    [
        "```\nx\n```",
        "def f(x):\n  pass",
        "class Tree:",
        "import numpy",
        "  from a.b import c",
        "for (i) {\n}",
        "x += f(1);\n",
        "call main() now",
        "<b>bold</b>",
        "if a == b",
        "std::sort",
    ],
)
def test_code_is_found(text: str) -> None:
    assert has_code(Words.of(text))


@pytest.mark.parametrize(
    "text",
    [
        "The class was long; it was dull;",
        "import duties from abroad",
        "from time to time",
        "A function of x is defined (see above).",
        r"\frac{a}{b}",
        "",
    ],
)
def test_prose_isn_t_code(text: str) -> None:
    assert not has_code(Words.of(text))


def test_depth_and_numbers() -> None:
    assert bracket_depth("none") == 0
    assert bracket_depth("f(g[h{1}], (2))") == 3
    assert bracket_depth(")))((") == 2
    assert bracket_depth("()()()") == 1
    assert number_density(Words.of("Add 1,000.5 to 3, or x2")) == 3 / 6
    assert number_density(Words.of("...")) == 0
