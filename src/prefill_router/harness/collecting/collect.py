"""Asks every target every question that a run doesn't hold yet."""

import asyncio
import itertools
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractAsyncContextManager
from pathlib import Path

from prefill_router.data import Query
from prefill_router.errors import ConfigError
from prefill_router.harness.collecting.asker import Asker
from prefill_router.harness.collecting.asking import Collector
from prefill_router.harness.collecting.estimate import Estimate, Typical, estimate
from prefill_router.harness.collecting.options import CollectOptions
from prefill_router.harness.collecting.planning import Plan, adopted, check_askable, make_plan
from prefill_router.harness.collecting.prompts import Prompts
from prefill_router.harness.collecting.signals import ending_on_signals
from prefill_router.harness.collecting.summary import Summary, summarise
from prefill_router.harness.collecting.tally import Tally
from prefill_router.harness.runs.journal import Journal
from prefill_router.harness.runs.manifest import is_run
from prefill_router.harness.runs.run import Run
from prefill_router.harness.task import Task
from prefill_router.progress import Progress, SilentProgress
from prefill_router.targets import Pool


def collect(
    folder: Path | str,
    pool: Pool,
    tasks: Iterable[Task],
    *,
    asker: AbstractAsyncContextManager[Asker],
    options: CollectOptions | None = None,
    progress: Progress | None = None,
    tell: Callable[[Estimate], None] | None = None,
    tell_interrupted: Callable[[Summary], None] | None = None,
) -> Summary:
    """Ask every target every task, and keep each answer as it arrives.

    What the run in the folder holds isn't asked again, so the same call goes on after whatever
    ended it.

    Args:
        folder: The run, made where there is none.
        pool: The targets.
        tasks: The tasks; those that the run lacks are added to it.
        asker: Who asks, such as `Upstream(pool)`; it is entered and left.
        options: Limits and retries.
        progress: Where to show how far it is.
        tell: Told of the estimate before anything is asked.
        tell_interrupted: Told how the run stands where it is told to end, before the error.

    Raises:
        ConfigError: There are no tasks, a target can't be asked, a task or a target's request
            differs from the run's, the folder is something else, or another process works on it.
        DataError: Two tasks have the same id.
        CorruptError: The run isn't what was written.
        StoreError: Answers can't be written; those that were are kept.
        KeyboardInterrupt: It was told to end; what had arrived is kept.
    """
    folder, options = Path(folder), options or CollectOptions()
    check_askable(pool, limit=options.limit, assume_free=options.assume_free)
    tasks = _some(tasks)
    run = Run.open(folder) if is_run(folder) else Run.create(folder, pool)
    with run, Journal(run) as journal:
        run.adopt(adopted(run, pool), options.to_dict())
        if options.settled:
            journal.settle(run.at_risk)
        ids = journal.add_tasks(tasks)
        plan = make_plan(ids, pool, run, retry=options.retry)
        typical = Typical(run, assume_output_tokens=options.assume_output_tokens)
        if tell is not None:
            tell(estimate(plan, _unfinished(plan, run), typical))
        began = time.monotonic()
        shown = progress or SilentProgress()
        tally, whole = _ask(run, journal, plan, typical, asker, options, shown)
        summary = summarise(run, plan, tally, options, seconds=time.monotonic() - began)
    if not whole:
        if tell_interrupted is not None:
            tell_interrupted(summary)
        raise KeyboardInterrupt
    return summary


def estimate_collection(
    folder: Path | str, pool: Pool, tasks: Iterable[Task], *, options: CollectOptions | None = None
) -> Estimate:
    """What `collect` would take; nothing is asked and nothing written.

    Raises:
        ConfigError: As `collect`.
        CorruptError: The run isn't what was written.
    """
    folder, options = Path(folder), options or CollectOptions()
    check_askable(pool, limit=options.limit, assume_free=options.assume_free)
    queries = [task.query for task in _some(tasks)]
    run = Run.open(folder) if is_run(folder) else None
    try:
        if run is not None:
            adopted(run, pool)
        plan = make_plan([query.id for query in queries], pool, run, retry=options.retry)
        typical = Typical(run, assume_output_tokens=options.assume_output_tokens)
        return estimate(plan, queries, typical)
    finally:
        if run is not None:
            run.close()


def _ask(
    run: Run,
    journal: Journal,
    plan: Plan,
    typical: Typical,
    asker: AbstractAsyncContextManager[Asker],
    options: CollectOptions,
    progress: Progress,
) -> tuple[Tally, bool]:
    """What came of it, and whether it went on to its end."""

    async def ask(tally: Tally) -> None:
        with ending_on_signals():
            async with asker as entered:
                await Collector(
                    plan,
                    prompts=Prompts(run, plan.ids),
                    asker=entered,
                    journal=journal,
                    charged=run.spent + run.at_risk,
                    typical=typical,
                    options=options,
                    tally=tally,
                ).run()

    total = plan.count(plan.pool.names)
    if not total:
        progress = SilentProgress()
    with progress.task("asking", total=total) as advance:
        tally, whole = Tally(advance), True
        try:
            if total:
                asyncio.run(ask(tally))
        except (asyncio.CancelledError, KeyboardInterrupt):
            whole = False
        finally:
            tally.say()
    return tally, whole


def _some(tasks: Iterable[Task]) -> Iterator[Task]:
    """The same tasks, of which there is one."""
    rest = iter(tasks)
    first = next(rest, None)
    if first is None:
        raise ConfigError("there are no tasks to ask; name tasks, or a larger sample")
    return itertools.chain([first], rest)


def _unfinished(plan: Plan, run: Run) -> Iterator[Query]:
    return run.queries([name for name in plan.ids if plan.targets_of(name)])
