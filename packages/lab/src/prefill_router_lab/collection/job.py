"""Asks every target every question that a run has no answer to, and summarises the run.

The first signal to end, while the event loop runs, cancels the calls under way in good order.
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

from prefill_router.endpoints import Asker
from prefill_router.errors import ConfigError
from prefill_router.progress import Progress, SilentProgress
from prefill_router.runs import Run, Task, is_run
from prefill_router.targets import Pool
from prefill_router_lab.collection.collector import OVER_LIMIT, CollectionTally, Collector
from prefill_router_lab.collection.journal import Journal
from prefill_router_lab.collection.plan import (
    CollectionEstimate,
    CollectionPlan,
    CollectOptions,
    Prompts,
    TypicalAnswers,
    check_askable,
    estimate,
    join_pools,
    limit_for_the_rest,
    make_plan,
)

INTERRUPTED = "interrupted"
"""The reason of questions that were not asked before an interruption."""


@final
@dataclass(frozen=True, kw_only=True)
class CollectedTarget:
    """The state of one target, over the tasks of this call of `collect`.

    Attributes:
        target: Its name.
        answered: Tasks with an answer.
        missing: Tasks that it was asked and didn't answer, by reason.
        not_asked: The other tasks: never asked, or missing from an earlier call and not retried.
        missing_before: The number of `not_asked` that are missing from an earlier call.
    """

    target: str
    answered: int
    missing: dict[str, int] = field(hash=False)
    not_asked: int
    missing_before: int


@final
@dataclass(frozen=True, kw_only=True)
class CollectionSummary:
    """The result of one call of `collect`, and the state of the run.

    Attributes:
        calls: Calls to targets that were made this time.
        answered: Questions that were answered this time.
        missing: Questions that were asked this time without an answer, by reason.
        errors: The last error of each target and reason.
        not_asked: Questions that were not asked, by reason.
        cost: US dollars of this time, as far as known.
        spent: US dollars of the whole run, as far as known.
        at_risk: US dollars that may have been billed for the run beyond that, at most.
        limit: The spending limit, in US dollars; None for none.
        limit_that_would_do: An estimate, in US dollars, of a limit that is enough for the rest;
            None where the limit stopped nothing.
        seconds: How long it took.
        targets: The state of each target.
    """

    calls: int
    answered: int
    missing: dict[str, int] = field(hash=False)
    errors: tuple[str, ...]
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
    """The result of asking, and the state of the run now."""
    targets = _summarise_targets(run, plan, tally)
    reasons = tally.not_asked()
    is_over_limit = OVER_LIMIT in reasons
    if rest := sum(target.not_asked for target in targets) - sum(reasons.values()):
        reasons[INTERRUPTED] = rest
    return CollectionSummary(
        **{**tally.to_dict(), "not_asked": reasons},
        spent=run.spent,
        at_risk=run.at_risk,
        limit=options.limit,
        limit_that_would_do=limit_for_the_rest(run, plan, options) if is_over_limit else None,
        seconds=seconds,
        targets=targets,
    )


def _summarise_targets(
    run: Run, plan: CollectionPlan, tally: CollectionTally
) -> tuple[CollectedTarget, ...]:
    """The state of each target; a task that wasn't asked this time doesn't count as missing."""
    ids = set(plan.ids)
    missing = {name: Counter(tally.missing_of(name)) for name in plan.pool.names}
    answer_counts: Counter[str] = Counter()
    missing_before: Counter[str] = Counter()
    for target, query_id, reason in run.outcomes():
        if target not in missing or query_id not in ids:
            continue
        if reason is None:
            answer_counts[target] += 1
        elif query_id in plan.finished[target]:
            missing[target][reason] += 1
        else:
            missing_before[target] += 1
    return tuple(
        CollectedTarget(
            target=name,
            answered=answer_counts[name],
            missing=dict(missing[name]),
            not_asked=len(ids) - answer_counts[name] - missing[name].total(),
            missing_before=missing_before[name] - sum(tally.missing_of(name).values()),
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
    on_estimate: Callable[[CollectionEstimate], None] | None = None,
    on_interrupted: Callable[[CollectionSummary], None] | None = None,
) -> CollectionSummary:
    """Ask every target every task, and keep each answer as it arrives.

    Questions that the run in the folder has answers to aren't asked again, so the same call resumes
    it, whatever ended it. A target with several endpoints is asked at the first, at its prices.

    Args:
        folder: The run's folder; a run is created where there is none.
        pool: The targets.
        tasks: The tasks; those that the run lacks are added to it.
        asker: Makes the calls, such as `Upstream(pool)`; it is entered and left here.
        options: Limits and retries.
        progress: Shows the progress.
        on_estimate: Called with the estimate before anything is asked.
        on_interrupted: Called with the summary after an interruption, before the error.

    Raises:
        ConfigError: There are no tasks, a target can't be asked, a task or a target's request
            differs from the run's, the folder is something else, or another process works on it.
        DataError: Two tasks have the same id.
        CorruptError: The run isn't what was written.
        StoreError: Answers can't be written; those that were are kept.
        KeyboardInterrupt: It was interrupted; answers that had arrived are kept.
    """
    folder, options, pool = Path(folder), options or CollectOptions(), pool.at_first()
    check_askable(pool, limit=options.limit, assume_free=options.assume_free)
    tasks = _check_tasks(tasks)
    run = Run.open(folder) if is_run(folder) else Run.create(folder, pool, may_exist=True)
    with run, Journal(run) as journal:
        run.adopt(join_pools(run, pool), options.to_dict())
        if options.settled:
            journal.settle(run.at_risk)
        ids = journal.add_tasks(tasks)
        plan = make_plan(ids, pool, run, retry=options.retry)
        typical = TypicalAnswers(run, assume_output_tokens=options.assume_output_tokens)
        if on_estimate is not None:
            unfinished = run.queries([name for name in plan.ids if plan.targets_of(name)])
            on_estimate(estimate(plan, unfinished, typical))
        began = time.monotonic()
        bar = progress or SilentProgress()
        tally, is_complete = _ask_questions(run, journal, plan, typical, asker, options, bar)
        summary = summarise(run, plan, tally, options, seconds=time.monotonic() - began)
    if not is_complete:
        if on_interrupted is not None:
            on_interrupted(summary)
        raise KeyboardInterrupt
    return summary


def estimate_collection(
    folder: Path | str, pool: Pool, tasks: Iterable[Task], *, options: CollectOptions | None = None
) -> CollectionEstimate:
    """Estimate what `collect` would take; nothing is asked and nothing is written.

    Raises:
        ConfigError: As `collect`.
        CorruptError: The run isn't what was written.
    """
    folder, options, pool = Path(folder), options or CollectOptions(), pool.at_first()
    check_askable(pool, limit=options.limit, assume_free=options.assume_free)
    queries = [task.query for task in _check_tasks(tasks)]
    run = Run.open(folder) if is_run(folder) else None
    try:
        if run is not None:
            join_pools(run, pool)
        plan = make_plan([query.id for query in queries], pool, run, retry=options.retry)
        typical = TypicalAnswers(run, assume_output_tokens=options.assume_output_tokens)
        return estimate(plan, queries, typical)
    finally:
        if run is not None:
            run.close()


def _ask_questions(
    run: Run,
    journal: Journal,
    plan: CollectionPlan,
    typical: TypicalAnswers,
    asker: AbstractAsyncContextManager[Asker],
    options: CollectOptions,
    progress: Progress,
) -> tuple[CollectionTally, bool]:
    """Ask the questions of a plan; returns the counts, and whether it came to its end."""

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
        tally, is_complete = CollectionTally(advance), True
        try:
            if total:
                asyncio.run(ask(tally))
        except (asyncio.CancelledError, KeyboardInterrupt):
            is_complete = False
        finally:
            tally.show()
    return tally, is_complete


def _check_tasks(tasks: Iterable[Task]) -> Iterator[Task]:
    """The same tasks, if there is at least one."""
    rest = iter(tasks)
    first = next(rest, None)
    if first is None:
        raise ConfigError("there are no tasks to ask; name tasks, or a larger sample")
    return itertools.chain([first], rest)


_SIGNALS = (signal.SIGINT, signal.SIGTERM)


@contextmanager
def ending_on_signals() -> Iterator[None]:
    """Cancel the current task at the first SIGINT or SIGTERM; later ones are ignored.

    Outside the main thread, and on systems without these signals, it does nothing.
    """
    task, loop = asyncio.current_task(), asyncio.get_running_loop()
    if task is None or threading.current_thread() is not threading.main_thread():
        yield
        return
    signals: list[int] = []

    def end(number: int) -> None:
        if not signals:
            task.cancel()
        signals.append(number)

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
