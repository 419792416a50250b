"""Asks questions that are paid from the budget, within each provider's limits.

The same engine asks targets on the side and judges about answers. The budget is what the learner
may spend, a day and in all, and what it has spent. Before a call, the most that it can cost is
written to the database of receipts. Afterwards its charge replaces that, in one transaction with
what the call brought. Where a process is killed in between, the most that it can cost counts as
spent, and the question isn't asked again.
"""

import asyncio
import math
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Final, final

from prefill_router.data import Prompt
from prefill_router.database import Database
from prefill_router.endpoints import (
    FOR_ONE_PROMPT,
    CircuitBreaker,
    PaidCall,
    PaidCalls,
    Reply,
    Retries,
    RetryPolicy,
    SpendingLedger,
    Upstream,
    estimate_usage,
)
from prefill_router.errors import ConfigError, UpstreamError
from prefill_router.money import dollars
from prefill_router.progress import Advance
from prefill_router.targets import Pool, Target
from prefill_router_gateway.receipts import (
    CHARGES,
    LearningRow,
    ReceiptColumn,
    RepeatedRequest,
    SideAnswer,
    learning_insert,
    make_table,
)

_COLUMNS = (
    ReceiptColumn("id", "text"),
    ReceiptColumn("target", "text"),
    ReceiptColumn("purpose", "text"),
    ReceiptColumn("at", "real"),
    ReceiptColumn("dollars", "real"),
    ReceiptColumn("open", "flag"),
)
_IDENTITY = "id, target, purpose"
_DAY = 86_400.0
_DECIMALS = 12
"""Decimals of a sum of US dollars; smaller parts are rounding errors."""


@final
@dataclass(frozen=True, kw_only=True)
class BudgetLimits:
    """What may be spent.

    Attributes:
        per_day: US dollars a day (UTC); None for no limit a day.
        in_all: US dollars in all, as long as the database exists; None for no such limit.

    Raises:
        ConfigError: Neither is given, or one isn't a number of dollars.
    """

    per_day: float | None = None
    in_all: float | None = None

    def __post_init__(self) -> None:
        if self.per_day is None and self.in_all is None:
            raise ConfigError("learning needs a limit: give --per-day, --max-cost or both")
        for name, value in (("--per-day", self.per_day), ("--max-cost", self.in_all)):
            if value is not None and not (math.isfinite(value) and value >= 0):
                raise ConfigError(f"{name} is {value}; it is a number of US dollars")


@final
@dataclass(frozen=True, kw_only=True)
class BudgetEntry:
    """What a call is made for; each entry is paid once.

    Attributes:
        id: The decision's id, or the anchor's.
        target: The target that is asked or judged.
        purpose: For example `side`, or `judge:NAME`.
    """

    id: str
    target: str
    purpose: str


@final
class LearningBudget:
    """The ledger of one learner; only one process at a time may write it.

    Args:
        store: The database of receipts, open to write.
        limits: What may be spent.
        clock: Returns the time in seconds since 1970.
    """

    def __init__(
        self, store: Database, limits: BudgetLimits, *, clock: Callable[[], float] = time.time
    ) -> None:
        make_table(store, CHARGES, _COLUMNS, identity=_IDENTITY)
        self._store, self._limits, self._clock = store, limits, clock

    def spending(self, *, today: bool = False) -> float:
        """US dollars spent in all, or today; what an open call can cost counts."""
        since = self._clock() // _DAY * _DAY if today else -math.inf
        query = f"SELECT COALESCE(SUM(dollars), 0) FROM {CHARGES} WHERE at >= ?"
        return round(float(self._store.select(query, [max(since, 0.0)])[0][0]), _DECIMALS)

    @property
    def available(self) -> float:
        """US dollars that may still be spent now."""
        limits = self._limits
        today = math.inf if limits.per_day is None else limits.per_day - self.spending(today=True)
        in_all = math.inf if limits.in_all is None else limits.in_all - self.spending()
        return max(0.0, min(today, in_all))

    def paid_cells(self, purpose: str) -> set[tuple[str, str]]:
        """The ids and targets of which something was spent for a purpose; they are paid."""
        query = f"SELECT id, target FROM {CHARGES} WHERE purpose = ?"
        return {(name, target) for name, target in self._store.select(query, [purpose])}

    def interrupted_calls(self, purpose: str) -> list[tuple[str, str, float]]:
        """Ids, targets and charges of calls of which no outcome is known."""
        query = f"SELECT id, target, dollars FROM {CHARGES} WHERE purpose = ? AND open = 1"
        return [(name, target, cost) for name, target, cost in self._store.select(query, [purpose])]

    def reserve(self, entry: BudgetEntry, most: float) -> None:
        """Write, before a call, the most that it can cost; an entry may take several calls."""
        self._store.change(
            [
                (
                    f"INSERT INTO {CHARGES} (id, target, purpose, at, dollars, open) "
                    f"VALUES (?, ?, ?, ?, ?, 1) ON CONFLICT ({_IDENTITY}) DO UPDATE SET "
                    f"at = excluded.at, dollars = {CHARGES}.dollars + excluded.dollars, open = 1",
                    [entry.id, entry.target, entry.purpose, self._clock(), most],
                )
            ]
        )

    def settle(
        self, entry: BudgetEntry, most: float, charged: float, rows: Sequence[LearningRow] = ()
    ) -> None:
        """Replace what was reserved by what was charged, and write what the call brought.

        An entry that cost nothing and brought nothing is deleted, so that it may be asked again.
        """
        key = [entry.id, entry.target, entry.purpose]
        condition = "WHERE id = ? AND target = ? AND purpose = ?"
        update = f"UPDATE {CHARGES} SET dollars = dollars - ? + ?, open = 0 {condition}"
        delete = f"DELETE FROM {CHARGES} {condition} AND dollars < 1e-12"
        self._store.change(
            [
                (update, [most, charged, *key]),
                *([] if rows else [(delete, key)]),
                *(learning_insert(row) for row in rows),
            ]
        )


