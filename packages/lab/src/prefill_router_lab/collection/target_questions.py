"""Asks one target chosen questions and grades its answers, in a run that can be resumed."""

from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import final

from prefill_router.client import Asker
from prefill_router.data import RoutingDataset, read_dataset
from prefill_router.errors import ConfigError
from prefill_router_lab.collection import CollectionSummary, CollectOptions, collect
from prefill_router.grading import Settings, grade_run
from prefill_router.runs.run import Run, Task
from prefill_router.progress import Progress
from prefill_router.targets import Pool

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

    def __call__(self, ids: Sequence[str]) -> RoutingDataset:
        """The answers to these questions, as far as there are any.

        Raises:
            ConfigError: There is none.
        """
        self.summary = collect(
            self._run,
            self._pool,
            [self._tasks[one] for one in ids],
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
        graded = self._run / GRADED
        with Run.open(self._run) as run:
            grade_run(run, graded, settings=self._settings, progress=self._progress)
        found = read_dataset(graded).select(targets=self._pool.names)
        there = set(found.query_ids)
        return found.select([one for one in ids if one in there])
