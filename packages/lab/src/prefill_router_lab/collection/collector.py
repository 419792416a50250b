"""Asks the questions of a plan: all providers in parallel, each up to its limits.

The outcomes are counted and shown as progress.
"""

import asyncio
import time
from collections import Counter
from functools import partial
from typing import Any, final

from prefill_router.endpoints import (
    LIMITED,
    Asker,
    CircuitBreaker,
    PaidCalls,
    Reply,
    RetryPolicy,
    SpendingLedger,
)
from prefill_router.errors import StoreError, UpstreamError
from prefill_router.money import dollars
from prefill_router.progress import Advance
from prefill_router.runs import Answer
from prefill_router_lab.collection.journal import Journal
from prefill_router_lab.collection.plan import (
    Backlog,
    CollectionPlan,
    CollectOptions,
    Prompts,
    ProviderQueue,
    Question,
    TypicalAnswers,
    describe_request,
    make_answer,
    make_attempt,
)

_EVERY_SECONDS = 0.2


@final
class CollectionTally:
    """Counts the outcomes of questions.

    Args:
        advance: Called with the number of finished questions.
    """

    def __init__(self, advance: Advance) -> None:
        self._advance = advance
        self._unshown = 0
        self._shown_at = time.monotonic()
        self._unasked: Counter[str] = Counter()
        self.calls = 0
        self.answered: Counter[str] = Counter()
        self.missing: Counter[tuple[str, str]] = Counter()
        self._errors: dict[tuple[str, str], str] = {}
        self.cost = 0.0

    def count_call(self) -> None:
        """Count a call that has ended."""
        self.calls += 1

    def count_answer(self, answer: Answer) -> None:
        """Count an answer that is on the disk."""
        self.cost += answer.cost or 0.0
        if answer.missing is None:
            self.answered[answer.target] += 1
        else:
            self.missing[answer.target, answer.missing] += 1
            if answer.attempts:
                self._errors[answer.target, answer.missing] = answer.attempts[-1].detail
        self._count_finished()

    def count_repeated(self, target: str, reason: str) -> None:
        """Count an answer that is missing for the reason that the run has recorded already."""
        self.missing[target, reason] += 1
        self._count_finished()

    def count_unasked(self, why: str) -> None:
        """Count a question that isn't asked, by the reason."""
        self._unasked[why] += 1
        self._count_finished()

    def not_asked(self) -> dict[str, int]:
        """How many questions were not asked, by reason."""
        return dict(self._unasked)

    def missing_of(self, target: str) -> dict[str, int]:
        """How many of a target's answers are missing, by reason."""
        return {reason: n for (name, reason), n in self.missing.items() if name == target}

    def show(self) -> None:
        """Show the progress."""
        missing = f", {self.missing.total():,} missing" if self.missing else ""
        unasked = f", {self._unasked.total():,} not asked" if self._unasked else ""
        self._advance(self._unshown, note=f"{dollars(self.cost)}{missing}{unasked}")
        self._unshown, self._shown_at = 0, time.monotonic()

    def to_dict(self) -> dict[str, Any]:
        """Plain values."""
        reasons: Counter[str] = Counter()
        for (_, reason), number in self.missing.items():
            reasons[reason] += number
        return {
            "calls": self.calls,
            "answered": self.answered.total(),
            "missing": dict(reasons),
            "errors": tuple(self._errors.values()),
            "not_asked": self.not_asked(),
            "cost": self.cost,
        }

    def _count_finished(self) -> None:
        self._unshown += 1
        if time.monotonic() - self._shown_at > _EVERY_SECONDS:
            self.show()


_MOST_UNRECORDED = 1000
OVER_LIMIT = "the spending limit"


