"""One call: what it is about to be, and what came of it."""

import asyncio
from dataclasses import dataclass, field
from datetime import datetime
from typing import final

from prefill_router.data import Prompt
from prefill_router.errors import StoreError, UpstreamError
from prefill_router.harness.answer import Attempt
from prefill_router.harness.collecting.billing import Bill
from prefill_router.harness.collecting.schedule import Question
from prefill_router.targets import Target
from prefill_router.upstream import Reply, Usage
from prefill_router.upstream.pricing import Bound


@final
@dataclass(frozen=True, kw_only=True)
class Call:
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
    most: Bound
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
    began: datetime, seconds: float, outcome: Reply | UpstreamError, bill: Bill
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
