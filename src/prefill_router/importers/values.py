"""Conversion of cells to values; a malformed cell is a `DataError`.

None, an empty cell, NaN, and the words `null` and `nan` count as missing.
"""

import math
import re
from typing import final

from prefill_router.data import MOST_TOKENS, Message, Prompt
from prefill_router.errors import DataError

LABELS = "a label is a number from 0 to 1, true or false, yes or no, pass or fail"
_NUMBER = re.compile(r"[+-]?(\d++(\.\d*+)?|\.\d++)([eE][+-]?\d++)?", re.ASCII)
_RIGHT = ("true", "yes", "pass", "passed", "correct")
_WRONG = ("false", "no", "fail", "failed", "incorrect")
_WORDS = {**dict.fromkeys(_RIGHT, 1.0), **dict.fromkeys(_WRONG, 0.0)}
_MISSING = {"", "null", "nan", "none"}


def cell_text(value: object, name: str) -> str:
    """A text that can be encoded as UTF-8.

    Raises:
        DataError: The value isn't text, or can't be encoded.
    """
    if not isinstance(value, str):
        raise DataError(f"{name} is {_kind(value)}; it must be text")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise DataError(f"{name} isn't valid UTF-8; save the file as UTF-8") from None
    return value


def filled_text(value: object, name: str) -> str:
    """A text that isn't empty.

    Raises:
        DataError: The value isn't text, or is empty.
    """
    result = cell_text(value, name)
    if not result.strip():
        raise DataError(f"{name} is empty")
    return result


def label_text(value: object, name: str) -> str:
    """A text, empty where missing."""
    return "" if value is None else cell_text(value, name)


def identifier(value: object, name: str) -> str:
    """An id: a text, or a whole number.

    Raises:
        DataError: The value is missing or something else.
    """
    if isinstance(value, int) and not isinstance(value, bool):
        return _digits(value, name)
    return filled_text(value, name)


@final
class ScoreError(DataError):
    """A score outside its scale.

    Attributes:
        score: The score.
    """

    def __init__(self, message: str, *, score: float) -> None:
        super().__init__(message)
        self.score = score


def label(value: object, name: str) -> float | None:
    """A label in [0, 1], None where missing: a number, or a word such as yes.

    Raises:
        ScoreError: The value is a number outside [0, 1].
        DataError: The value is something else.
    """
    number = score(value, name)
    if number is not None and not 0 <= number <= 1:
        raise ScoreError(f"{name} is {shown_cell(value)}; {LABELS}", score=number)
    return number


def score(value: object, name: str) -> float | None:
    """The score of an answer, on any scale; 1 or 0 for a word such as yes, or a boolean.

    Raises:
        DataError: The value is neither a number nor such a word.
    """
    word = verdict(value)
    return _number(value, name, LABELS) if word is None else word


def verdict(value: object) -> float | None:
    """1 for true, yes and pass; 0 for false, no and fail; None for anything else."""
    if isinstance(value, bool):
        return float(value)
    return _WORDS.get(value.strip().lower()) if isinstance(value, str) else None


def cell_amount(value: object, name: str, *, most: float = MOST_TOKENS) -> float | None:
    """A count of tokens, or an amount of money up to `most`, None where missing.

    Raises:
        DataError: The value isn't a number, or is negative, infinite or above `most`.
    """
    number = _number(value, name, "it must be a number")
    if number is not None and not 0 <= number < math.inf:
        raise DataError(f"{name} is {shown_cell(value)}; it must be finite and not negative")
    if number is not None and number > most:
        raise DataError(
            f"{name} is {shown_cell(value)}; more than {most:,.0f} is treated as a mistake"
        )
    return number


def cell_prompt(value: object, name: str) -> Prompt:
    """A prompt: a text, or a list of {role, content} texts.

    Raises:
        DataError: The value is neither, or empty.
    """
    if not isinstance(value, list):
        return filled_text(value, name)
    turns = [turn for turn in value if isinstance(turn, dict)]
    if not turns or len(turns) != len(value):
        raise DataError(f"{name} is a list; it must hold one or more {{role, content}} messages")
    return tuple(
        Message(
            filled_text(turn.get("role"), f"{name}: a role"),
            cell_text(turn.get("content"), f"{name}: a content"),
        )
        for turn in turns
    )


def _number(value: object, name: str, wanted: str) -> float | None:
    if isinstance(value, str):
        plain = value.strip().lower()
        if plain not in _MISSING and not _NUMBER.fullmatch(plain):
            raise DataError(f"{name} is {shown_cell(value)}; {wanted}")
        value = None if plain in _MISSING else float(plain)
    if value is None:
        return None
    if isinstance(value, bool):
        raise DataError(f"{name} is {value}; {wanted}")
    if not isinstance(value, int | float):
        raise DataError(f"{name} is {_kind(value)}; {wanted}")
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    return None if math.isnan(number) else number


def _digits(value: int, name: str) -> str:
    if abs(value) >= 10**30:
        raise DataError(f"{name} is a number of more than 30 digits; write such ids as text")
    return str(value)


def _kind(value: object) -> str:
    if value is None:
        return "missing"
    return f"of the type {type(value).__name__}"


def shown_cell(value: object) -> str:
    """A value for a message, truncated."""
    if isinstance(value, int) and abs(value) >= 10**30:
        return "a huge number"
    shown = repr(value)
    return shown if len(shown) <= 40 else f"{shown[:37]}..."
