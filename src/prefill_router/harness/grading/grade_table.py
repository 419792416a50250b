"""The table of grades, with a row per answer, and the dataset that is made of it.

The index of tasks leaves out the options of graders, since tests can be very large.
"""

import io
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, final

import numpy as np
import polars as pl
from numpy.typing import NDArray

from prefill_router.data import Query, RoutingDataset
from prefill_router.errors import DataError
from prefill_router.harness.grading.base import Grade
from prefill_router.harness.grading.judge import FAILED, JUDGES, OVER_LIMIT
from prefill_router.harness.grading.report import (
    GradedTarget,
    GradingTally,
    UngradedExample,
    example_of,
)
from prefill_router.harness.records import Answer, Task
from prefill_router.harness.run import Run
from prefill_router.targets import Pool


@final
@dataclass(frozen=True)
class TaskEntry:
    """A task without its options.

    Attributes:
        query: The query.
        grader: The name of the grader of its answers.
        digest: SHA-256 of the task's whole content, in hexadecimal.
        place: The task's position in the run.
    """

    query: Query
    grader: str
    digest: str
    place: int


@final
class TaskIndex:
    """A run's tasks in their order; a whole task is read when it is needed.

    Args:
        run: The run.

    Raises:
        CorruptError: A task isn't what was written.
    """

    def __init__(self, run: Run) -> None:
        self._run = run
        self._entries = {
            task.query.id: TaskEntry(task.query, task.grader, digest, place)
            for place, (digest, task) in enumerate(run.digested_tasks())
        }
        self._last: tuple[str, Task] | None = None

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[TaskEntry]:
        return iter(self._entries.values())

    def __contains__(self, query_id: object) -> bool:
        return query_id in self._entries

    def __getitem__(self, query_id: str) -> TaskEntry:
        return self._entries[query_id]

    def task(self, query_id: str) -> Task:
        """The whole task; the last one is cached, since answers come task by task."""
        if self._last is None or self._last[0] != query_id:
            self._last = None
            self._last = (query_id, self._run.task(query_id))
        return self._last[1]


GRADES = "grades.parquet"
_COLUMNS: Final[dict[str, Any]] = {
    "query_id": pl.String,
    "target": pl.String,
    "grader": pl.String,
    "score": pl.Float64,
    "missing": pl.String,
    "extracted": pl.String,
    "detail": pl.String,
    "finish_reason": pl.String,
    "first_token_seconds": pl.Float64,
    "first_answer_seconds": pl.Float64,
    "seconds": pl.Float64,
}


@final
class GradeTable:
    """Collects grades in any order, and makes the dataset and the table of them.

    Args:
        tasks: The tasks.
        pool: The targets.
    """

    def __init__(self, tasks: TaskIndex, pool: Pool) -> None:
        self._tasks = tasks
        self._pool = pool
        self._column = {name: place for place, name in enumerate(pool.names)}
        shape = (len(tasks), len(pool))
        self._tables = {
            name: np.full(shape, np.nan)
            for name in ("correct", "input_tokens", "output_tokens", "recorded_cost")
        }
        self._asked = np.zeros(shape, dtype=bool)
        self._rows: list[tuple[int, int, tuple[Any, ...]]] = []
        self._tallies = [GradingTally(name) for name in pool.names]

    def add(self, entry: TaskEntry, answer: Answer, grade: Grade) -> None:
        """Add an answer's grade."""
        row, column = entry.place, self._column[answer.target]
        self._asked[row, column] = True
        self._tallies[column].add(answer, grade)
        self._rows.append((row, column, _row(entry, answer, grade)))
        if answer.reply is None:
            return
        given, written = _tokens(answer)
        cells = (grade.score, given, written, answer.cost)
        for table, value in zip(self._tables.values(), cells, strict=True):
            if value is not None:
                table[row, column] = value

    def dataset(self) -> RoutingDataset:
        """The dataset, without questions that no target was asked.

        Raises:
            DataError: No target was asked anything.
        """
        asked: NDArray[np.bool_] = np.any(self._asked, axis=1)
        if not asked.any():
            raise DataError("the run has no answers yet; collect some first")
        queries = tuple(entry.query for entry in self._tasks if asked[entry.place])
        return RoutingDataset(queries, self._pool, **{n: t[asked] for n, t in self._tables.items()})

    def summaries(self) -> list[GradedTarget]:
        """The result of each target, in the pool's order."""
        for column, tally in enumerate(self._tallies):
            tally.unasked(len(self._tasks) - int(self._asked[:, column].sum()))
        return [tally.summary() for tally in self._tallies]

    def judged(self) -> tuple[int, dict[str, int]]:
        """The number of answers that judges scored, and of those that they failed at, by reason."""
        scored, failed = 0, Counter[str]()
        for _, _, (_, _, grader, score, missing, *_) in self._rows:
            if grader in JUDGES and score is not None:
                scored += 1
            elif (missing or "").startswith(FAILED) and missing != OVER_LIMIT:
                failed[missing] += 1
        return scored, dict(sorted(failed.items()))

    def examples(self) -> dict[str, UngradedExample]:
        """The first answer, in the table's order, of each reason for a missing label."""
        found: dict[str, UngradedExample] = {}
        for _, _, (name, target, _, _, missing, _, detail, *_) in self._sorted():
            if missing is not None and missing not in found:
                found[missing] = example_of(self._tasks[name].query, target, detail)
        return dict(sorted(found.items()))

    def write(self, folder: Path) -> None:
        """Write the table of grades, in the order of the tasks and then of the pool."""
        rows = [cells for _, _, cells in self._sorted()]
        content = io.BytesIO()
        pl.DataFrame(rows, schema=_COLUMNS, orient="row").write_parquet(content)
        (folder / GRADES).write_bytes(content.getbuffer())

    def _sorted(self) -> list[tuple[int, int, tuple[Any, ...]]]:
        return sorted(self._rows, key=lambda row: row[:2])


def _row(entry: TaskEntry, answer: Answer, grade: Grade) -> tuple[Any, ...]:
    reply = answer.reply
    times: tuple[Any, ...] = (None, None, None, None)
    if reply is not None:
        first = (reply.first_token_seconds, reply.first_answer_seconds)
        times = (reply.finish_reason, *first, reply.seconds)
    said = (grade.missing, _clean(grade.extracted), _clean(grade.detail))
    return (entry.query.id, answer.target, entry.grader, grade.score, *said, *times)


def _tokens(answer: Answer) -> tuple[int | None, int | None]:
    """Input and output tokens as reported; None where the report is missing or impossible.

    An impossible report is recognised by the dollars at risk of the call that gave the answer.
    """
    if answer.reply is None or (answer.attempts and answer.attempts[-1].at_risk):
        return None, None
    usage = answer.reply.usage
    counts = (usage.input_tokens, usage.output_tokens)
    return tuple(None if n is None or n < 0 else n for n in counts)  # type: ignore[return-value]


def _clean(text: str) -> str:
    """The text with lone surrogates replaced, since no file can contain them."""
    return text.encode("utf-8", "replace").decode()
