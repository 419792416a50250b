"""Lexical diversity: how much a text repeats its words. Case is ignored."""

from collections import Counter

from prefill_router.features.complexity.words import Words


def type_token_ratio(counts: Counter[str]) -> float:
    """Distinct words / words; 0 without words (Templin 1957, Certain language skills in children).

    Args:
        counts: How often each word occurs.
    """
    words = counts.total()
    return len(counts) / words if words else 0.0


def hapax_ratio(counts: Counter[str]) -> float:
    """Words that occur once / words; 0 without words."""
    words = counts.total()
    return sum(1 for count in counts.values() if count == 1) / words if words else 0.0


def yule_k(counts: Counter[str]) -> float:
    """10^4 (sum of m^2 - N) / N^2, with m the count of each word and N the words; 0 without words.

    Ten thousand times the chance that two words drawn with replacement are the same, less what
    each word's meeting itself adds: it depends little on the length. Yule (1944), The statistical
    study of literary vocabulary, chapter 3.
    """
    words = counts.total()
    squares = sum(count * count for count in counts.values())
    return 1e4 * (squares - words) / words**2 if words else 0.0


def diversity(text: Words) -> tuple[float, float, float]:
    """Type-token ratio, hapax ratio and Yule's K."""
    return type_token_ratio(text.words), hapax_ratio(text.words), yule_k(text.words)
