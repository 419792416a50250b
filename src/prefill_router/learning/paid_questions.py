"""Asks questions that are paid from the purse, within each provider's limits.

The same engine asks targets on the side and judges about answers.
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Final, final

from prefill_router.client import (
    CircuitBreaker,
    PaidCall,
    PaidCalls,
    Reply,
    Retries,
    RetryPolicy,
    SpendingLedger,
    Upstream,
    estimated_usage,
)
from prefill_router.data import Prompt
from prefill_router.errors import UpstreamError
from prefill_router.gateway.receipts import LearningRow, RepeatedRequest, SideAnswer
from prefill_router.harness import PERMANENT
from prefill_router.learning.purse import Purse, PurseEntry
from prefill_router.progress import Advance
from prefill_router.targets import Pool, Target

SIDE: Final = "side"
"""The purpose of asking a target a sampled request."""
_ATTEMPTS = 4
OVER_PURSE = "the purse"
"""The reason of questions that the purse has no dollars for."""


@final
@dataclass(frozen=True, kw_only=True)
class PaidQuestion:
    """A question, whom to ask, and what its answer is.

    Attributes:
        entry: What it is asked for.
        asked: The target that is asked, with the options of this question.
        prompt: The prompt.
        rows: Makes the rows of a call that ended; none to ask again another time.
    """

    entry: PurseEntry
    asked: Target
    prompt: Prompt = field(repr=False)
    rows: Callable[[PaidCall], Sequence[LearningRow]] = field(repr=False)


def side_question(
    request: RepeatedRequest,
    target: Target,
    propensity: float,
    *,
    kept_as: str = "",
    clock: Callable[[], float],
) -> PaidQuestion:
    """A sampled request for a target.

    Args:
        request: The request.
        target: The target.
        propensity: The probability with which it was to be asked.
        kept_as: The name under which the answer is kept; by default the target's.
        clock: Returns the time in seconds since 1970.
    """
    name, kept = request.sample.id, kept_as or target.name
    return PaidQuestion(
        entry=PurseEntry(id=name, target=kept, purpose=SIDE),
        asked=request.options_for(target),
        prompt=request.prompt,
        rows=partial(_side_answer, name, kept, propensity, clock),
    )


def _side_answer(
    decision: str, target: str, propensity: float, clock: Callable[[], float], call: PaidCall
) -> Sequence[SideAnswer]:
    """The row of a side question; none where it may be asked again."""
    outcome, cost = call.outcome, call.bill.charged
    row = SideAnswer(id=decision, target=target, at=clock(), propensity=propensity, cost=cost)
    if isinstance(outcome, UpstreamError):
        failed = outcome.failure in PERMANENT
        return (replace(row, failure=outcome.failure),) if failed else ()
    given, written = outcome.usage.input_tokens, outcome.usage.output_tokens
    return (replace(row, answer=outcome.text, input_tokens=given, output_tokens=written),)


def ask(
    questions: Sequence[PaidQuestion], pool: Pool, purse: Purse, *, limit: float, advance: Advance
) -> Counter[str]:
    """Ask all questions, each once.

    Args:
        questions: The questions; their targets are in the pool.
        pool: Where the targets are served.
        purse: Pays.
        limit: The most US dollars to spend now.
        advance: Called with each question that has ended.

    Returns:
        The number of questions by how they ended: `answered`, the reason of a failure, or
        `OVER_PURSE`.
    """
    if not questions:
        return Counter()
    asked = pool.at_first().select(dict.fromkeys(one.asked.name for one in questions))
    return asyncio.run(_Asking(asked, purse, limit, advance).all(questions))


class _Asking:
    def __init__(self, pool: Pool, purse: Purse, limit: float, advance: Advance) -> None:
        self._pool, self._purse, self._advance = pool, purse, advance
        self._ledger = SpendingLedger(min(limit, purse.left), charged=0.0)
        self._circuit = CircuitBreaker(pool)
        self._retrying = RetryPolicy(_ATTEMPTS, patience=1)
        self._ends: Counter[str] = Counter()

    async def all(self, questions: Iterable[PaidQuestion]) -> Counter[str]:
        async with Upstream(self._pool) as upstream:
            self._upstream = upstream
            self._calls = PaidCalls(self._pool, upstream, self._ledger)
            tasks = [asyncio.create_task(self._ask(question)) for question in questions]
            try:
                await asyncio.gather(*tasks)
            finally:
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)
        return self._ends

    async def _ask(self, question: PaidQuestion) -> None:
        retries, end = Retries(self._retrying), ""
        while not end:
            call = await self._make(question)
            if call is None:
                end = "no answers" if self._is_closed(question) else OVER_PURSE
            elif isinstance(call.outcome, Reply):
                end = "answered"
            else:
                end = await self._wait(call.outcome, retries)
        self._ends[end] += 1
        self._advance(note=f"${self._ledger.charged:.4f} spent")

    async def _wait(self, error: UpstreamError, retries: Retries) -> str:
        """Wait before the next call; returns why there is none, or nothing."""
        try:
            await asyncio.sleep(retries.wait(error))
        except UpstreamError:
            return error.failure
        return ""

    async def _make(self, question: PaidQuestion) -> PaidCall | None:
        asked, prompt, most = question.asked, question.prompt, [0.0]

        async def begin(reserved: float) -> None:
            self._purse.intend(question.entry, reserved)
            most[0] = reserved

        call = await self._calls.make(
            asked,
            prompt,
            tokens=estimated_usage(prompt, Reply(text="")).input_tokens or 0,
            wanted=lambda: not self._is_closed(question),
            begin=begin,
            ask=lambda: self._upstream.ask_as(asked, prompt),
        )
        if call is not None:
            charged = call.bill.charged
            self._purse.settle(question.entry, most[0], charged, question.rows(call))
            self._ledger.recorded(charged)
            if isinstance(call.outcome, UpstreamError):
                self._circuit.failed(asked.name, call.outcome, question=question.entry.id)
            else:
                self._circuit.answered(asked.name)
        return call

    def _is_closed(self, question: PaidQuestion) -> bool:
        name = question.asked.name
        return bool(self._circuit.refused(name) or self._circuit.postponed(name))
