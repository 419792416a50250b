"""Asks the questions of a plan: providers beside each other, each as hard as it may be asked."""

import asyncio
from datetime import UTC, datetime
from functools import partial
from typing import final

from prefill_router.errors import StoreError, UpstreamError
from prefill_router.harness.answer import Answer
from prefill_router.harness.collecting.asker import Asker
from prefill_router.harness.collecting.billing import Bill, bill_of_failure, bill_of_reply
from prefill_router.harness.collecting.budget import Ledger
from prefill_router.harness.collecting.calls import Backlog, Call, attempt_of
from prefill_router.harness.collecting.circuit import Circuit
from prefill_router.harness.collecting.estimate import Typical
from prefill_router.harness.collecting.limits import Gate
from prefill_router.harness.collecting.options import CollectOptions
from prefill_router.harness.collecting.planning import Plan
from prefill_router.harness.collecting.prompts import Prompts
from prefill_router.harness.collecting.recording import answer_of, request_of
from prefill_router.harness.collecting.retrying import Retrying
from prefill_router.harness.collecting.schedule import Lane, Question
from prefill_router.harness.collecting.tally import Tally
from prefill_router.harness.runs.journal import Journal
from prefill_router.upstream import Reply
from prefill_router.upstream.pricing import bound

_MOST_UNRECORDED = 1000
_LIMITED = ("rate_limited", "overloaded")
OVER_LIMIT = "the spending limit"


