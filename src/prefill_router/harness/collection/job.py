"""Asks every target every question that a run doesn't hold yet, and sums up how the run stands.

A signal to end, while the event loop runs, gives up what is under way: once, in order.
"""

import asyncio
import itertools
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractAsyncContextManager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, final

from prefill_router.client import Asker
from prefill_router.errors import ConfigError
from prefill_router.harness.collection.collector import OVER_LIMIT, CollectionTally, Collector
from prefill_router.harness.collection.estimate import (
    CollectionEstimate,
    TypicalAnswers,
    estimate,
    limit_for_the_rest,
)
from prefill_router.harness.collection.plan import (
    CollectionPlan,
    CollectOptions,
    Prompts,
    check_askable,
    joined_pool,
    make_plan,
)
from prefill_router.harness.journal import Journal
from prefill_router.harness.records import Task
from prefill_router.harness.run import Run, is_run
from prefill_router.progress import Progress, SilentProgress
from prefill_router.targets import Pool

INTERRUPTED = "interrupted"
"""Why the questions that it didn't come to were not asked."""


@final
@dataclass(frozen=True, kw_only=True)
class CollectedTarget:
    """How the tasks of this time stand with one target.

    Attributes:
        target: Its name.
        answered: Tasks with an answer.
        missing: Tasks that it was asked without an answer, by reason.
        not_asked: The other tasks: never asked, or missing from before and to be asked again, which
            they weren't this time.
        missing_before: So many of those not asked are missing from before.
    """

    target: str
    answered: int
    missing: dict[str, int] = field(hash=False)
    not_asked: int
    missing_before: int


@final
@dataclass(frozen=True, kw_only=True)
class CollectionSummary:
    """What came of asking, and how the run stands.

    Attributes:
        calls: Calls that were made this time.
        answered: Questions that were answered this time.
        missing: Questions that stayed missing this time, by reason.
        not_asked: Questions that were not asked, by why.
        cost: US dollars of this time, as far as known.
        spent: US dollars of the whole run, as far as known.
        at_risk: US dollars that may have been billed for the run beyond that, at most.
        limit: The spending limit, in US dollars; None for none.
        limit_that_would_do: One that would let the rest be asked, as an estimate; None where
            nothing was left for the limit's sake.
        seconds: How long it took.
        targets: How the tasks stand with each target.
    """

    calls: int
    answered: int
    missing: dict[str, int] = field(hash=False)
    not_asked: dict[str, int] = field(hash=False)
    cost: float
    spent: float
    at_risk: float
    limit: float | None
    limit_that_would_do: float | None
    seconds: float
    targets: tuple[CollectedTarget, ...]

    def to_dict(self) -> dict[str, Any]:
        """Plain values."""
        return {**vars(self), "targets": [vars(target) for target in self.targets]}


def summarise(
    run: Run,
    plan: CollectionPlan,
    tally: CollectionTally,
    options: CollectOptions,
    *,
    seconds: float,
) -> CollectionSummary:
    """What came of asking, and how the run stands now."""
    targets = _targets(run, plan, tally)
    left = tally.not_asked()
    over = OVER_LIMIT in left
    if rest := sum(target.not_asked for target in targets) - sum(left.values()):
        left[INTERRUPTED] = rest
    return CollectionSummary(
        **{**tally.to_dict(), "not_asked": left},
        spent=run.spent,
        at_risk=run.at_risk,
        limit=options.limit,
        limit_that_would_do=limit_for_the_rest(run, plan, options) if over else None,
        seconds=seconds,
        targets=targets,
    )


def _targets(run: Run, plan: CollectionPlan, tally: CollectionTally) -> tuple[CollectedTarget, ...]:
    """Each task is counted once, so that what wasn't asked this time is no part of the missing."""
    wanted = set(plan.ids)
    missing = {name: Counter(tally.missing_of(name)) for name in plan.pool.names}
    answered: Counter[str] = Counter()
    again: Counter[str] = Counter()
    for target, query_id, reason in run.outcomes():
        if target not in missing or query_id not in wanted:
            continue
        if reason is None:
            answered[target] += 1
        elif query_id in plan.finished[target]:
            missing[target][reason] += 1
        else:
            again[target] += 1
    return tuple(
        CollectedTarget(
            target=name,
            answered=answered[name],
            missing=dict(missing[name]),
            not_asked=len(wanted) - answered[name] - missing[name].total(),
            missing_before=again[name] - sum(tally.missing_of(name).values()),
        )
        for name in plan.pool.names
    )


