"""Information: how predictable the characters are, how far they can be packed, how many."""

import math
import zlib
from collections.abc import Mapping

from prefill_router.features.complexity.words import Words

_LEVEL = 6


def character_entropy(characters: Mapping[str, int]) -> float:
    """Bits per character, from each one's frequency alone; 0 for an empty text.

    Shannon (1951), Prediction and entropy of printed English, Bell System Technical Journal 30(1):
    the first approximation, F_1.

    Args:
        characters: How often each occurs.
    """
    total = sum(characters.values())
    logs = sum(count * math.log2(count) for count in characters.values())
    return max(0.0, math.log2(total) - logs / total) if total else 0.0


def zlib_ratio(text: str) -> float:
    """Bytes packed by zlib / bytes in UTF-8; 1 for an empty text, and above 1 for short ones."""
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