@final
class Collector:
    """Asks the questions of a plan; good for one time, in one event loop.

    Args:
        plan: What is asked.
        prompts: The tasks' prompts.
        asker: Who asks.
        journal: Where the answers go.
        charged: US dollars that count against the limit already.
        typical: What to expect of answers.
        options: Limits.
        tally: Counts what comes of it.
    """

    def __init__(
        self,
        plan: Plan,
        *,
        prompts: Prompts,
        asker: Asker,
        journal: Journal,
        charged: float,
        typical: Typical,
        options: CollectOptions,
        tally: Tally,
    ) -> None:
        self._plan, self._prompts, self._asker = plan, prompts, asker
        self._journal, self._options, self._tally = journal, options, tally
        self._typical = typical
        self._targets = {target.name: target for target in plan.pool}
        self._requests = {
            target.name: request_of(target, plan.pool.provider_of(target.name))
            for target in plan.pool
        }
        self._ledger = Ledger(options.limit, charged=charged, expose=self._expose)
        self._circuit = Circuit(plan.pool, patience_seconds=options.patience_seconds)
        self._retrying = Retrying(options.attempts, options.backoff_seconds, options.chance())
        self._backlog = Backlog()
        self._loop = asyncio.get_running_loop()
        self._work: asyncio.Future[list[None]] | None = None

    async def run(self) -> None:
        """Ask everything; cancelled, it keeps what has arrived.

        Raises:
            StoreError: Answers can't be written; those that were are kept.
        """
        workers = [task for targets in self._plan.lanes().values() for task in self._staff(targets)]
        self._work = asyncio.gather(*workers)
        try:
            await self._work
        except asyncio.CancelledError:
            if self._backlog.error is None:
                raise
        finally:
            await self._end(workers)
        if self._backlog.error is not None:
            raise self._backlog.error

    async def _end(self, workers: list[asyncio.Task[None]]) -> None:
        """Give up what is under way, and wait for what is on its way to the disk."""
        for worker in workers:
            worker.cancel()
        await asyncio.gather(*workers, return_exceptions=True)
        await self._backlog.until_at_most(0)
        if self._backlog.error is None:
            await self._ledger.close()

    def _staff(self, targets: list[str]) -> list[asyncio.Task[None]]:
        """As many workers as a provider takes calls at once, or has questions."""
        provider = self._plan.pool.provider_of(targets[0])
        width = min(provider.concurrency, self._plan.count(targets))
        lane, gate = Lane(self._plan.questions(targets), width=width), Gate(provider)
        return [asyncio.create_task(self._serve(lane, gate)) for _ in range(width)]

    async def _serve(self, lane: Lane, gate: Gate) -> None:
        while (question := await lane.next()) is not None:
            if not self._skip(question, lane):
                await self._ask(question, lane, gate)
            await asyncio.sleep(0)  # many that are skipped mustn't hold up other calls
            await self._backlog.until_at_most(_MOST_UNRECORDED)

    def _skip(self, question: Question, lane: Lane) -> bool:
        """Finish a question to a target that isn't asked any more."""
        reason = self._circuit.refused(question.target)
        later = self._circuit.postponed(question.target)
        if reason is not None:
            self._missing(question, reason, lane)
        elif later is not None:
            self._leave(question, later, lane)
        return reason is not None or later is not None

    async def _ask(self, question: Question, lane: Lane, gate: Gate) -> None:
        call = self._prepare(question)
        await gate.enter()
        try:
            if self._skip(question, lane):
                return
            if not await self._ledger.reserve(call.reserved):
                self._leave(question, OVER_LIMIT, lane)
                return
            await self._call(call, lane, gate)
        finally:
            gate.leave()

    def _prepare(self, question: Question) -> Call:
        target, prompt = self._targets[question.target], self._prompts[question.query_id]
        return Call(
            question=question,
            target=target,
            prompt=prompt,
            most=bound(target, prompt),
            expected=self._typical.usage(target, prompt),
        )

    async def _call(self, call: Call, lane: Lane, gate: Gate) -> None:
        """Make one call; one that is given up may be billed, one that never began isn't."""
        charged = 0.0
        try:
            await gate.pace(call.expected_tokens)
            charged = call.reserved
            began, start = datetime.now(UTC), gate.now()
            outcome = await self._outcome(call)
            took = gate.now() - start
            bill = self._bill(call, outcome)
            charged = bill.charged
        finally:
            self._ledger.settle(call.reserved, charged)
        call.question.attempts.append(attempt_of(began, took, outcome, bill))
        call.question.bills.append(bill)
        self._tally.called()
        if isinstance(outcome, UpstreamError):
            self._failed(call, outcome, lane, gate, start)
        else:
            self._answered(call, outcome, lane, gate)

    async def _outcome(self, call: Call) -> Reply | UpstreamError:
        try:
            return await self._asker.ask(call.target.name, call.prompt)
        except UpstreamError as error:
            return error

    def _bill(self, call: Call, outcome: Reply | UpstreamError) -> Bill:
        if isinstance(outcome, UpstreamError):
            return bill_of_failure(call.target, call.prompt, call.most, outcome)
        return bill_of_reply(call.target, call.prompt, call.most, outcome)

    def _answered(self, call: Call, reply: Reply, lane: Lane, gate: Gate) -> None:
        gate.widen()
        used = (reply.usage.input_tokens or 0) + (reply.usage.output_tokens or 0)
        most = call.most.input_tokens + call.most.output_tokens
        if 0 < used <= most:
            gate.correct(used - call.expected_tokens)
        self._circuit.answered(call.target.name)
        self._record(call.question, lane, reply=reply)

    def _failed(
        self, call: Call, error: UpstreamError, lane: Lane, gate: Gate, start: float
    ) -> None:
        self._circuit.failed(call.target.name, error, question=call.question.query_id)
        if error.failure in _LIMITED:
            gate.narrow(start)
            self._pause(call, error, gate)
        wait = self._retrying.wait(error, [made.failure for made in call.question.attempts])
        if wait is None or wait > self._options.patience_seconds:
            self._missing(call.question, error.failure, lane)
        else:
            lane.again(call.question, wait)

    def _pause(self, call: Call, error: UpstreamError, gate: Gate) -> None:
        """Leave a provider alone for as long as it says."""
        if error.retry_after is None:
            return
        if error.retry_after > self._options.patience_seconds:
            provider = self._plan.pool.provider_of(call.target.name).name
            why = f"{provider} asks to be left alone for {error.retry_after:,.0f} s"
            self._circuit.postpone(call.target.name, why)
        else:
            gate.pause(error.retry_after)

    def _missing(self, question: Question, reason: str, lane: Lane) -> None:
        if question.attempts or not self._plan.says(question, reason):
            self._record(question, lane, missing=reason)
        else:  # the run says so already
            self._tally.repeated(question.target, reason)
            lane.finish()

    def _leave(self, question: Question, why: str, lane: Lane) -> None:
        """Not ask a question; where it was asked before, its last failure is why it is missing."""
        if question.attempts:
            self._missing(question, str(question.attempts[-1].failure), lane)
        else:
            self._tally.left(why)
            lane.finish()

    def _record(
        self,
        question: Question,
        lane: Lane,
        *,
        reply: Reply | None = None,
        missing: str | None = None,
    ) -> None:
        target, asked = self._targets[question.target], self._requests[question.target]
        answer = answer_of(question, target, asked, reply=reply, missing=missing)
        self._backlog.waiting += 1
        done = partial(self._recorded, answer, question.charged)
        self._journal.record(answer, partial(self._loop.call_soon_threadsafe, done))
        lane.finish()

    def _recorded(self, answer: Answer, charged: float, error: StoreError | None) -> None:
        self._backlog.waiting -= 1
        self._backlog.changed.set()
        if error is None:
            self._ledger.recorded(charged)
            self._tally.recorded(answer)
        else:
            self._give_up(error)

    def _expose(self, dollars: float) -> asyncio.Future[None]:
        noted: asyncio.Future[None] = self._loop.create_future()
        done = partial(_tell, noted)
        self._journal.expose(dollars, partial(self._loop.call_soon_threadsafe, done))
        return noted

    def _give_up(self, error: StoreError) -> None:
        self._backlog.error = error
        if self._work is not None:
            self._work.cancel()


def _tell(noted: asyncio.Future[None], error: StoreError | None) -> None:
    if error is None:
        noted.set_result(None)
    else:
        noted.set_exception(error)
        noted.exception()  # nobody may be waiting; the answers' own records tell of it too
