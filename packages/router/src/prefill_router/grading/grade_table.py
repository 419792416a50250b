"""The grades of a run: a table with a row per answer, the dataset made of it, and a report.

The report has the counts, costs and times of each target, and an example of each reason for a
missing label. The index of a run's tasks leaves out the options of graders, since tests can be very
large.
"""

import io
import math
import statistics
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, final

import numpy as np
import polars as pl
from numpy.typing import NDArray

from prefill_router.data import LabelMeaning, Query, RoutingDataset, prompt_text
from prefill_router.database import storable
from prefill_router.errors import DataError
from prefill_router.grading.base import Grade
from prefill_router.grading.caches import JudgeBill
from prefill_router.grading.judge import FAILED, JUDGES, OVER_LIMIT
from prefill_router.runs import Answer, Run, Task
from prefill_router.short_repr import short_repr
from prefill_router.targets import Pool

_MOST_SHOWN = 120
_QUOTE_LENGTH = 16
"""An error that shares this many characters in a row with the prompt counts as quoting it."""


@final
@dataclass(frozen=True, kw_only=True)
class UngradedExample:
    """An answer without a label.

    Attributes:
        query_id: The id of the task's query.
        target: The name of the target.
        detail: The error, shortened; empty where there is none, or where it quotes the prompt.
    """

    query_id: str
    target: str
    detail: str

    def to_dict(self) -> dict[str, Any]:
        """Plain values."""
        return dict(vars(self))


def _example_of(query: Query, target: str, detail: str) -> UngradedExample:
    """The example made of an answer and its grade's detail."""
    line = " ".join(detail.split())
    if _quotes_prompt(line, " ".join(prompt_text(query.prompt).split())):
        line = ""
    text = line if len(line) <= _MOST_SHOWN else f"{line[: _MOST_SHOWN - 2]} …"
    return UngradedExample(query_id=query.id, target=target, detail=text)


def _quotes_prompt(line: str, prompt: str) -> bool:
    width = min(_QUOTE_LENGTH, len(prompt))
    if not width:
        return False
    return any(line[at : at + width] in prompt for at in range(len(line) - width + 1))


_Z = 1.959963984540054  # of 95 %
TRUNCATED = "length"
"""The finish reason of an answer that was cut off at its maximum of tokens."""


@final
@dataclass(frozen=True, kw_only=True)
class GradedTarget:
    """The result of one target's answers.

    Attributes:
        target: Its name.
        graded: Answers with a score.
        correct: The sum of their scores.
        missing: How many answers are missing or ungraded, by reason.
        truncated: Graded answers that were cut off at their maximum of tokens.
        cost: US dollars of all answers whose cost is known, missing ones included.
        mean_cost: Mean US dollars of a graded answer; None where no cost is known.
        median_seconds: Median seconds of graded answers; None without any.
    """

    target: str
    graded: int
    correct: float
    missing: dict[str, int]
    truncated: int
    cost: float
    mean_cost: float | None
    median_seconds: float | None

    @property
    def accuracy(self) -> float | None:
        """Mean score of the graded answers; None without any."""
        return self.correct / self.graded if self.graded else None

    @property
    def interval(self) -> tuple[float, float] | None:
        """The accuracy's 95 % interval; None without graded answers."""
        return wilson(self.correct, self.graded) if self.graded else None

    def to_dict(self) -> dict[str, Any]:
        """Plain values."""
        return {
            **vars(self),
            "accuracy": self.accuracy,
            "interval": None if self.interval is None else list(self.interval),
        }


@final
class GradingTally:
    """Counts one target's answers as they are graded."""

    def __init__(self, target: str) -> None:
        self._target = target
        self._scores: list[float] = []
        self._missing: Counter[str] = Counter()
        self._truncated = 0
        self._spent: list[float] = []
        self._costs: list[float] = []
        self._seconds: list[float] = []

    def add(self, answer: Answer, grade: Grade) -> None:
        """Count an answer."""
        if answer.cost is not None:
            self._spent.append(answer.cost)
        if grade.score is None:
            self._missing[grade.missing or "ungraded"] += 1
            return
        self._scores.append(grade.score)
        if answer.cost is not None:
            self._costs.append(answer.cost)
        if answer.reply is not None:
            self._seconds.append(answer.reply.seconds)
            self._truncated += answer.reply.finish_reason == TRUNCATED

    def add_unasked(self, count: int) -> None:
        """Count questions that were never asked."""
        if count:
            self._missing["not_asked"] += count

    def summary(self) -> GradedTarget:
        """The result; it doesn't depend on the order in which answers were added."""
        return GradedTarget(
            target=self._target,
            graded=len(self._scores),
            correct=math.fsum(self._scores),
            missing=dict(sorted(self._missing.items())),
            truncated=self._truncated,
            cost=math.fsum(self._spent),
            mean_cost=math.fsum(self._costs) / len(self._costs) if self._costs else None,
            median_seconds=statistics.median(self._seconds) if self._seconds else None,
        )


def wilson(correct: float, count: int) -> tuple[float, float]:
    """Wilson's 95 % interval of a share.

    For scores between 0 and 1 it is conservative, since binary scores have the largest variance.

    Args:
        correct: The sum of the scores.
        count: The number of scores; at least one.

    Returns:
        The lower and the upper bound, both in [0, 1].
    """
    share, z2 = correct / count, _Z * _Z
    middle = share + z2 / (2 * count)
    half = _Z * math.sqrt(max(share * (1 - share), 0.0) / count + z2 / (4 * count * count))
    scale = 1 + z2 / count
    return max((middle - half) / scale, 0.0), min((middle + half) / scale, 1.0)


