"""Whether what a program gave is what a test expects, decided outside of the sandbox."""

import json
from decimal import Decimal, DecimalException
from typing import Any


def same_output(found: str, expected: str) -> bool:
    """Whether a program printed what a test expects, as LiveCodeBench compares.

    White space around the whole and around each line doesn't count, but the number of lines does.
    A line is the same where it is letter for letter, or where both are decimal numbers throughout
    and these are equal exactly: 1.0 is 1.00, and 0.1 is not 0.1000001.
    """
    ours, theirs = _lines(found), _lines(expected)
    return len(ours) == len(theirs) and all(map(_same_line, ours, theirs))


def same_result(found: str, expected: str) -> bool | None:
    """Whether a function's result equals what a test expects, both as JSON.

    Returns:
        None where what was found is no JSON document, or more than one.

    Raises:
        ValueError: What is expected is none.
    """
    right = read_json(expected)
    try:
        return bool(read_json(found) == right)
    except ValueError:
        return None


def read_json(text: str) -> Any:
    """The value of a JSON document.

    Raises:
        ValueError: It is none, or can't be read: numbers too long, or nested too deeply.
    """
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("nested too deeply") from None


def _lines(text: str) -> list[str]:
    return [line.strip() for line in text.strip().split("\n")]


def _same_line(found: str, expected: str) -> bool:
    if found == expected:
        return True
    try:
        return [Decimal(word) for word in found.split()] == [Decimal(w) for w in expected.split()]
    except (DecimalException, ValueError):  # no number; or one that can't be compared
        return False
