"""A user's own questions, read from JSON Lines, a JSON list, CSV or Parquet, and written.

The fields of a row are those of `grading.read_task`. In CSV, where everything is text, the cells of
`messages`, `tests`, `choices` and `tolerance` are JSON. An empty cell means that the row lacks the
field.

Tasks of any benchmark can be written as such JSON Lines, to be looked at, edited or shared.
"""

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from prefill_router import files
from prefill_router.errors import DataError, FormatError
from prefill_router.grading import TASK_FIELDS, read_task
from prefill_router.importers import DatasetBuilder, Record, columns_of
from prefill_router.runs import Task
from prefill_router_lab.benchmarks.source import SUFFIXES, LoadReport, PlacedTask, rows

_TABLES = (".csv", ".parquet")
_JSON_CELLS = ("messages", "tests", "choices", "tolerance")


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
            yield PlacedTask(
                place, read_task(_drop_empty_cells(record, suffix) if is_table else record)
            )


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


def _drop_empty_cells(record: Record, suffix: str) -> Record:
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
            file.write(_format_task(task))
    return count


def _format_task(task: Task) -> bytes:
    name = task.query.id
    reserved = sorted(set(task.options) & {*TASK_FIELDS, "query_id"})
    if reserved:
        raise DataError(
            f"task {name!r} has options with the names {reserved}, which are names of "
            "a task's fields; rename these options"
        )
    try:
        text = json.dumps(_list_fields(task), ensure_ascii=False, allow_nan=False)
        return f"{text}\n".encode()
    except (TypeError, ValueError) as error:
        why = "a lone surrogate" if isinstance(error, UnicodeError) else "a value that JSON lacks"
        raise DataError(f"task {name!r} holds {why}, and can't be written") from None


def _list_fields(task: Task) -> dict[str, Any]:
    query = task.query
    if isinstance(query.prompt, str):
        prompt: dict[str, Any] = {"prompt": query.prompt}
    else:
        prompt = {"messages": [vars(message) for message in query.prompt]}
    answer = list(task.answer) if len(task.answer) != 1 else task.answer[0]
    fields = {"benchmark": query.benchmark, "domain": query.domain, "answer": answer}
    return {
        "id": query.id,
        **prompt,
        "grader": task.grader,
        **{field: value for field, value in fields.items() if value},
        **task.options,
    }
