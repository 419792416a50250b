"""Asks one target chosen questions and grades its answers, in a run that can be resumed."""

from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import final

from prefill_router.data import RoutingDataset, read_dataset
from prefill_router.endpoints import Asker, Upstream
from prefill_router.errors import ConfigError
from prefill_router.grading import Settings, grade_run
from prefill_router.progress import Progress
from prefill_router.runs import Run, Task
from prefill_router.targets import Pool
from prefill_router_lab.benchmarks import load_tasks
from prefill_router_lab.collection.job import CollectionSummary, collect
from prefill_router_lab.collection.plan import CollectOptions

GRADED = "graded"
"""The dataset of a run's answers, in the run's folder."""


@final
class TargetQuestions:
    """Called with ids, it asks what the run has no answer to, and returns the graded answers.

    The run keeps each answer as it arrives, so that the same questions cost nothing again. The
    spending limit of `options` is that of the whole run; what it leaves unasked is left out.

    Args:
        run: The run's folder: a new one, or one to resume.
        pool: The target alone.
        tasks: The tasks by query id.
        asker: Makes the client for one round, such as `lambda: Upstream(pool)`.
        options: Limits and retries.
        settings: How to grade.
        progress: Shows the progress.
    """

    def __init__(
        self,
        run: Path,
        pool: Pool,
        tasks: Mapping[str, Task],
        *,
        asker: Callable[[], AbstractAsyncContextManager[Asker]],
        options: CollectOptions | None = None,
        settings: Settings | None = None,
        progress: Progress | None = None,
    ) -> None:
        self._run, self._pool, self._tasks, self._asker = run, pool, tasks, asker
        self._options, self._settings, self._progress = options, settings, progress
        self.summary: CollectionSummary | None = None
        """The result of the latest round; None before the first."""

    @property
    def ids(self) -> Collection[str]:
        """The ids of the queries that there are tasks for."""
        return self._tasks.keys()

    @property
    def spent(self) -> float | None:
        """US dollars that the run has cost; None before the first round."""
        return None if self.summary is None else self.summary.spent

    def __call__(self, ids: Sequence[str]) -> RoutingDataset:
        """The answers to these questions, as far as there are any.

        Raises:
            ConfigError: There is none.
        """
        self.summary = collect(
            self._run,
            self._pool,
            [self._tasks[name] for name in ids],
            asker=self._asker(),
            options=self._options,
            progress=self._progress,
        )
        if not any(row.answered for row in self.summary.targets):
            missing = {**self.summary.missing, **self.summary.not_asked}
            raise ConfigError(
                f"{self._pool.names[0]} answered nothing: "
                f"{', '.join(f'{count} {reason}' for reason, count in missing.items())}; check its "
                "endpoint, model and key, or give a larger --max-cost"
            )
        dataset_folder = self._run / GRADED
        with Run.open(self._run) as run:
            grade_run(run, dataset_folder, settings=self._settings, progress=self._progress)
        answers = read_dataset(dataset_folder).select(targets=self._pool.names)
        answered = set(answers.query_ids)
        return answers.select([name for name in ids if name in answered])


def open_questions(
    run: Path,
    pool: Pool,
    tasks: str,
    *,
    limit: float | None,
    judge: Pool | None,
    judge_limit: float | None,
    progress: Progress | None = None,
) -> TargetQuestions:
    """The questions of a tasks file or benchmark, to be asked within a spending limit.

    Args:
        run: The run's folder: a new one, or one to resume.
        pool: The target alone.
        tasks: A file of tasks, or a benchmark as for `load_tasks`.
        limit: US dollars that the run may cost in all; None for no limit.
        judge: The judge's pool, where tasks need one.
        judge_limit: US dollars that judging may cost; None for no limit.
        progress: Shows the progress.
    """
    return TargetQuestions(
        run,
        pool,
        {task.query.id: task for task in load_tasks(tasks)},
        asker=lambda: Upstream(pool),
        options=CollectOptions(limit=limit),
        settings=Settings(judge=judge, judge_limit=judge_limit),
        progress=progress,
    )
