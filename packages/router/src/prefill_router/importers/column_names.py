"""What a column holds, by the words in its name and by its cells.

A usual name, such as `question`, counts before a name with a usual word in it, such as
`user_question`. The last part of a dotted name, such as `metadata.model`, counts as a name too.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Final, NamedTuple

from prefill_router.errors import DataError
from prefill_router.importers import values

USUAL: Final[Mapping[str, tuple[str, ...]]] = {
    "prompt": (
        *("prompt", "question", "query", "messages", "instruction", "input", "user_message"),
        *("request", "problem", "text"),
    ),
    "target": ("target", "model", "llm", "model_name", "model_id", "engine", "deployment"),
    "effort": ("reasoning_effort", "effort", "thinking_effort"),
    "correct": (
        *("correct", "is_correct", "iscorrect", "label", "score", "rating", "quality", "reward"),
        *("grade", "judge_score", "passed", "pass", "success", "accuracy", "feedback", "rank"),
    ),
    "query": (
        *("query_id", "question_id", "prompt_id", "sample_id", "example_id", "item_id", "case_id"),
        *("doc_id", "id", "key", "uuid"),
    ),
    "benchmark": ("benchmark", "dataset", "task", "eval_name"),
    "domain": ("domain", "category", "subject", "topic"),
    "cost": ("cost", "total_cost", "cost_usd", "usd", "spend", "cost_dollars"),
    "input_tokens": ("input_tokens", "prompt_tokens", "tokens_in"),
    "output_tokens": ("output_tokens", "completion_tokens", "tokens_out"),
}
"""The usual names of each column, the likeliest first."""


class _Words(NamedTuple):
    """The words of a column's name that tell what it holds, and those that tell it doesn't."""

    some: frozenset[str]
    none: frozenset[str] = frozenset()
    last: frozenset[str] = frozenset()
    """Words that aren't the last one."""


def _make_set(words: str) -> frozenset[str]:
    return frozenset(words.split())


_NUMBERS = "id idx index key token count length len hash cost price usd dollar latency time date"
_TEXTS = "answer response output text reference expected gold golden option choice completion"
_WORDS: Final[Mapping[str, _Words]] = {
    "prompt": _Words(
        _make_set("prompt question query instruction input message request problem conversation"),
        _make_set(
            f"{_NUMBERS} type category name model score label rating correct version template"
        ),
        _make_set("answer response output reference expected target"),
    ),
    "target": _Words(
        _make_set("model llm engine deployment"),
        _make_set(f"{_NUMBERS} {_TEXTS} score rating correct version prompt params") - {"id"},
    ),
    "correct": _Words(
        _make_set(
            "correct correctness label score rating quality reward grade passed pass success "
            "accuracy feedback rank thumb star verdict helpfulness usefulness"
        ),
        _make_set(f"{_NUMBERS} explanation reason comment rationale type name model second")
        - {"token"},
        _make_set(_TEXTS),
    ),
    "cost": _Words(
        _make_set("cost usd spend dollar"), _make_set("per million id token latency saved budget")
    ),
    "input_tokens": _Words(
        _make_set("input prompt in"), _make_set("cost per limit max price usd cached")
    ),
    "output_tokens": _Words(
        _make_set("output completion out generated response answer"),
        _make_set("cost per limit max price usd cached"),
    ),
}
_PART_COSTS: Final = _make_set("input output prompt completion")
_LOW_IS_GOOD: Final = _make_set("rank grade error loss penalty mistake")
_NO_SCORES: Final = _make_set(
    f"{_NUMBERS} second duration millisecond ms num turn year month timestamp created updated "
    "number seed fold epoch row unnamed temperature difficulty level complexity priority weight"
)
"""Words in the names of columns of numbers that are no scores."""
_MOST_SCORE: Final = 1000
_FEW_IDS: Final = 20
_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+")
_RANGE = re.compile(r"[(\[]\s*(-?\d+)\s*(?:-|\u2013|to|\.\.)\s*(\d+)\s*[)\]]")
_BEST_FIRST = re.compile(r"[(\[].*\b(best|worst|low|lower)\b.*[)\]]", re.IGNORECASE)


