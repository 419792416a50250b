"""Grades of the answers to an assignment's batches, by graders that need no judge.

The prompts are read again as tasks: with `answer`, `grader` and whatever else the grader needs.
They are joined with the answers by id. A task without an id must be the prompt at its position.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import final

from prefill_router.assignment.folder import SavedAssignment
from prefill_router.assignment.prompt_file import own_id, prompt_digest, prompt_id
from prefill_router.errors import DataError, FormatError
from prefill_router.grading import JUDGES, Grade, Graders, Settings, read_task
from prefill_router.importers import DatasetBuilder, columns_of, read_batch_results, records
from prefill_router.runs import Task


@final
@dataclass(frozen=True)
class GradedResults:
    """The grades of some answers.

    Attributes:
        labels: How right each graded answer is, from 0 to 1, by id.
        ungraded: How many answers have no grade, by reason.
    """

    labels: Mapping[str, float]
    ungraded: Mapping[str, int]


def grade_results(saved: SavedAssignment, paths: Sequence[Path], tasks: Path) -> GradedResults:
    """Grade the answers of an assignment's batches.

    Args:
        saved: The assignment.
        paths: OpenAI's and Anthropic's results, or folders of them.
        tasks: The prompts, with what their graders need.

    Raises:
        FormatError: A source doesn't exist, a line is malformed, a record is no task, two have the
            same id, or one without an id isn't the prompt at its position.
        SandboxError: Programs are to be graded, and there is no sandbox.
    """
    if not tasks.is_file():
        raise FormatError("no such file; give the prompts with their answers", file=tasks)
    texts = _read_texts(saved, paths)
    labels, ungraded = dict[str, float](), Counter[str]()
    graders = Graders(Settings(), saved.folder)
    try:
        for name, task in _read_tasks(tasks, saved, texts):
            grade = _grade(graders, task, texts[name])
            if grade.score is None:
                ungraded[grade.missing or "ungraded"] += 1
            else:
                labels[name] = grade.score
    finally:
        graders.stop()
        graders.close()
    if not labels and not ungraded:
        raise DataError(f"no task of {tasks} has an answer; give the prompts that were assigned")
    return GradedResults(labels, dict(ungraded))


def _grade(graders: Graders, task: Task, text: str) -> Grade:
    if task.grader in JUDGES:
        return Grade(missing="needs_judge")
    return graders[task.grader].grade(task, text)


def _read_tasks(
    path: Path, saved: SavedAssignment, texts: Mapping[str, str]
) -> Iterator[tuple[str, Task]]:
    """The tasks that were answered, each with its prompt's id."""
    strict, ids = DatasetBuilder(strict=True), set[str]()
    digests = dict(zip(saved.table["id"], saved.table["digest"], strict=True))
    rows = records(path, strict, needs=(), wants=columns_of(path))
    for number, (place, record) in enumerate(rows, 1):
        with strict.row(place):
            name = prompt_id(record, number)
            if name in ids:
                raise DataError(f"two tasks have the id {name!r}; keep one of them")
            ids.add(name)
            task = read_task(record) if name in texts else None
            if task is not None and own_id(record) is None:
                _check_digest(task, name, digests[name])
        if task is not None:
            yield name, task


def _check_digest(task: Task, name: str, digest: str) -> None:
    """Check that a task without an id is the prompt that was assigned at its position."""
    if prompt_digest(task.query.prompt) != digest:
        raise DataError(
            f"this task has another prompt than the assigned prompt {name!r}; give the tasks "
            "in the order of the prompts, or give both ids and assign the prompts again"
        )


def _read_texts(saved: SavedAssignment, paths: Sequence[Path]) -> dict[str, str]:
    """The first answer to each prompt, by id."""
    ids, texts = set(saved.table["id"]), dict[str, str]()
    for result in read_batch_results(paths):
        if result.answer is not None and result.custom_id in ids:
            texts.setdefault(result.custom_id, result.text)
    return texts
