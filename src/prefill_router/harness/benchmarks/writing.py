"""Tasks as the JSON Lines that `own` reads: to look at, to edit, to hand on."""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from prefill_router import files
from prefill_router.errors import DataError
from prefill_router.harness.benchmarks.own import FIELDS
from prefill_router.harness.task import Task


def write_tasks(tasks: Iterable[Task], path: Path | str) -> int:
    """Write tasks, whole or not at all; what stood there before is replaced.

    Returns:
        How many there were.

    Raises:
        ConfigError: The file can't be made here.
        DataError: A task holds what JSON or UTF-8 can't, or an option with the name of a field.
    """
    path = Path(path)
    files.check_place(path)
    count = 0
    with files.replacing_file(path) as temporary, temporary.open("wb") as file:
        for count, task in enumerate(tasks, 1):  # noqa: B007
            file.write(_line(task))
    return count


def _line(task: Task) -> bytes:
    name = task.query.id
    taken = sorted(set(task.options) & {*FIELDS, "query_id"})
    if taken:
        raise DataError(f"task {name!r} has the options {taken}, which are fields; rename them")
    try:
        text = json.dumps(_fields(task), ensure_ascii=False, allow_nan=False)
        return f"{text}\n".encode()
    except (TypeError, ValueError) as error:
        why = "a lone surrogate" if isinstance(error, UnicodeError) else "what JSON has not"
        raise DataError(f"task {name!r} holds {why}, and can't be written") from None


def _fields(task: Task) -> dict[str, Any]:
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
