"""A user's own questions, read from JSON Lines, a JSON list, CSV or Parquet, and written.

A row has `prompt` (text) or `messages` (a list of {role, content}); `answer`, a right answer or a
list of them; `grader`, `exact` by default; and optionally `id` (or `query_id`), `domain` and
`benchmark`. Every other field goes to the grader unchanged. In CSV, where everything is text, the
cells of `messages`, `tests`, `choices` and `tolerance` are JSON. An empty cell means that the row
lacks the field.

Tasks of any benchmark can be written as such JSON Lines, to be looked at, edited or shared.
"""

import json
import math
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from prefill_router import files
from prefill_router.data import Prompt, Query, prompt_key
from prefill_router.errors import DataError, FormatError
from prefill_router.grading import GRADERS, parse_number, right_letters, tolerance_of
from prefill_router.importers import (
    DatasetBuilder,
    Record,
    cell_prompt,
    columns_of,
    filled_text,
    identifier,
    label_text,
    shown_cell,
)
from prefill_router.runs import Task
from prefill_router_lab.benchmarks.source import SUFFIXES, LoadReport, PlacedTask, rows

FIELDS: Final = ("id", "prompt", "messages", "answer", "grader", "domain", "benchmark")
_ID = ("id", "query_id")
_COMPARING = frozenset({"exact", "normalised", "mmlu_pro", "number", "math", "hle"})
_TABLES = (".csv", ".parquet")
_JSON_CELLS = ("messages", "tests", "choices", "tolerance")
_TEXTS = ("input", "output")


def read(path: Path, report: LoadReport) -> Iterator[PlacedTask]:
    """The tasks of a file.

    Raises:
        FormatError: The file has another format, or a row is malformed.
    """
    suffix = path.suffix.lower()
    is_table = suffix in _TABLES
    wants = columns_of(path) if is_table else ()
    report.source = str(path)
    strict = DatasetBuilder(strict=True)
    for place, record in rows(path, needs=(), wants=wants):
        with strict.row(place):
            yield PlacedTask(place, _task(_from_table(record, suffix) if is_table else record))


def check_file(path: Path) -> None:
    """Check that a file can hold tasks, before any is read.

    Raises:
        FormatError: It doesn't exist, or its name ends otherwise.
    """
    if not path.is_file():
        raise FormatError(
            "is a folder; name a file" if path.is_dir() else "no such file", file=path
        )
    if path.suffix.lower() not in SUFFIXES:
        raise FormatError(
            f"can't hold tasks; their files' names end in {', '.join(SUFFIXES)}", file=path
        )


def _from_table(record: Record, suffix: str) -> Record:
    """A row without its empty cells, which stand for fields that only other rows have."""
    is_csv = suffix == ".csv"
    filled = {
        name: cell
        for name, cell in record.items()
        if cell is not None and not (is_csv and not cell)
    }
    for name in _JSON_CELLS:
        if is_csv and name in filled:
            try:
                filled[name] = json.loads(str(filled[name]))
            except (ValueError, RecursionError):
                raise DataError(f"{name} isn't JSON; in CSV its cells must be") from None
    return filled


def _task(record: Record) -> Task:
    query = _query(record)
    grader = record.get("grader")
    name = "exact" if grader is None else filled_text(grader, "grader")
    if name not in GRADERS:
        raise DataError(f"grader is {shown_cell(name)}; the graders are {', '.join(GRADERS)}")
    answer = _answers(record.get("answer"))
    options = {field: value for field, value in record.items() if field not in (*FIELDS, *_ID)}
    _check_options(options)
    _check_needs(name, answer, options)
    return Task(query=query, grader=name, answer=answer, options=options)


def _query(record: Record) -> Query:
    prompt = _prompt(record)
    given = next((record[name] for name in _ID if record.get(name) is not None), None)
    query_id = f"q-{prompt_key(prompt)[:12]}" if given is None else identifier(given, "id")
    return Query(
        query_id,
        prompt,
        label_text(record.get("benchmark"), "benchmark"),
        label_text(record.get("domain"), "domain"),
    )


