"""Graders that read an answer's text alone: equal texts, the letter of a choice, equal numbers.

`exact` and `normalised` compare the whole answer. The grader of MMLU-Pro finds the letter of a
choice as the benchmark does. Numbers are compared by value, however they are written.
"""

import hashlib
import math
import re
import string
import unicodedata
from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from decimal import Context, Decimal
from typing import Any, final

from prefill_router.grading.base import (
    Grade,
    Grader,
    GraderTraits,
    Settings,
    Unextracted,
    make_grade,
    make_missing_grade,
    unfit,
)
from prefill_router.runs import Task

_ARTICLES = re.compile(r"\b(?:a|an|the)\b")


@final
class TextGrader(Grader):
    """Right where the whole answer equals one of the task's, after the same change to both.

    Args:
        name: The grader's name.
        read: The change, a function of the text.
    """

    def __init__(self, name: str, read: Callable[[str], str]) -> None:
        self.about = GraderTraits(name=name, version=1)
        self._read = read

    def grade(self, task: Task, text: str) -> Grade:
        """Compare with every accepted answer."""
        if not task.answer:
            return unfit("the task has no answer to compare with")
        answer = self._read(text)
        return make_grade(
            any(answer == self._read(right) for right in task.answer), extracted=answer
        )


def open_exact(_: Settings) -> Grader:
    """The grader that compares texts, except for white space around them."""
    return TextGrader("exact", strip_text)


def open_normalised(_: Settings) -> Grader:
    """The grader that compares texts after `normalised`."""
    return TextGrader("normalised", normalise_text)


def strip_text(text: str) -> str:
    """The text without white space around it."""
    return text.strip()


def normalise_text(text: str) -> str:
    """The text in lower case, without punctuation, articles and extra white space.

    As in the evaluation of the SQuAD benchmark, the text is put in lower case. ASCII punctuation
    and symbols are removed, then the words a, an and the. Runs of white space become one space. In
    addition, the punctuation of other scripts is removed, and compatible characters are unified
    (Unicode's NFKC). A sign and a decimal point are punctuation: for numbers use `number`.
    """
    plain = unicodedata.normalize("NFKC", text).lower().translate(_WITHOUT_PUNCTUATION)
    return " ".join(_ARTICLES.sub(" ", plain).split())


@final
class _PunctuationTable(dict[int, int | None]):
    """A table for `str.translate`, which looks up each character when it first occurs."""

    def __missing__(self, code: int) -> int | None:
        character = chr(code)
        drop = character in string.punctuation or unicodedata.category(character)[0] == "P"
        self[code] = None if drop else code
        return self[code]


_WITHOUT_PUNCTUATION = _PunctuationTable()


_LETTERS = "ABCDEFGHIJ"
_LETTER_PHRASE = re.compile(r"answer is \(?([A-J])\)?")
_LETTER_COLON = re.compile(r"(?=[aA]nswer:\s*([A-J]))")
_LONE_LETTER = re.compile(r"\b[A-J]\b")


@final
class LetterGrader(Grader):
    """Right where the answer's letter is the task's.

    Args:
        unextracted: How an answer without a letter counts: wrong; missing; or as a letter drawn at
            random among the choices. The benchmark's script that asks models counts it as wrong,
            and the one that recomputes the accuracy draws a letter.
    """

    def __init__(self, *, unextracted: Unextracted = "wrong") -> None:
        self._unextracted = unextracted
        self.about = GraderTraits(name="mmlu_pro", version=1, setting=unextracted)

    def grade(self, task: Task, text: str) -> Grade:
        """Find the letter and compare it."""
        right = right_letters(task.answer)
        if not right:
            return unfit("the task's answer must be a letter from A to J")
        letter = extract_letter(text)
        if letter:
            return make_grade(letter in right, extracted=letter)
        if self._unextracted == "missing":
            return make_missing_grade("no_letter", "no letter found")
        if self._unextracted == "random":
            letter = _draw_letter(task, text)
            return make_grade(letter in right, detail=f"no letter found; {letter} was drawn")
        return make_grade(False, detail="no letter found")


def open_letter(settings: Settings) -> Grader:
    """The grader of MMLU-Pro."""
    return LetterGrader(unextracted=settings.unextracted)


def right_letters(answers: Collection[str]) -> frozenset[str]:
    """The letters of a task's right answers; empty where one isn't from A to J."""
    letters = frozenset(answer.strip().strip("()").upper() for answer in answers)
    return letters if letters <= set(_LETTERS) else frozenset()