def words_of(name: str) -> list[str]:
    """The words of a column's name in lower case, of plurals the singular."""
    return [_make_singular(word.lower()) for word in _WORD.findall(name)]


def _make_singular(word: str) -> str:
    if len(word) > 4 and word.endswith("ies"):
        return f"{word[:-3]}y"
    return word[:-1] if len(word) > 3 and word.endswith("s") and word[-2] not in "su" else word


def plain_name(name: str) -> str:
    """A name without case and punctuation, as in `USUAL`."""
    return re.sub(r"[^a-z0-9]+", "_", name.lower()).strip("_")


def usual_columns(option: str, names: Iterable[str]) -> list[str]:
    """The columns that have a usual name of an option of `Columns`, the likeliest first."""
    whole: dict[str, str] = {}
    last: dict[str, str] = {}
    for name in names:
        whole.setdefault(plain_name(name), name)
        last.setdefault(plain_name(name.rpartition(".")[2]), name)
    fitting = [at[usual] for at in (whole, last) for usual in USUAL[option] if usual in at]
    return list(dict.fromkeys(fitting))


def columns_by_word(option: str, names: Iterable[str]) -> list[str]:
    """The columns with a word of an option of `Columns` in their names, the shortest name first."""
    fitting = [name for name in names if option in _WORDS and has_word(option, name)]
    return sorted(fitting, key=lambda name: len(words_of(name)))


def has_word(option: str, name: str) -> bool:
    """Whether the words of a name tell that it holds this option of `Columns`."""
    words, wanted = words_of(name), _WORDS[option]
    if not words or wanted.none & set(words) or words[-1] in wanted.last:
        return False
    if option.endswith("_tokens"):
        return "token" in words and bool(wanted.some & set(words))
    return bool(wanted.some & set(words))


def are_stars(name: str) -> bool:
    """Whether a column has stars, from 1 to 5, by its name."""
    return "star" in words_of(name)


def is_text(name: str) -> bool:
    """Whether a column has answers or other texts, by the last word of its name."""
    return bool(set(words_of(name)[-1:]) & _make_set(_TEXTS))


def is_part_cost(name: str) -> bool:
    """Whether a column has the cost of the input or the output alone."""
    return bool(_PART_COSTS & set(words_of(name)))


def is_low_good(name: str) -> bool:
    """Whether a low number is good, or may be, by the name of a column of scores."""
    return bool(_LOW_IS_GOOD & set(words_of(name)) or _BEST_FIRST.search(name))


def range_in(name: str) -> tuple[int, int] | None:
    """The range of scores that a name tells, as `Human rating (1-5)` does; None where none."""
    match = _RANGE.search(name)
    if match is None or not int(match[1]) < int(match[2]):
        return None
    return int(match[1]), int(match[2])


def why_no_scores(name: str, cells: Sequence[object]) -> str:
    """Why a column of numbers holds no scores: it is an amount, an index, ids, dates or a constant.

    Returns:
        The reason, empty where there is none.
    """
    if _NO_SCORES & set(words_of(name)):
        return "no score by its name"
    numbers = [number for cell in cells if (number := values.score(cell, name)) is not None]
    if len(set(numbers)) == 1 < len(numbers):
        return "the same in every row"
    steps = {after - before for before, after in pairwise(numbers)}
    if len(numbers) > 2 and steps == {1.0}:
        return "a running number"
    if numbers and max(map(abs, numbers)) > _MOST_SCORE:
        return "numbers too large for scores"
    whole = all(number == int(number) for number in numbers)
    if whole and len(set(numbers)) == len(numbers) > _FEW_IDS and max(numbers) > 100:
        return "a number of its own in every row"
    return ""


def are_scores(name: str, cells: Iterable[object]) -> bool:
    """Whether all cells that aren't missing are scores, and there is at least one."""
    try:
        scores = [values.score(cell, name) for cell in cells]
    except DataError:
        return False
    return any(score is not None for score in scores)