def _prompt(record: Record) -> Prompt:
    """The messages, or else the prompt."""
    chat = record.get("messages")
    if chat is not None:
        if not isinstance(chat, list):
            raise DataError("messages must be a list of {role, content}")
        return cell_prompt(chat, "messages")
    if record.get("prompt") is None:
        raise DataError("has neither a prompt nor messages")
    return cell_prompt(record["prompt"], "prompt")


def _answers(value: object) -> tuple[str, ...]:
    found = value if isinstance(value, list) else [] if value is None else [value]
    return tuple(_answer(item) for item in found)


def _answer(value: object) -> str:
    if isinstance(value, bool):
        raise DataError("answer is true or false; write it as the text that is expected")
    if isinstance(value, float) and not math.isfinite(value):
        raise DataError(f"answer is {value}; write a number, or a text")
    if isinstance(value, int | float):
        return identifier(value, "answer") if isinstance(value, int) else repr(value)
    return filled_text(value, "answer")


def _check_options(options: Mapping[str, Any]) -> None:
    """Check that the options are JSON, so that a run can keep them."""
    for name, value in options.items():
        try:
            json.dumps([name, value], allow_nan=False, ensure_ascii=False).encode()
        except (TypeError, ValueError, RecursionError):
            raise DataError(f"{shown_cell(name)} isn't a JSON value in UTF-8") from None


def _check_needs(grader: str, answer: tuple[str, ...], options: Mapping[str, Any]) -> None:
    if grader in _COMPARING and not answer:
        raise DataError(f"lacks an answer, with which the grader {grader} compares")
    if grader == "judge":
        filled_text(options.get("rubric"), "rubric, by which the grader judge goes,")
    if grader == "mmlu_pro" and not right_letters(answer):
        raise DataError("answer must be a letter from A to J, as the grader mmlu_pro finds them")
    if grader == "number":
        _check_numbers(answer, options)
    if not isinstance(options.get("function"), str | None):
        raise DataError("function must be the name of a function, as text")
    if grader == "code":
        kinds = _kinds(options.get("tests"))
        if "functional" in kinds and not isinstance(options.get("function"), str):
            raise DataError("has functional tests; name the function that they call in function")


def _check_numbers(answer: tuple[str, ...], options: Mapping[str, Any]) -> None:
    for text in answer:
        if parse_number(text) is None:
            raise DataError(f"answer is {shown_cell(text)}; the grader number needs a number")
    if tolerance_of(options) is None:
        raise DataError("tolerance must be a number, finite and not negative")


def _kinds(tests: object) -> set[str]:
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


def write_tasks(tasks: Iterable[Task], path: Path | str) -> int:
    """Write tasks, whole or not at all; an earlier file is replaced.

    Returns:
        The number of tasks.

    Raises:
        ConfigError: The file can't be written here.
        DataError: A task can't be written as JSON in UTF-8, or has an option named like a field.
    """
    path = Path(path)
    files.check_place(path)
    count = 0
    with files.replacing_file(path) as temporary, temporary.open("wb") as file:
        for count, task in enumerate(tasks, 1):  # noqa: B007
            file.write(_task_line(task))
    return count


def _task_line(task: Task) -> bytes:
    name = task.query.id
    taken = sorted(set(task.options) & {*FIELDS, "query_id"})
    if taken:
        raise DataError(f"task {name!r} has the options {taken}, which are fields; rename them")
    try:
        text = json.dumps(_task_fields(task), ensure_ascii=False, allow_nan=False)
        return f"{text}\n".encode()
    except (TypeError, ValueError) as error:
        why = "a lone surrogate" if isinstance(error, UnicodeError) else "a value that JSON lacks"
        raise DataError(f"task {name!r} holds {why}, and can't be written") from None


def _task_fields(task: Task) -> dict[str, Any]:
    query = task.query
    if isinstance(query.prompt, str):
        asked: dict[str, Any] = {"prompt": query.prompt}
    else:
        asked = {"messages": [vars(message) for message in query.prompt]}
    answer = list(task.answer) if len(task.answer) != 1 else task.answer[0]
    known = {"benchmark": query.benchmark, "domain": query.domain, "answer": answer}
    return {
        "id": query.id,
        **asked,
        "grader": task.grader,
        **{field: value for field, value in known.items() if value},
        **task.options,
    }