def collect(
    folder: Path | str,
    pool: Pool,
    tasks: Iterable[Task],
    *,
    asker: AbstractAsyncContextManager[Asker],
    options: CollectOptions | None = None,
    progress: Progress | None = None,
    tell: Callable[[CollectionEstimate], None] | None = None,
    tell_interrupted: Callable[[CollectionSummary], None] | None = None,
) -> CollectionSummary:
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
    tasks = _refuse_no_tasks(tasks)
    run = Run.open(folder) if is_run(folder) else Run.create(folder, pool)
    with run, Journal(run) as journal:
        run.adopt(joined_pool(run, pool), options.to_dict())
        if options.settled:
            journal.settle(run.at_risk)
        ids = journal.add_tasks(tasks)
        plan = make_plan(ids, pool, run, retry=options.retry)
        typical = TypicalAnswers(run, assume_output_tokens=options.assume_output_tokens)
        if tell is not None:
            unfinished = run.queries([name for name in plan.ids if plan.targets_of(name)])
            tell(estimate(plan, unfinished, typical))
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
) -> CollectionEstimate:
    """What `collect` would take; nothing is asked and nothing written.

    Raises:
        ConfigError: As `collect`.
        CorruptError: The run isn't what was written.
    """
    folder, options = Path(folder), options or CollectOptions()
    check_askable(pool, limit=options.limit, assume_free=options.assume_free)
    queries = [task.query for task in _refuse_no_tasks(tasks)]
    run = Run.open(folder) if is_run(folder) else None
    try:
        if run is not None:
            joined_pool(run, pool)
        plan = make_plan([query.id for query in queries], pool, run, retry=options.retry)
        typical = TypicalAnswers(run, assume_output_tokens=options.assume_output_tokens)
        return estimate(plan, queries, typical)
    finally:
        if run is not None:
            run.close()


def _ask(
    run: Run,
    journal: Journal,
    plan: CollectionPlan,
    typical: TypicalAnswers,
    asker: AbstractAsyncContextManager[Asker],
    options: CollectOptions,
    progress: Progress,
) -> tuple[CollectionTally, bool]:
    """What came of it, and whether it went on to its end."""

    async def ask(tally: CollectionTally) -> None:
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
        tally, whole = CollectionTally(advance), True
        try:
            if total:
                asyncio.run(ask(tally))
        except (asyncio.CancelledError, KeyboardInterrupt):
            whole = False
        finally:
            tally.say()
    return tally, whole


def _refuse_no_tasks(tasks: Iterable[Task]) -> Iterator[Task]:
    """The same tasks, of which there is one."""
    rest = iter(tasks)
    first = next(rest, None)
    if first is None:
        raise ConfigError("there are no tasks to ask; name tasks, or a larger sample")
    return itertools.chain([first], rest)


_SIGNALS = (signal.SIGINT, signal.SIGTERM)


@contextmanager
def ending_on_signals() -> Iterator[None]:
    """Cancel the current task at the first interruption or termination; more change nothing.

    Elsewhere than in the main thread, and where there are no such signals, it does nothing.
    """
    task, loop = asyncio.current_task(), asyncio.get_running_loop()
    if task is None or threading.current_thread() is not threading.main_thread():
        yield
        return
    told: list[int] = []

    def end(number: int) -> None:
        if not told:
            task.cancel()
        told.append(number)

    before = {number: signal.getsignal(number) for number in _SIGNALS}
    try:
        for number in _SIGNALS:
            loop.add_signal_handler(number, end, number)
    except NotImplementedError:  # on Windows
        yield
        return
    try:
        yield
    finally:
        for number, handler in before.items():
            loop.remove_signal_handler(number)
            signal.signal(number, handler)
