"""The grader of numbers: equal in value, however they are written."""

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from decimal import Context, Decimal
from typing import final

from prefill_router.harness.grading.base import About, Grade, Grader, graded, unfit
from prefill_router.harness.task import Task

_LONGEST = 400
"""Digits of a number, and the largest power of ten, that are read."""
_EXACT = Context(prec=2 * _LONGEST, Emax=99_999, Emin=-99_999, traps=[])
_RELATIVE = Decimal("1e-9")
_MINUS = str.maketrans({"\u2212": "-", "\u2013": "-", "\uff0d": "-", "\u00a0": " ", "\u202f": " "})
_NUMBER = re.compile(
    r"(?<![\w.])(?P<sign>[-+]?)(?:[$€£]\s?)?"
    # Twelve groups at most: a list of a hundred thousand would be tried from each of its members.
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
"""What may stand between such a phrase and its number."""


@final
@dataclass(frozen=True)
class Number:
    """A number as it was written.

    Attributes:
        value: Its value; of a percentage the number before the sign.
        percent: Whether a percent sign follows.
    """

    value: Decimal
    percent: bool = False

    def __str__(self) -> str:
        return f"{self.value:.20g}{'%' if self.percent else ''}"


@final
class NumberGrader(Grader):
    """Right where the answer's number equals the task's.

    A task's option `tolerance` is how far off the number may be, as a number (0 by default);
    a billionth of the right number is always allowed, for what rounding leaves.
    """

    @property
    def about(self) -> About:
        """Its name and version."""
        return About(name="number", version=1)

    def grade(self, task: Task, text: str) -> Grade:
        """Find the number and compare it with every accepted one."""
        right = [parse_number(answer) for answer in task.answer]
        tolerance = _tolerance(task)
        if not right or None in right:
            return unfit("each of the task's answers must be a number")
        if tolerance is None:
            return unfit("the task's tolerance must be a number, not negative")
        found = extract_number(text)
        if found is None:
            return graded(False, detail="no number found")
        equal = any(r is not None and equal_numbers(found, r, tolerance) for r in right)
        return graded(equal, extracted=str(found))

    def close(self) -> None:
        """Nothing was started."""


def parse_number(text: str) -> Number | None:
    """The number that a text is; None where it is none, or something beside it is there."""
    plain = _plain(text).strip().rstrip(".")
    found = _NUMBER.fullmatch(plain)
    return _number(found) if found else None


def extract_number(text: str) -> Number | None:
    r"""The number that an answer gives.

    The last one in the last `\boxed{}` that holds one; else the first one after the last `answer
    is`, `answer:` or `####` that any follows; else the last one of all.
    """
    plain = _plain(text)
    for box in reversed(_boxes(plain)):
        inside = _every(box)
        if inside:
            return inside[-1]
    end = len(plain)
    for phrase in reversed(list(_PHRASES.finditer(plain))):
        said = _first(plain[phrase.end() : end])
        if said is not None:
            return said
        end = phrase.start()  # what follows the next phrase was searched, and holds none
    every = _every(plain)
    return every[-1] if every else None


def equal_numbers(found: Number, right: Number, tolerance: Decimal) -> bool:
    """Whether two numbers are equal.

    50 % and 0.5 are. Where only one of the two has a percent sign, the sign may also be left out:
    50 % and 50 are.
    """
    readings = [(_value(found), _value(right))]
    if found.percent != right.percent:
        readings.append((found.value, right.value))
    return any(_close(a, b, tolerance) for a, b in readings)


def _close(found: Decimal, right: Decimal, tolerance: Decimal) -> bool:
    allowed = max(tolerance, _EXACT.multiply(_RELATIVE, _EXACT.abs(right)))
    if right == right.to_integral_value() and not tolerance:
        allowed = Decimal(0) if found == found.to_integral_value() else allowed
    return _EXACT.abs(_EXACT.subtract(found, right)) <= allowed


def _value(number: Number) -> Decimal:
    return _EXACT.divide(number.value, Decimal(100)) if number.percent else number.value


def _plain(text: str) -> str:
    """The text with one minus sign, and fractions of LaTeX written with a slash."""
    plain = text.translate(_MINUS).replace("{,}", ",").replace("\\,", "").replace("\\!", "")
    return _FRACTION.sub(r"\1/\2", plain)


def _first(text: str) -> Number | None:
    """The first number in the first line that isn't empty."""
    return next(_numbers(text.lstrip(_BEFORE).split("\n", 1)[0]), None)


def _every(text: str) -> list[Number]:
    return list(_numbers(text))


def _numbers(text: str) -> Iterator[Number]:
    found = (_number(match) for match in _NUMBER.finditer(text))
    return (number for number in found if number is not None)


def _number(match: re.Match[str]) -> Number | None:
    digits = match["digits"].replace(",", "")
    power = int(match["power"] or match["tenth"] or 0)
    below = match["below"] or "1"
    if len(digits) > _LONGEST or abs(power) > _LONGEST or len(below) > _LONGEST or not int(below):
        return None
    value = _EXACT.scaleb(Decimal(f"{match['sign']}{digits}"), power)
    return Number(_EXACT.divide(value, Decimal(below)), match["percent"] is not None)


def _boxes(text: str) -> list[str]:
    r"""What stands in each `\boxed{}`, braces within it included."""
    boxes, at = [], text.find(_BOXED)
    while at >= 0:
        begin = at + len(_BOXED)
        end = _closing(text, begin)
        boxes.append(text[begin:end])
        at = text.find(_BOXED, end)
    return boxes


def _closing(text: str, begin: int) -> int:
    """Where the brace closes that was opened before `begin`; the end where it never does."""
    depth = 1
    for brace in _BRACE.finditer(text, begin):
        depth += 1 if brace[0] == "{" else -1
        if not depth:
            return brace.start()
    return len(text)


def _tolerance(task: Task) -> Decimal | None:
    value = task.options.get("tolerance", 0)
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return Decimal(str(value)) if math.isfinite(value) and value >= 0 else None