@final
class Collector:
    """Asks the questions of a plan, once, in one event loop.

    Args:
        plan: The questions.
        prompts: The tasks' prompts.
        asker: Makes the calls.
        journal: Records the answers.
        charged: US dollars that count against the limit already.
        typical: The expected tokens of answers.
        options: The limits.
        tally: Counts the outcomes.
    """

    def __init__(
        self,
        plan: CollectionPlan,
        *,
        prompts: Prompts,
        asker: Asker,
        journal: Journal,
        charged: float,
        typical: TypicalAnswers,
        options: CollectOptions,
        tally: CollectionTally,
    ) -> None:
        self._plan, self._prompts = plan, prompts
        self._journal, self._options, self._tally = journal, options, tally
        self._typical = typical
        self._targets = {target.name: target for target in plan.pool}
        self._requests = {
            target.name: describe_request(target, plan.pool.provider_of(target.name))
            for target in plan.pool
        }
        self._ledger = SpendingLedger(options.limit, charged=charged, expose=self._expose)
        self._calls = PaidCalls(
            plan.pool, asker, self._ledger, patience_seconds=options.patience_seconds
        )
        self._circuit = CircuitBreaker(plan.pool, patience_seconds=options.patience_seconds)
        self._retries = RetryPolicy(options.attempts, options.backoff_seconds, options.chance())
        self._backlog = Backlog()
        self._loop = asyncio.get_running_loop()
        self._work: asyncio.Future[list[None]] | None = None

    async def run(self) -> None:
        """Ask every question; answers that arrived before a cancellation are kept.

        Raises:
            StoreError: Answers can't be written; those that were are kept.
        """
        workers = [
            task for targets in self._plan.lanes().values() for task in self._start_workers(targets)
        ]
        self._work = asyncio.gather(*workers)
        try:
            await self._work
        except asyncio.CancelledError:
            if self._backlog.error is None:
                raise
        finally:
            await self._stop(workers)
        if self._backlog.error is not None:
            raise self._backlog.error

    async def _stop(self, workers: list[asyncio.Task[None]]) -> None:
        """Cancel the calls under way, and wait until the answers are on the disk."""
        for worker in workers:
            worker.cancel()
        await asyncio.gather(*workers, return_exceptions=True)
        await self._backlog.wait_until_at_most(0)
        if self._backlog.error is None:
            await self._ledger.close()

    def _start_workers(self, targets: list[str]) -> list[asyncio.Task[None]]:
        """Start a worker for each concurrent call, but no more than there are questions."""
        provider = self._plan.pool.provider_of(targets[0])
        width = min(provider.concurrency, self._plan.count(targets))
        lane = ProviderQueue(self._plan.questions(targets), width=width)
        return [asyncio.create_task(self._ask_in_turn(lane)) for _ in range(width)]

    async def _ask_in_turn(self, lane: ProviderQueue) -> None:
        while (question := await lane.next()) is not None:
            if not self._skip(question, lane):
                await self._ask(question, lane)
            await asyncio.sleep(0)  # many skipped questions mustn't block other calls
            await self._backlog.wait_until_at_most(_MOST_UNRECORDED)

    def _skip(self, question: Question, lane: ProviderQueue) -> bool:
        """Finish a question whose target isn't asked any more; returns whether it was one."""
        reason = self._circuit.reason_to_stop(question.target)
        later = self._circuit.reason_to_postpone(question.target)
        if reason is not None:
            self._finish_missing(question, reason, lane)
        elif later is not None:
            self._leave_unasked(question, later, lane)
        return reason is not None or later is not None

    async def _ask(self, question: Question, lane: ProviderQueue) -> None:
        target, prompt = self._targets[question.target], self._prompts[question.query_id]
        expected = self._typical.usage(target, prompt)
        call = await self._calls.make(
            target,
            prompt,
            tokens=(expected.input_tokens or 0) + (expected.output_tokens or 0),
            is_wanted=lambda: not self._is_closed(question.target),
        )
        if call is None:
            if not self._skip(question, lane):
                self._leave_unasked(question, OVER_LIMIT, lane)
            return
        question.attempts.append(make_attempt(call))
        question.bills.append(call.bill)
        self._tally.count_call()
        if isinstance(call.outcome, UpstreamError):
            self._handle_failure(question, call.outcome, lane)
        else:
            self._circuit.record_answer(question.target)
            self._record(question, lane, reply=call.outcome)

    def _is_closed(self, target: str) -> bool:
        return bool(
            self._circuit.reason_to_stop(target) or self._circuit.reason_to_postpone(target)
        )

    def _handle_failure(
        self, question: Question, error: UpstreamError, lane: ProviderQueue
    ) -> None:
        self._circuit.record_failure(question.target, error, question=question.query_id)
        patience = self._options.patience_seconds
        if error.failure in LIMITED and (error.retry_after or 0.0) > patience:
            provider = self._plan.pool.provider_of(question.target).name
            why = f"{provider} asks to wait {error.retry_after:,.0f} s"
            self._circuit.postpone(question.target, why)
        wait = self._retries.wait(error, [attempt.failure for attempt in question.attempts])
        if wait is None or wait > patience:
            self._finish_missing(question, error.failure, lane)
        else:
            lane.again(question, wait)

    def _finish_missing(self, question: Question, reason: str, lane: ProviderQueue) -> None:
        if question.attempts or not self._plan.records(question, reason):
            self._record(question, lane, missing=reason)
        else:  # the run has it already
            self._tally.count_repeated(question.target, reason)
            lane.finish()

    def _leave_unasked(self, question: Question, why: str, lane: ProviderQueue) -> None:
        """Don't ask a question; if it was asked before, its last failure is why it is missing."""
        if question.attempts:
            self._finish_missing(question, str(question.attempts[-1].failure), lane)
        else:
            self._tally.count_unasked(why)
            lane.finish()

    def _record(
        self,
        question: Question,
        lane: ProviderQueue,
        *,
        reply: Reply | None = None,
        missing: str | None = None,
    ) -> None:
        target, request = self._targets[question.target], self._requests[question.target]
        answer = make_answer(question, target, request, reply=reply, missing=missing)
        self._backlog.waiting += 1
        callback = partial(self._count_recorded, answer, question.charged)
        self._journal.record(answer, partial(self._loop.call_soon_threadsafe, callback))
        lane.finish()

    def _count_recorded(self, answer: Answer, charge: float, error: StoreError | None) -> None:
        self._backlog.waiting -= 1
        self._backlog.changed.set()
        if error is None:
            self._ledger.mark_recorded(charge)
            self._tally.count_answer(answer)
        else:
            self._give_up(error)

    def _expose(self, change: float) -> asyncio.Future[None]:
        future: asyncio.Future[None] = self._loop.create_future()
        callback = partial(_hand_result, future)
        self._journal.expose(change, partial(self._loop.call_soon_threadsafe, callback))
        return future

    def _give_up(self, error: StoreError) -> None:
        self._backlog.error = error
        if self._work is not None:
            self._work.cancel()


def _hand_result(future: asyncio.Future[None], error: StoreError | None) -> None:
    if error is None:
        future.set_result(None)
    else:
        future.set_exception(error)
        future.exception()  # retrieved, since perhaps nobody awaits it; answers report it, too
