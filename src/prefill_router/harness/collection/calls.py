"""Questions and the calls made for them: what is asked next, what it costs, what is recorded.

Of a provider's questions, calls to make again come first when they are due, then new questions.
These are drawn one by one as calls come free, and no more than a few times as many as calls at once
wait for another attempt, so that a run of any length needs little memory. A call has a bill: what
it has cost, and what it may have cost beyond that. The record of a question that is finished is
made of its calls.
"""

import asyncio
import heapq
import itertools
import math
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, final

from prefill_router.client import Reply, Usage
from prefill_router.client.call_costs import (
    CallBound,
    cost_of,
    estimated_usage,
    plausible,
    reported_cost,
)
from prefill_router.client.dialects import request_parameters
from prefill_router.data import Prompt, prompt_text
from prefill_router.errors import StoreError, UpstreamError
from prefill_router.harness.records import Answer, Attempt, CostSource
from prefill_router.targets import Provider, Target
from prefill_router.targets.provider import public_address

_MOST_BYTES_PER_TOKEN = 32
"""On average, in any text that isn't one sign over and over."""


@final
@dataclass(frozen=True, kw_only=True)
class CallBill:
    """What one call has cost.

    Attributes:
        cost: US dollars, as far as known; None where there are no prices.
        at_risk: US dollars that it may have cost beyond that, at most: 0 where the bill is known.
        source: What the cost goes by.
        note: What was odd.
    """

    cost: float | None
    at_risk: float = 0.0
    source: CostSource = "none"
    note: str = ""

    @property
    def charged(self) -> float:
        """US dollars that count against a spending limit."""
        return (self.cost or 0.0) + self.at_risk


def bill_of_reply(target: Target, prompt: Prompt, most: CallBound, reply: Reply) -> CallBill:
    """The bill of an answer.

    It goes by what the provider says that it cost, or by the tokens that it reports. Where what it
    reports can't be true the cost is an estimate, and the most possible stays at risk.
    """
    odd = plausible(reply.usage, most) or _too_few(prompt, reply)
    told = reported_cost(reply.usage)
    if told is not None and _is_possible(told, most):
        risk = 0.0 if not odd else _rest(most, told)
        return CallBill(cost=told, at_risk=risk, source="reported", note=odd)
    if told is not None:
        odd = "; ".join(filter(None, (odd, f"its cost is reported as {told:g} dollars")))
    if not target.has_price:
        return CallBill(cost=None, note=odd)
    if not odd:
        return CallBill(cost=cost_of(reply.usage, target), source="usage")
    return _estimate(target, prompt, most, reply, odd)


def bill_of_failure(
    target: Target, prompt: Prompt, most: CallBound, error: UpstreamError
) -> CallBill:
    """The bill of a call without an answer: nothing where it was refused, else what is at risk."""
    if error.billed == "no":
        return CallBill(cost=0.0 if target.has_price else None)
    if not target.has_price:
        return CallBill(cost=None, note="it may have been billed")
    if isinstance(error.partial, Reply):
        return _estimate(target, prompt, most, error.partial, "it may have been billed")
    return CallBill(
        cost=0.0, at_risk=_rest(most, 0.0), source="estimate", note="it may have been billed"
    )


def _estimate(target: Target, prompt: Prompt, most: CallBound, reply: Reply, note: str) -> CallBill:
    cost = cost_of(estimated_usage(prompt, reply), target) or 0.0
    if most.dollars is not None:
        cost = min(cost, most.dollars)
    return CallBill(cost=cost, at_risk=_rest(most, cost), source="estimate", note=note)


def _too_few(prompt: Prompt, reply: Reply) -> str:
    """Counts that are too small for what was read or written."""
    read, written = prompt_text(prompt), reply.text + reply.reasoning
    for name, text in (("input_tokens", read), ("output_tokens", written)):
        size, count = len(text.encode("utf-8", "surrogatepass")), getattr(reply.usage, name)
        if count is not None and size > _MOST_BYTES_PER_TOKEN * count:
            return f"{name} is {count}, for {size} bytes"
    return ""


def _is_possible(dollars: float, most: CallBound) -> bool:
    return most.dollars is None or dollars <= most.dollars * (1 + 1e-9)


def _rest(most: CallBound, cost: float) -> float:
    """What remains of the most possible; rounded up, so that the sum is never less."""
    if most.dollars is None:
        return 0.0
    rest = max(most.dollars - cost, 0.0)
    return math.nextafter(rest, math.inf) if rest else 0.0


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
@dataclass(frozen=True, kw_only=True)
class PlannedCall:
    """One call that is about to be made.

    Attributes:
        question: What it is for.
        target: Who is asked.
        prompt: What.
        most: The most that it can use and cost.
        expected: The tokens to expect.
    """

    question: Question
    target: Target
    prompt: Prompt
    most: CallBound
    expected: Usage

    @property
    def expected_tokens(self) -> int:
        """In and out."""
        return (self.expected.input_tokens or 0) + (self.expected.output_tokens or 0)

    @property
    def reserved(self) -> float:
        """US dollars to set aside for it."""
        return self.most.dollars or 0.0


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


def attempt_of(
    began: datetime, seconds: float, outcome: Reply | UpstreamError, bill: CallBill
) -> Attempt:
    """The record of a call.

    Args:
        began: When.
        seconds: How long it took.
        outcome: What came of it.
        bill: What it has cost.
    """
    error = outcome if isinstance(outcome, UpstreamError) else None
    return Attempt(
        began=began.isoformat(timespec="milliseconds"),
        seconds=seconds,
        failure=None if error is None else error.failure,
        detail=str(error or ""),
        cost=bill.cost or 0.0,
        at_risk=bill.at_risk,
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
