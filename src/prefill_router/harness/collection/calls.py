"""Questions and the calls made for them: what is asked next, what it costs, what is recorded.

Of a provider's questions, calls to make again come first when they are due, then new questions.
These are drawn one by one as calls come free, and no more than a few times as many as calls at once
wait for another attempt, so that a run of any length needs little memory. The record of a question
that is finished is made of its calls.
"""

import asyncio
import heapq
import itertools
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, final

from prefill_router.client import Reply, request_parameters
from prefill_router.client.call_costs import CallBill, CostSource
from prefill_router.client.paid_calls import PaidCall
from prefill_router.errors import StoreError, UpstreamError
from prefill_router.harness.records import Answer, Attempt
from prefill_router.targets import Provider, Target
from prefill_router.targets.provider import public_address

_WAITING_FOR_EACH = 4


@final
@dataclass
class Question:
    """One (target, task) to be asked, and the calls that were made for it.

    Attributes:
        target: Who is asked.
        query_id: What.
        attempts: The calls so far.
        bills: What each of them has cost.
    """

    target: str
    query_id: str
    attempts: list[Attempt] = field(default_factory=list)
    bills: list[CallBill] = field(default_factory=list)

    @property
    def charged(self) -> float:
        """US dollars that its calls count against the limit."""
        return sum(bill.charged for bill in self.bills)


@final
class ProviderQueue:
    """The questions to one provider; used from one event loop.

    Args:
        questions: New ones.
        width: Calls at once.
        clock: Seconds that never go back.
    """

    def __init__(
        self,
        questions: Iterator[Question],
        *,
        width: int,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._new: Iterator[Question] | None = questions
        self._again: list[tuple[float, int, Question]] = []
        self._most_waiting = width * _WAITING_FOR_EACH
        self._open = 0
        self._clock = clock
        self._number = itertools.count()
        self._changed = asyncio.Event()

    async def next(self) -> Question | None:
        """The next question, once there is one; None when all are finished."""
        while True:
            if self._again and self._again[0][0] <= self._clock():
                return heapq.heappop(self._again)[2]
            if (question := self._draw()) is not None:
                return question
            if not self._open:
                return None
            await self._change()

    def again(self, question: Question, seconds: float) -> None:
        """Ask it again after so long."""
        due = self._clock() + seconds
        heapq.heappush(self._again, (due, next(self._number), question))
        self._changed.set()

    def finish(self) -> None:
        """A question that was drawn needs no more asking."""
        self._open -= 1
        self._changed.set()

    def _draw(self) -> Question | None:
        if self._new is None or len(self._again) >= self._most_waiting:
            return None
        question = next(self._new, None)
        if question is None:
            self._new = None
        else:
            self._open += 1
        return question

    async def _change(self) -> None:
        self._changed.clear()
        due = self._again[0][0] - self._clock() if self._again else None
        try:
            async with asyncio.timeout(due):
                await self._changed.wait()
        except TimeoutError:
            pass


@final
@dataclass
class Backlog:
    """Answers on their way to the disk.

    Attributes:
        waiting: How many.
        error: Why they can't be written; None where they can.
        changed: Set when one has arrived.
    """

    waiting: int = 0
    error: StoreError | None = None
    changed: asyncio.Event = field(default_factory=asyncio.Event)

    async def until_at_most(self, number: int) -> None:
        """Wait until no more than so many are on their way."""
        while self.waiting > number:
            self.changed.clear()
            await self.changed.wait()


def attempt_of(call: PaidCall) -> Attempt:
    """The record of a call."""
    error = call.outcome if isinstance(call.outcome, UpstreamError) else None
    return Attempt(
        began=call.began.isoformat(timespec="milliseconds"),
        seconds=call.seconds,
        failure=None if error is None else error.failure,
        detail=str(error or ""),
        cost=call.bill.cost or 0.0,
        at_risk=call.bill.at_risk,
    )


_PRICES = ("input_price", "output_price", "cached_input_price", "reasoning_price")


def answer_of(
    question: Question,
    target: Target,
    request: Mapping[str, Any],
    *,
    reply: Reply | None = None,
    missing: str | None = None,
) -> Answer:
    """The record of a question."""
    costs = [bill.cost for bill in question.bills if bill.cost is not None]
    unknown = not costs and (bool(question.bills) or not target.has_price)
    return Answer(
        target=question.target,
        query_id=question.query_id,
        reply=reply,
        missing=missing,
        request=request,
        attempts=tuple(question.attempts),
        prices={p: v for p in _PRICES if (v := getattr(target, p)) is not None},
        cost=None if unknown else sum(costs),
        cost_source=_source(question),
        note="; ".join(dict.fromkeys(bill.note for bill in question.bills if bill.note)),
    )


def request_of(target: Target, provider: Provider) -> Mapping[str, Any]:
    """Whom a target is asked of, and with what beside the prompt; without keys."""
    return {
        "provider": provider.name,
        "base_url": public_address(provider.base_url),
        "dialect": provider.dialect,
        "body": request_parameters(target, provider.dialect),
    }


def _source(question: Question) -> CostSource:
    """An estimate where any part is one."""
    sources: list[CostSource] = [b.source for b in question.bills if b.source != "none"]
    if not sources:
        return "none"
    return "estimate" if "estimate" in sources else sources[-1]
