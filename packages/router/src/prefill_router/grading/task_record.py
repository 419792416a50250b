"""A task as a record of a user's own table has it.

A record has `prompt` (text) or `messages` (a list of {role, content}); `answer`, a right answer or
a list of them; `grader`, `exact` by default; and optionally `id` (or `query_id`), `domain` and
`benchmark`. Every other field goes to the grader unchanged.
"""

import json
import math
from collections.abc import Mapping
from typing import Any, Final

from prefill_router.data import Prompt, Query, prompt_key
from prefill_router.errors import DataError
from prefill_router.grading.registry import GRADERS
from prefill_router.grading.text import parse_number, right_letters, tolerance_of
from prefill_router.importers import (
    Record,
    cell_prompt,
    identifier,
    label_text,
    require_text,
    show_cell,
)
from prefill_router.runs import Task

TASK_FIELDS: Final = ("id", "prompt", "messages", "answer", "grader", "domain", "benchmark")
_ID = ("id", "query_id")
_COMPARING = frozenset({"exact", "normalised", "mmlu_pro", "number", "math", "hle"})
_TEXTS = ("input", "output")


def read_task(record: Record) -> Task:
    """The task of a record.

    Raises:
        DataError: It lacks a prompt, or what its grader needs, or names no grader.
    """
    query = _read_query(record)
    grader = record.get("grader")
    name = "exact" if grader is None else require_text(grader, "grader")
    if name not in GRADERS:
        raise DataError(f"grader is {show_cell(name)}; the graders are {', '.join(GRADERS)}")
    answer = _read_answers(record.get("answer"))
    options = {field: value for field, value in record.items() if field not in (*TASK_FIELDS, *_ID)}
    _check_options(options)
    _check_needs(name, answer, options)
    return Task(query=query, grader=name, answer=answer, options=options)


def _read_query(record: Record) -> Query:
    prompt = _read_prompt(record)
    id_cell = next((record[name] for name in _ID if record.get(name) is not None), None)
    query_id = f"q-{prompt_key(prompt)[:12]}" if id_cell is None else identifier(id_cell, "id")
    return Query(
        query_id,
        prompt,
        label_text(record.get("benchmark"), "benchmark"),
        label_text(record.get("domain"), "domain"),
    )


def _read_prompt(record: Record) -> Prompt:
    """The messages, or else the prompt."""
    chat = record.get("messages")
    if chat is not None:
        if not isinstance(chat, list):
            raise DataError("messages must be a list of {role, content}")
        return cell_prompt(chat, "messages")
    if record.get("prompt") is None:
        raise DataError("has neither a prompt nor messages")
    return cell_prompt(record["prompt"], "prompt")


def _read_answers(value: object) -> tuple[str, ...]:
    items = value if isinstance(value, list) else [] if value is None else [value]
    return tuple(_read_answer(item) for item in items)


def _read_answer(value: object) -> str:
    if isinstance(value, bool):
        raise DataError("answer is true or false; write it as the text that is expected")
    if isinstance(value, float) and not math.isfinite(value):
        raise DataError(f"answer is {value}; write a number, or a text")
    if isinstance(value, int | float):
        return identifier(value, "answer") if isinstance(value, int) else repr(value)
    return require_text(value, "answer")


def _check_options(options: Mapping[str, Any]) -> None:
    """Check that the options are JSON, so that a run can keep them."""
    for name, value in options.items():
        try:
            json.dumps([name, value], allow_nan=False, ensure_ascii=False).encode()
        except (TypeError, ValueError, RecursionError):
            raise DataError(f"{show_cell(name)} isn't a JSON value in UTF-8") from None


def _check_needs(grader: str, answer: tuple[str, ...], options: Mapping[str, Any]) -> None:
    if grader in _COMPARING and not answer:
        raise DataError(f"lacks an answer, with which the grader {grader} compares")
    if grader == "judge":
        require_text(options.get("rubric"), "rubric, by which the grader judge goes,")
    if grader == "mmlu_pro" and not right_letters(answer):
        raise DataError("answer must be a letter from A to J, as the grader mmlu_pro finds them")
    if grader == "number":
        _check_numbers(answer, options)
    if not isinstance(options.get("function"), str | None):
        raise DataError("function must be the name of a function, as text")
    if grader == "code":
        kinds = _find_kinds(options.get("tests"))
        if "functional" in kinds and not isinstance(options.get("function"), str):
            raise DataError("has functional tests; name the function that they call in function")


def _check_numbers(answer: tuple[str, ...], options: Mapping[str, Any]) -> None:
    for text in answer:
        if parse_number(text) is None:
            raise DataError(f"answer is {show_cell(text)}; the grader number needs a number")
    if tolerance_of(options) is None:
        raise DataError("tolerance must be a number, finite and not negative")


def _find_kinds(tests: object) -> set[str]:
    """The types of a task's tests; `stdin` where a test names none."""
    if not isinstance(tests, list) or not tests:
        raise DataError("lacks tests, a list, which the grader code runs")
    kinds: set[str] = set()
    for test in tests:
        if not isinstance(test, dict) or not all(isinstance(test.get(f), str) for f in _TEXTS):
            raise DataError(f"a test must have the texts {' and '.join(_TEXTS)}")
        kind = test.get("type", "stdin")
        if kind not in ("stdin", "functional"):
            raise DataError("a test's type must be stdin or functional")
        kinds.add(kind)
    return kinds