def extract_letter(text: str) -> str | None:
    """The letter of a choice in an answer, from A to J, as MMLU-Pro's evaluation reads it.

    Three patterns are tried, and the first that finds a letter counts:

    1. the first `answer is (X)`, case-sensitive and with optional brackets;
    2. the last `answer: X` or `Answer: X` of the first line that has one;
    3. the last capital letter from A to J that stands alone.

    The benchmark's patterns (TIGER-AI-Lab/MMLU-Pro, evaluate_from_api.py) take quadratic time in
    the length of a line or an answer; these find the same in linear time.
    """
    phrase = _LETTER_PHRASE.search(text)
    if phrase:
        return phrase[1]
    first = _LETTER_COLON.search(text)
    if first:
        end = text.find("\n", first.start())
        line = _LETTER_COLON.finditer(text, first.start())
        within = [m[1] for m in line if end < 0 or m.start() < end]
        return within[-1]
    last = deque(_LONE_LETTER.finditer(text), maxlen=1)
    return last[0][0] if last else None


def _draw_letter(task: Task, text: str) -> str:
    """A letter among the task's choices; the same answer to the same task draws the same."""
    choices = task.options.get("choices")
    count = len(choices) if isinstance(choices, list) and choices else len(_LETTERS)
    seed = f"{task.query.id}\n{text}".encode("utf-8", "surrogatepass")
    draw = int.from_bytes(hashlib.sha256(seed).digest()[:8])
    return _LETTERS[draw % min(count, len(_LETTERS))]


_LONGEST = 400
"""Digits of a number, and the largest power of ten, that are read."""
_EXACT = Context(prec=2 * _LONGEST, Emax=99_999, Emin=-99_999, traps=[])
_RELATIVE = Decimal("1e-9")
_MINUS = str.maketrans({"\u2212": "-", "\u2013": "-", "\uff0d": "-", "\u00a0": " ", "\u202f": " "})
_NUMBER = re.compile(
    r"(?<![\w.])(?P<sign>[-+]?)(?:[$€£]\s?)?"
    # Twelve groups at most, or a long list of numbers would be tried again from each member.
    r"(?P<digits>\d{1,3}(?:,\d{3}){1,12}(?![,\d])(?:\.\d+)?|\d+(?:\.\d+)?|\.\d+)"
    r"(?:[eE](?P<power>[-+]?\d{1,4})|\s?(?:\*|x|\u00d7|\\times|\\cdot)\s?10\s?(?:\^|\*\*)\s?"
    r"\{?(?P<tenth>[-+]?\d{1,4})\}?)?"
    r"(?:\s?/\s?(?P<below>\d+)(?![\d.]))?"
    r"(?P<percent>\s?(?:\\?%|per\s?cent\b))?"
)
_FRACTION = re.compile(r"\\[dt]?frac\s?\{\s?([-+]?\d+)\s?\}\s?\{\s?(\d+)\s?\}")
_PHRASES = re.compile(r"(?i)answer\s+is\b|answer\s*:|####")
_BRACE = re.compile(r"[{}]")
_BOXED = "\\boxed{"
_BEFORE = " \t\r\n:*$"
"""Characters that may come between such a phrase and its number."""


@final
@dataclass(frozen=True)
class WrittenNumber:
    """A number as it was written.

    Attributes:
        value: Its value; for a percentage, the number before the sign.
        percent: Whether a percent sign follows.
    """

    value: Decimal
    percent: bool = False

    def __str__(self) -> str:
        return f"{self.value:.20g}{'%' if self.percent else ''}"


@final
class NumberGrader(Grader):
    """Right where the answer's number equals the task's.

    A task's option `tolerance` is the largest absolute error that is allowed (0 by default). A
    relative error of 1e-9 is always allowed, for rounding.
    """

    about = GraderTraits(name="number", version=1)

    def grade(self, task: Task, text: str) -> Grade:
        """Find the number and compare it with every accepted one."""
        right = [parse_number(answer) for answer in task.answer]
        tolerance = tolerance_of(task.options)
        if not right or None in right:
            return unfit("each of the task's answers must be a number")
        if tolerance is None:
            return unfit("the task's tolerance must be a number, not negative")
        number = extract_number(text)
        if number is None:
            return make_grade(False, detail="no number found")
        equal = any(r is not None and equal_numbers(number, r, tolerance) for r in right)
        return make_grade(equal, extracted=str(number))