@final
@short_repr
@dataclass(frozen=True, kw_only=True)
class GradingReport:
    """The result of grading a run.

    Attributes:
        targets: The result of each target, in the pool's order.
        graders: The graders that were used, with version and setting, by name.
        skipped: Graders whose answers were left ungraded.
        left_out: Answers of targets that the run's pool no longer has, or to tasks that were added
            meanwhile.
        reused: Verdicts that an earlier grading cached.
        judging: The cost of judging the run so far; None where no judge was needed.
        judged: Answers with a score from a judge.
        judge_failed: Answers that a judge failed to score, by reason; a limit isn't its failure.
        examples: An example of each reason for a missing label.
    """

    targets: tuple[GradedTarget, ...]
    graders: dict[str, dict[str, Any]]
    skipped: tuple[str, ...]
    left_out: int
    reused: int
    judging: JudgeBill | None = None
    judged: int = 0
    judge_failed: dict[str, int] = field(default_factory=dict)
    examples: dict[str, UngradedExample] = field(default_factory=dict)

    @property
    def judge_useless(self) -> bool:
        """Whether a judge failed at every answer that it was asked about."""
        return bool(self.judge_failed) and not self.judged

    def to_dict(self) -> dict[str, Any]:
        """Plain values; the same run graded the same way gives the same."""
        return {
            "targets": [target.to_dict() for target in self.targets],
            "graders": self.graders,
            "skipped": list(self.skipped),
            "left_out": self.left_out,
            "judging": None if self.judging is None else self.judging.to_dict(),
            "judged": self.judged,
            "judge_failed": self.judge_failed,
            "examples": {reason: example.to_dict() for reason, example in self.examples.items()},
        }


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
            for place, (digest, task) in enumerate(run.read_digested_tasks())
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
        self._is_asked = np.zeros(shape, dtype=bool)
        self._rows: list[tuple[int, int, tuple[Any, ...]]] = []
        self._tallies = [GradingTally(name) for name in pool.names]

    def add(self, entry: TaskEntry, answer: Answer, grade: Grade) -> None:
        """Add an answer's grade."""
        row, column = entry.place, self._column[answer.target]
        self._is_asked[row, column] = True
        self._tallies[column].add(answer, grade)
        self._rows.append((row, column, _make_row(entry, answer, grade)))
        if answer.reply is None:
            return
        given, written = _count_tokens(answer)
        cells = (grade.score, given, written, answer.cost)
        for table, value in zip(self._tables.values(), cells, strict=True):
            if value is not None:
                table[row, column] = value

    def dataset(self) -> RoutingDataset:
        """The dataset, without questions that no target was asked.

        Raises:
            DataError: No target was asked anything.
        """
        is_asked: NDArray[np.bool_] = np.any(self._is_asked, axis=1)
        if not is_asked.any():
            raise DataError("the run has no answers yet; collect some first")
        queries = tuple(entry.query for entry in self._tasks if is_asked[entry.place])
        tables = {name: table[is_asked] for name, table in self._tables.items()}
        meaning = LabelMeaning.of_labels(tables["correct"].flat)
        return RoutingDataset(queries, self._pool, **tables, meaning=meaning)

    def summaries(self) -> list[GradedTarget]:
        """The result of each target, in the pool's order."""
        for column, tally in enumerate(self._tallies):
            tally.add_unasked(len(self._tasks) - int(self._is_asked[:, column].sum()))
        return [tally.summary() for tally in self._tallies]

    def count_judged(self) -> tuple[int, dict[str, int]]:
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
        examples: dict[str, UngradedExample] = {}
        for _, _, (name, target, _, _, missing, _, detail, *_) in self._sort_rows():
            if missing is not None and missing not in examples:
                examples[missing] = _example_of(self._tasks[name].query, target, detail)
        return dict(sorted(examples.items()))

    def write(self, folder: Path) -> None:
        """Write the table of grades, in the order of the tasks and then of the pool."""
        rows = [cells for _, _, cells in self._sort_rows()]
        content = io.BytesIO()
        pl.DataFrame(rows, schema=_COLUMNS, orient="row").write_parquet(content)
        (folder / GRADES).write_bytes(content.getbuffer())

    def _sort_rows(self) -> list[tuple[int, int, tuple[Any, ...]]]:
        return sorted(self._rows, key=lambda row: row[:2])


def _make_row(entry: TaskEntry, answer: Answer, grade: Grade) -> tuple[Any, ...]:
    reply = answer.reply
    times: tuple[Any, ...] = (None, None, None, None)
    if reply is not None:
        first = (reply.first_token_seconds, reply.first_answer_seconds)
        times = (reply.finish_reason, *first, reply.seconds)
    reasons = (grade.missing, storable(grade.extracted), storable(grade.detail))
    return (entry.query.id, answer.target, entry.grader, grade.score, *reasons, *times)


def _count_tokens(answer: Answer) -> tuple[int | None, int | None]:
    """Input and output tokens as reported; None where the report is missing or impossible.

    An impossible report is recognised by the dollars at risk of the call that gave the answer.
    """
    if answer.reply is None or (answer.attempts and answer.attempts[-1].at_risk):
        return None, None
    usage = answer.reply.usage
    counts = (usage.input_tokens, usage.output_tokens)
    return tuple(None if n is None or n < 0 else n for n in counts)  # type: ignore[return-value]
