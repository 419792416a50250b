"""A process that decides whether two pieces of mathematics are equal.

It reads a JSON document per line and answers each with another. It runs as a process of its own,
since comparing can take forever, or all memory, and can only be stopped by ending the process. It
has no time limit: the process that started it ends it.
"""

import importlib
import json
import logging
import re
import resource
import sys
from collections.abc import Sequence
from typing import Any

MEMORY_BYTES = 3 * 2**30
READY = {"ready": True}
_BAD = (TypeError, ValueError, AttributeError, ArithmeticError, LookupError, NotImplementedError)
_BRACES = re.compile(r"\\.|[{}]", re.DOTALL)
_TOO_MUCH = (MemoryError, RecursionError)


def main() -> None:
    """Answer requests until the input ends."""
    _limit_memory()
    logging.disable()
    _load_library()
    sys.set_int_max_str_digits(100_000)
    _read_values("$1$")  # loads what the library imports lazily
    _write_reply(READY)
    for line in sys.stdin:
        request = json.loads(line)
        try:
            _write_reply(decide(request["right"], request["answer"]))
        except _TOO_MUCH:
            _write_reply({"unread": False, "equal": None, "read": ""})


def decide(right: Sequence[str], answer: str) -> dict[str, Any]:
    """Whether an answer equals one of the right ones.

    Returns:
        `unread`: whether a right answer can't be read, so that nothing is compared; `equal`: true
        or false; `read`: the result that was found in the answer.

    Raises:
        MemoryError: Comparing takes too much memory.
        RecursionError: An expression is nested too deeply.
    """
    golds = [_read_gold(text) for text in right]
    if not all(golds):
        return {"unread": True, "equal": None, "read": ""}
    results = _read_values(answer)
    equal = any(_are_equal(gold, results) for gold in golds)
    return {"unread": False, "equal": equal, "read": str(results[-1])[:2000] if results else ""}


def _read_gold(text: str) -> list[Any]:
    """The value of a right answer, read as mathematics throughout if no part of it is marked so.

    It is empty where the answer is malformed: the library then returns the bare text, which few
    answers equal, or only the part before the error.
    """
    if not _is_balanced(text):
        return []
    marked = any(mark in text for mark in ("$", "\\boxed", "\\(", "\\["))
    values = _read_values(text if marked else f"${text}$")
    return values if any(not isinstance(value, str) for value in values) else []


def _is_balanced(text: str) -> bool:
    """Whether all grouping braces are balanced."""
    depth = 0
    for brace in _BRACES.findall(text):
        depth += {"{": 1, "}": -1}.get(brace, 0)
        if depth < 0:
            return False
    return depth == 0


def _read_values(text: str) -> list[Any]:
    try:
        return list(_load_library().parse(text, parsing_timeout=None, raise_on_error=True))
    except _BAD:
        return []


def _are_equal(gold: list[Any], results: list[Any]) -> bool:
    verify = _load_library().verify
    try:
        return bool(verify(gold, results, timeout_seconds=None, raise_on_error=True))
    except _BAD:  # from one of several readings; another may succeed
        return bool(verify(gold, results, timeout_seconds=None, raise_on_error=False))


def _load_library() -> Any:
    return importlib.import_module("math_verify")  # it has no types


def _limit_memory() -> None:
    _, most = resource.getrlimit(resource.RLIMIT_AS)
    soft = MEMORY_BYTES if most == resource.RLIM_INFINITY else min(MEMORY_BYTES, most)
    resource.setrlimit(resource.RLIMIT_AS, (soft, most))


def _write_reply(value: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(value) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
