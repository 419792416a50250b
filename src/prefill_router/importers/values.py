"""From what stands in a cell to what it means; what can't be understood is a `DataError`.

Missing is None, an empty cell, NaN, or the words `null` and `nan` (as tables are often written).
"""

import math
import re

from prefill_router.data import Message, Prompt
from prefill_router.errors import DataError

_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?", re.ASCII)
_WORDS = {"true": 1.0, "false": 0.0}
_MISSING = {"", "null", "nan", "none"}


def text(value: object, name: str) -> str:
    """A text that can be written down.

    Raises:
        DataError: It is no text, or holds what no encoding has.
    """
    if not isinstance(value, str):
        raise DataError(f"{name} is {_kind(value)}; it must be text")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise DataError(f"{name} isn't valid UTF-8; save the file as UTF-8") from None
    return value


def filled_text(value: object, name: str) -> str:
    """A text that says something.

    Raises:
        DataError: It is no text, or is empty.
    """
    result = text(value, name)
    if not result.strip():
        raise DataError(f"{name} is empty")
    return result


def label_text(value: object, name: str) -> str:
    """A text that may be missing: then it is empty."""
    return "" if value is None else text(value, name)


def identifier(value: object, name: str) -> str:
    """An id: a text, or a whole number.

    Raises:
        DataError: It is missing or neither.
    """
    if isinstance(value, int) and not isinstance(value, bool):
        return _digits(value, name)
    return filled_text(value, name)


def label(value: object, name: str) -> float | None:
    """A label in [0, 1], None where missing: a number, true or false.

    Raises:
        DataError: It is something else.
    """
    number = _number(value, name)
    if number is not None and not 0 <= number <= 1:
        raise DataError(f"{name} is {show(value)}; a label is true, false or in [0, 1]")
    return number


def amount(value: object, name: str) -> float | None:
    """A count of tokens or an amount of money, None where missing.

    Raises:
        DataError: It is no number, or negative or infinite.
    """
    if isinstance(value, bool) or (isinstance(value, str) and value.strip().lower() in _WORDS):
        raise DataError(f"{name} is {show(value)}; it must be a number")
    number = _number(value, name)
    if number is not None and not 0 <= number < math.inf:
        raise DataError(f"{name} is {show(value)}; it must be finite and not negative")
    return number


def prompt(value: object, name: str) -> Prompt:
    """A prompt: a text, or a list of {role, content} texts.

    Raises:
        DataError: It is neither, or empty.
    """
    if not isinstance(value, list):
        return filled_text(value, name)
    turns = [turn for turn in value if isinstance(turn, dict)]
    if not turns or len(turns) != len(value):
        raise DataError(f"{name} is a list; it must hold one or more {{role, content}} messages")
    return tuple(
        Message(
            filled_text(turn.get("role"), f"{name}: a role"),
            text(turn.get("content"), f"{name}: a content"),
        )
        for turn in turns
    )


def _number(value: object, name: str) -> float | None:
    if value is None:
        return None
    if isinstance(value, str):
        value = _from_text(value, name)
    if isinstance(value, bool | int | float):
        try:
            number = float(value)
        except OverflowError:
            number = math.inf
        return None if math.isnan(number) else number
    if value is None:
        return None
    raise DataError(f"{name} is {_kind(value)}; it must be a number")


def _from_text(value: str, name: str) -> float | None:
    plain = value.strip().lower()
    if plain in _MISSING:
        return None
    if plain in _WORDS:
        return _WORDS[plain]
    if not _NUMBER.fullmatch(plain):
        raise DataError(f"{name} is {show(value)}; it must be a number")
    return float(plain)


def _digits(value: int, name: str) -> str:
    if abs(value) >= 10**30:
        raise DataError(f"{name} is a number of more than 30 digits; write such ids as text")
    return str(value)


def _kind(value: object) -> str:
    if value is None:
        return "missing"
    return f"of the type {type(value).__name__}"


def show(value: object) -> str:
    """A value for a message, cut short."""
    if isinstance(value, int) and abs(value) >= 10**30:
        return "a huge number"
    shown = repr(value)
    return shown if len(shown) <= 40 else f"{shown[:37]}..."
