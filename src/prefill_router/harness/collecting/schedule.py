"""What is asked next of a provider: calls to make again that are due, then new questions.

Questions are drawn one by one as calls come free, and no more than a few times as many as calls at
once wait for another attempt, so that a run of any length needs little memory.
"""

import asyncio
import heapq
import itertools
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import final

from prefill_router.harness.answer import Attempt
from prefill_router.harness.collecting.billing import Bill

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
    bills: list[Bill] = field(default_factory=list)

    @property
    def charged(self) -> float:
        """US dollars that its calls count against the limit."""
        return sum(bill.charged for bill in self.bills)


@final
class Lane:
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