SIDE: Final = "side"
"""The purpose of asking a target a sampled request."""
_ATTEMPTS = 4
OVER_BUDGET = "the budget"
"""The reason why a question wasn't asked: the budget has too few dollars left."""


@final
@dataclass(frozen=True, kw_only=True)
class PaidQuestion:
    """A question, whom to ask, and what its answer is.

    Attributes:
        entry: What it is asked for.
        target: The target or judge that is asked, with the options of this question.
        prompt: The prompt.
        rows: Makes the rows of a call that ended; none to ask again another time.
    """

    entry: BudgetEntry
    target: Target
    prompt: Prompt = field(repr=False)
    rows: Callable[[PaidCall], Sequence[LearningRow]] = field(repr=False)


def side_question(
    request: RepeatedRequest,
    target: Target,
    propensity: float,
    *,
    answer_name: str = "",
    clock: Callable[[], float],
) -> PaidQuestion:
    """A sampled request for a target.

    Args:
        request: The request.
        target: The target.
        propensity: The probability with which it was to be asked.
        answer_name: The name under which the answer is kept; by default the target's.
        clock: Returns the time in seconds since 1970.
    """
    name, answer_name = request.sample.id, answer_name or target.name
    return PaidQuestion(
        entry=BudgetEntry(id=name, target=answer_name, purpose=SIDE),
        target=request.options_for(target),
        prompt=request.prompt,
        rows=partial(_make_side_answer, name, answer_name, propensity, clock),
    )


def _make_side_answer(
    decision: str, target: str, propensity: float, clock: Callable[[], float], call: PaidCall
) -> Sequence[SideAnswer]:
    """The row of a side question; none where it may be asked again."""
    outcome, cost = call.outcome, call.bill.charged
    row = SideAnswer(id=decision, target=target, at=clock(), propensity=propensity, cost=cost)
    if isinstance(outcome, UpstreamError):
        is_final = outcome.failure in FOR_ONE_PROMPT
        return (replace(row, failure=outcome.failure),) if is_final else ()
    read, written = outcome.usage.input_tokens, outcome.usage.output_tokens
    return (replace(row, answer=outcome.text, input_tokens=read, output_tokens=written),)


def ask(
    questions: Sequence[PaidQuestion],
    pool: Pool,
    budget: LearningBudget,
    *,
    limit: float,
    advance: Advance,
) -> Counter[str]:
    """Ask all questions, each once.

    Args:
        questions: The questions; their targets are in the pool.
        pool: Where the targets are served.
        budget: Pays.
        limit: The most US dollars to spend now.
        advance: Called with each question that has ended.

    Returns:
        The number of questions by how they ended: `answered`, the reason of a failure, or
        `OVER_BUDGET`.
    """
    if not questions:
        return Counter()
    targets = pool.at_first().select(dict.fromkeys(question.target.name for question in questions))
    return asyncio.run(_QuestionRun(targets, budget, limit, advance).ask_all(questions))


class _QuestionRun:
    def __init__(self, pool: Pool, budget: LearningBudget, limit: float, advance: Advance) -> None:
        self._pool, self._budget, self._advance = pool, budget, advance
        self._ledger = SpendingLedger(min(limit, budget.available), charged=0.0)
        self._circuit = CircuitBreaker(pool)
        self._retry_policy = RetryPolicy(_ATTEMPTS, patience=1)
        self._ends: Counter[str] = Counter()

    async def ask_all(self, questions: Iterable[PaidQuestion]) -> Counter[str]:
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
        retries, end = Retries(self._retry_policy), ""
        while not end:
            call = await self._call(question)
            if call is None:
                end = "no answers" if self._is_closed(question) else OVER_BUDGET
            elif isinstance(call.outcome, Reply):
                end = "answered"
            else:
                end = await self._wait_to_retry(call.outcome, retries)
        self._ends[end] += 1
        self._advance(note=f"{dollars(self._ledger.charged)} spent")

    async def _wait_to_retry(self, error: UpstreamError, retries: Retries) -> str:
        """Wait before the next call; returns why there is none, or nothing."""
        try:
            await asyncio.sleep(retries.wait(error))
        except UpstreamError:
            return error.failure
        return ""

    async def _call(self, question: PaidQuestion) -> PaidCall | None:
        target, prompt, most = question.target, question.prompt, [0.0]

        async def begin(reserved: float) -> None:
            self._budget.reserve(question.entry, reserved)
            most[0] = reserved

        call = await self._calls.make(
            target,
            prompt,
            tokens=estimate_usage(prompt, Reply(text="")).input_tokens or 0,
            is_wanted=lambda: not self._is_closed(question),
            begin=begin,
            ask=lambda: self._upstream.ask_as(target, prompt),
        )
        if call is not None:
            charged = call.bill.charged
            self._budget.settle(question.entry, most[0], charged, question.rows(call))
            self._ledger.mark_recorded(charged)
            if isinstance(call.outcome, UpstreamError):
                self._circuit.record_failure(target.name, call.outcome, question=question.entry.id)
            else:
                self._circuit.record_answer(target.name)
        return call

    def _is_closed(self, question: PaidQuestion) -> bool:
        name = question.target.name
        return bool(self._circuit.reason_to_stop(name) or self._circuit.reason_to_postpone(name))