def open_number(_: Settings) -> Grader:
    """The grader that compares numbers."""
    return NumberGrader()


def parse_number(text: str) -> WrittenNumber | None:
    """The number that is the whole text; None where the text is anything else."""
    plain = _simplify_mathematics(text).strip().rstrip(".")
    match = _NUMBER.fullmatch(plain)
    return _read_number(match) if match else None


def extract_number(text: str) -> WrittenNumber | None:
    r"""The number that an answer gives.

    It is the last number in the last `\boxed{}` that has one; else the first number after the last
    `answer is`, `answer:` or `####` that has one after it; else the last number of the text.
    """
    plain = _simplify_mathematics(text)
    for box in reversed(_find_boxes(plain)):
        inside = _find_all(box)
        if inside:
            return inside[-1]
    end = len(plain)
    for phrase in reversed(list(_PHRASES.finditer(plain))):
        number = _find_first(plain[phrase.end() : end])
        if number is not None:
            return number
        end = phrase.start()  # what follows the next phrase was searched, and holds none
    every = _find_all(plain)
    return every[-1] if every else None


def equal_numbers(number: WrittenNumber, right: WrittenNumber, tolerance: Decimal) -> bool:
    """Whether two numbers are equal.

    50 % equals 0.5. Where only one of the two has a percent sign, the sign may also be ignored:
    then 50 % equals 50.
    """
    readings = [(_to_value(number), _to_value(right))]
    if number.percent != right.percent:
        readings.append((number.value, right.value))
    return any(_is_close(a, b, tolerance) for a, b in readings)


def _is_close(number: Decimal, right: Decimal, tolerance: Decimal) -> bool:
    allowed = max(tolerance, _EXACT.multiply(_RELATIVE, _EXACT.abs(right)))
    if right == right.to_integral_value() and not tolerance:
        allowed = Decimal(0) if number == number.to_integral_value() else allowed
    return _EXACT.abs(_EXACT.subtract(number, right)) <= allowed


def _to_value(number: WrittenNumber) -> Decimal:
    return _EXACT.divide(number.value, Decimal(100)) if number.percent else number.value


def _simplify_mathematics(text: str) -> str:
    """The text with ASCII minus signs, and with fractions of LaTeX written with a slash."""
    plain = text.translate(_MINUS).replace("{,}", ",").replace("\\,", "").replace("\\!", "")
    return _FRACTION.sub(r"\1/\2", plain)


def _find_first(text: str) -> WrittenNumber | None:
    """The first number in the first line that isn't empty."""
    return next(_find_numbers(text.lstrip(_BEFORE).split("\n", 1)[0]), None)


def _find_all(text: str) -> list[WrittenNumber]:
    return list(_find_numbers(text))


def _find_numbers(text: str) -> Iterator[WrittenNumber]:
    numbers = (_read_number(match) for match in _NUMBER.finditer(text))
    return (number for number in numbers if number is not None)


def _read_number(match: re.Match[str]) -> WrittenNumber | None:
    digits = match["digits"].replace(",", "")
    power = int(match["power"] or match["tenth"] or 0)
    below = match["below"] or "1"
    if len(digits) > _LONGEST or abs(power) > _LONGEST or len(below) > _LONGEST or not int(below):
        return None
    value = _EXACT.scaleb(Decimal(f"{match['sign']}{digits}"), power)
    return WrittenNumber(_EXACT.divide(value, Decimal(below)), match["percent"] is not None)


def _find_boxes(text: str) -> list[str]:
    r"""The content of each `\boxed{}`, which may contain braces."""
    boxes, at = [], text.find(_BOXED)
    while at >= 0:
        begin = at + len(_BOXED)
        end = _find_closing(text, begin)
        boxes.append(text[begin:end])
        at = text.find(_BOXED, end)
    return boxes


def _find_closing(text: str, begin: int) -> int:
    """The position of the brace that closes the one before `begin`; the end if none does."""
    depth = 1
    for brace in _BRACE.finditer(text, begin):
        depth += 1 if brace[0] == "{" else -1
        if not depth:
            return brace.start()
    return len(text)


def tolerance_of(options: Mapping[str, Any]) -> Decimal | None:
    """The tolerance of a task; None where the option isn't a number, or is negative."""
    value = options.get("tolerance", 0)
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return Decimal(str(value)) if math.isfinite(value) and value >= 0 else None
