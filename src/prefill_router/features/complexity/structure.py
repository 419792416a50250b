"""Structure: negations, mathematics, code, nested brackets and numbers.

What counts as mathematics or code is settled here: marks that prose seldom has. A presence is 1
or 0.
"""

import math
import re
from collections import Counter

from prefill_router.features.complexity.words import Words

_NEGATIONS = frozenset(
    [
        *("no", "not", "never", "none", "nobody", "nothing", "nowhere"),
        *("neither", "nor", "cannot", "without", "except"),
    ]
)
_CONTRACTED = ("n't", "n\u2019t")
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
    """How many words deny, such as not, never, without and don't."""
    return sum(n for w, n in words.items() if w in _NEGATIONS or w.endswith(_CONTRACTED))


def has_mathematics(text: Words) -> bool:
    """Whether there is a command or a formula of LaTeX, a mathematical sign, or a relation."""
    held, content = text.characters.keys(), text.text
    return (
        not held.isdisjoint(_SIGNS)
        or ("\\" in held and _COMMAND.search(content) is not None)
        or ("$" in held and _FORMULA.search(content) is not None)
        or (not held.isdisjoint("=<>^") and _RELATION.search(content) is not None)
    )


def has_code(text: Words) -> bool:
    """Whether there is a fence, a definition, a call or an operator of a programming language."""
    held, content = text.characters.keys(), text.text
    return (
        any(mark in content for mark in _MARKS)
        or (any(w in content for w in _KEYWORDS) and _DEFINITION.search(content) is not None)
        or (not held.isdisjoint(";{}") and _LINE.search(content) is not None)
    )


def bracket_depth(text: str) -> int:
    """How deep round, square and curly brackets are nested at most, whatever closes them."""
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
