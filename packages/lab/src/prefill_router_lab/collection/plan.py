"""The questions of a run: what is open, what is asked next, and what that will cost.

Open are the questions of the present pool and tasks that the run has no answer to. The prompts of a
run's tasks are read ahead in batches, since they are asked in order. Each provider has a queue, in
which retries that are due come before new questions. New questions are taken one by one, and only
while few questions wait for a retry, so that a run of any length needs little memory. The record of
a finished question is made of its calls. The open questions' calls, tokens, dollars and time are
estimated beforehand, and so is a spending limit that is enough for them.
"""

import asyncio
import heapq
import itertools
import math
import random
import statistics
import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, Literal, final

from prefill_router.data import Prompt, Query
from prefill_router.endpoints import (
    CallBill,
    CostSource,
    PaidCall,
    Reply,
    Usage,
    bound,
    cost_of,
    estimate_usage,
    request_parameters,
)
from prefill_router.errors import ConfigError, StoreError, UpstreamError
from prefill_router.options import NOT_NEGATIVE, Count, NotNegative, check_options
from prefill_router.runs import Answer, Attempt, Retry, Run, is_finished
from prefill_router.targets import PRICES, Pool, Provider, Target, public_address

_WAITING_FOR_EACH = 4


@final
@dataclass
class Question:
    """One task for one target, and the calls that were made for it.

    Attributes:
        target: The name of the target.
        query_id: The id of the task's query.
        attempts: The calls so far.
        bills: The cost of each call.
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
    """The queue of questions to one provider; used from one event loop.

    Args:
        questions: The new questions.
        width: The number of concurrent calls.
        clock: A monotonic clock, in seconds.
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
            if (question := self._take_new()) is not None:
                return question
            if not self._open:
                return None
            await self._wait_for_change()

    def again(self, question: Question, seconds: float) -> None:
        """Queue a question for a retry after some seconds."""
        due = self._clock() + seconds
        heapq.heappush(self._again, (due, next(self._number), question))
        self._changed.set()

    def finish(self) -> None:
        """Note that a question from the queue is finished."""
        self._open -= 1
        self._changed.set()

    def _take_new(self) -> Question | None:
        if self._new is None or len(self._again) >= self._most_waiting:
            return None
        question = next(self._new, None)
        if question is None:
            self._new = None
        else:
            self._open += 1
        return question

    async def _wait_for_change(self) -> None:
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
    """Answers that aren't on the disk yet.

    Attributes:
        waiting: Their number.
        error: Why they can't be written; None where they can.
        changed: Set when one has been written, or can't be.
    """

    waiting: int = 0
    error: StoreError | None = None
    changed: asyncio.Event = field(default_factory=asyncio.Event)

    async def wait_until_at_most(self, number: int) -> None:
        """Wait until no more than this number are waiting."""
        while self.waiting > number:
            self.changed.clear()
            await self.changed.wait()


def make_attempt(call: PaidCall) -> Attempt:
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


def make_answer(
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
        prices={p: v for p in PRICES if (v := getattr(target, p)) is not None},
        cost=None if unknown else sum(costs),
        cost_source=_find_cost_source(question),
        note="; ".join(dict.fromkeys(bill.note for bill in question.bills if bill.note)),
    )


def describe_request(target: Target, provider: Provider) -> Mapping[str, Any]:
    """The provider and the request parameters of a target, without prompt and keys."""
    return {
        "provider": provider.name,
        "base_url": public_address(provider.base_url),
        "dialect": provider.dialect,
        "body": request_parameters(target, provider.dialect),
    }


def _find_cost_source(question: Question) -> CostSource:
    """The source of a question's cost: an estimate where any part of it is one."""
    sources: list[CostSource] = [b.source for b in question.bills if b.source != "none"]
    if not sources:
        return "none"
    return "estimate" if "estimate" in sources else sources[-1]


@final
@dataclass(frozen=True, kw_only=True)
class CollectOptions:
    """How a run is collected.

    Attributes:
        limit: US dollars that the whole run may cost, earlier calls included; None for no limit.
        attempts: Most calls for one question.
        retry: Which missing answers of earlier calls of `collect` are asked for again.
        assume_free: Whether targets without prices count as free where there is a limit.
        settled: Whether dollars at risk so far no longer count, since the bill is known.
        assume_output_tokens: Output tokens of an answer, where none is recorded yet; for estimates.
        backoff_seconds: The longest wait before the first retry.
        patience_seconds: A provider that asks for a longer wait isn't asked any more this time.
        seed: The seed of the waits.
    """

    limit: NotNegative | None = None
    attempts: Count = 5
    retry: Retry = "failed"
    assume_free: bool = False
    settled: bool = False
    assume_output_tokens: Annotated[int, NOT_NEGATIVE] = 1000
    backoff_seconds: NotNegative = 1.0
    patience_seconds: NotNegative = 600.0
    seed: int = 0

    def __post_init__(self) -> None:
        check_options(self)

    def chance(self) -> random.Random:
        """The random generator of the waits."""
        return random.Random(self.seed)

    def to_dict(self) -> dict[str, Any]:
        """Plain values."""
        return dict(vars(self))


@final
@dataclass(frozen=True)
class CollectionPlan:
    """The open questions of a run.

    Attributes:
        ids: The ids of the tasks, in order.
        pool: The targets that are asked.
        finished: The ids that each target isn't asked any more.
        missing: The other recorded ids of each target, with the reason why they are missing.
    """

    ids: Sequence[str]
    pool: Pool
    finished: Mapping[str, Collection[str]] = field(repr=False)
    missing: Mapping[str, Mapping[str, str]] = field(repr=False)

    def records(self, question: Question, reason: str) -> bool:
        """Whether the run has recorded this reason for a question already."""
        return self.missing[question.target].get(question.query_id) == reason

    def targets_of(self, query_id: str) -> list[str]:
        """The targets that are to be asked this task."""
        return [name for name in self.pool.names if query_id not in self.finished[name]]

    def lanes(self) -> dict[str, list[str]]:
        """The targets of each provider, by its name."""
        lanes: dict[str, list[str]] = {}
        for name in self.pool.names:
            lanes.setdefault(self.pool.provider_of(name).name, []).append(name)
        return lanes

    def questions(self, targets: Sequence[str]) -> Iterator[Question]:
        """The questions to these targets, task by task."""
        for query_id in self.ids:
            for name in targets:
                if query_id not in self.finished[name]:
                    yield Question(name, query_id)

    def count(self, targets: Sequence[str]) -> int:
        """How many questions these targets are to be asked."""
        return sum(len(self.ids) - len(self.finished[name]) for name in targets)


def make_plan(ids: Sequence[str], pool: Pool, run: Run | None, *, retry: Retry) -> CollectionPlan:
    """The plan to ask these targets these tasks; without a run nothing is finished."""
    finished_ids: dict[str, set[str]] = {name: set() for name in pool.names}
    missing: dict[str, dict[str, str]] = {name: {} for name in pool.names}
    same = {query_id: query_id for query_id in ids}  # one text for all targets
    reasons: dict[str, str] = {}
    for target, query_id, reason in () if run is None else run.outcomes():
        if target not in finished_ids or query_id not in same:
            continue
        if is_finished(reason, retry):
            finished_ids[target].add(same[query_id])
        elif reason is not None:
            missing[target][same[query_id]] = reasons.setdefault(reason, reason)
    return CollectionPlan(ids, pool, finished_ids, missing)


def join_pools(run: Run, pool: Pool) -> Pool:
    """The pool of a run that is resumed with this pool: its targets first, then earlier ones.

    Raises:
        ConfigError: A target that has answered has other request parameters than before. Those
            of a target that only failed may change.
    """
    earlier_names = run.find_asked_targets()
    for name in set(pool.names) & set(run.pool.names) & run.find_asked_targets(answered=True):
        now, before = _describe_target(pool, name), _describe_target(run.pool, name)
        changes = [what for what in now if now[what] != before[what]]
        if changes:
            raise ConfigError(
                f"target {name!r} has answers in {run.folder} with {changes[0]} "
                f"{before[changes[0]]!r}, but {changes[0]} is now {now[changes[0]]!r}; give "
                "the target another name, or collect into another folder"
            )
    rest = [t for t in run.pool if t.name not in pool.names and t.name in earlier_names]
    names = {provider.name for provider in pool.providers}
    needed = {target.provider for target in rest}
    others = [p for p in run.pool.providers if p.name in needed - names]
    return replace(pool, targets=(*pool.targets, *rest), providers=(*pool.providers, *others))


def check_askable(pool: Pool, *, limit: float | None, assume_free: bool) -> None:
    """Check that every target has an endpoint and, where there is a limit, prices.

    Raises:
        ConfigError: One lacks them.
    """
    for target in pool:
        pool.provider_of(target.name)
        if limit is not None and not target.has_price and not assume_free:
            raise ConfigError(
                f"target {target.name!r} has no prices, so no limit can be kept; give it prices, "
                "or --assume-free if it costs nothing"
            )


def _describe_target(pool: Pool, name: str) -> dict[str, object]:
    target = pool[name]
    return {
        "model": target.model or name,
        "dialect": pool.provider_of(name).dialect,
        "request": target.request.to_dict(),
    }


_READ_AHEAD = 128
_MOST_BATCHES = 32
"""Batches that are kept, since providers may be at different places."""


@final
class Prompts:
    """The prompts of a run's tasks, read in batches.

    Args:
        run: The run.
        ids: The ids of the tasks, in the order in which they are asked.
    """

    def __init__(self, run: Run, ids: Sequence[str]) -> None:
        self._run, self._ids = run, ids
        self._place = {query_id: place for place, query_id in enumerate(ids)}
        self._parts: OrderedDict[int, list[Prompt]] = OrderedDict()

    def __getitem__(self, query_id: str) -> Prompt:
        number, place = divmod(self._place[query_id], _READ_AHEAD)
        if number not in self._parts:
            batch = self._ids[number * _READ_AHEAD : (number + 1) * _READ_AHEAD]
            self._parts[number] = [query.prompt for query in self._run.queries(batch)]
            if len(self._parts) > _MOST_BATCHES:
                self._parts.popitem(last=False)
        self._parts.move_to_end(number)
        return self._parts[number][place]


_MINUTE = 60.0


@final
class TypicalAnswers:
    """The expected tokens and time of a target's answers: medians of those in a run.

    Args:
        run: The run; None where there is none yet.
        assume_output_tokens: Output tokens of a target without answers in the run.
    """

    def __init__(self, run: Run | None, *, assume_output_tokens: int) -> None:
        self._run = run
        self._assumed = assume_output_tokens
        self._medians: dict[tuple[str, str], float | None] = {}

    def usage(self, target: Target, prompt: Prompt) -> Usage:
        """Tokens of a call: a quarter of the prompt's bytes in, the median of the outputs out."""
        input_tokens = estimate_usage(prompt, Reply(text="")).input_tokens
        return Usage(input_tokens=input_tokens, output_tokens=self.output_tokens(target))

    def output_tokens(self, target: Target) -> int:
        """Expected output tokens of an answer."""
        median = self._find_median(target.name, "output_tokens")
        return min(round(self._assumed if median is None else median), target.request.max_tokens)

    def seconds(self, target: Target) -> float | None:
        """Expected seconds of an answer; None where the run has none."""
        return self._find_median(target.name, "seconds")

    def _find_median(self, target: str, what: Literal["output_tokens", "seconds"]) -> float | None:
        if (target, what) not in self._medians:
            values = [] if self._run is None else self._run.list_values(target, what)
            self._medians[target, what] = statistics.median(values) if values else None
        return self._medians[target, what]


@final
@dataclass(frozen=True, kw_only=True)
class TargetEstimate:
    """What asking one target will take, if no call has to be retried.

    Attributes:
        target: Its name.
        calls: Questions to ask.
        input_tokens: Expected input tokens of all of them.
        output_tokens: Expected output tokens of all of them.
        dollars: Expected US dollars; None where the target's prices are unknown.
        most_dollars: US dollars if each answer is as long as its request allows; None likewise.
    """

    target: str
    calls: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    dollars: float | None = None
    most_dollars: float | None = None


@final
@dataclass(frozen=True, kw_only=True)
class CollectionEstimate:
    """What asking will take.

    Attributes:
        targets: The estimate of each target.
        seconds: The time, from rate limits and the time of earlier answers; None where unknown.
    """

    targets: tuple[TargetEstimate, ...]
    seconds: float | None

    @property
    def calls(self) -> int:
        """Questions to ask."""
        return sum(target.calls for target in self.targets)

    @property
    def dollars(self) -> float:
        """Expected US dollars, over the targets with prices."""
        return sum(target.dollars or 0.0 for target in self.targets)

    @property
    def most_dollars(self) -> float:
        """Most US dollars, over the targets with prices."""
        return sum(target.most_dollars or 0.0 for target in self.targets)

    def to_dict(self) -> dict[str, Any]:
        """Plain values."""
        return {
            "calls": self.calls,
            "dollars": self.dollars,
            "most_dollars": self.most_dollars,
            "seconds": self.seconds,
            "targets": [vars(target) for target in self.targets],
        }


def estimate(
    plan: CollectionPlan, queries: Iterable[Query], typical: TypicalAnswers
) -> CollectionEstimate:
    """Estimate what a plan will take.

    Args:
        plan: The questions.
        queries: Its queries; those with nothing left to ask may be left out.
        typical: The expected tokens and time of answers.
    """
    sums = {target.name: _EstimateSum(target, typical) for target in plan.pool}
    for query in queries:
        for name in plan.targets_of(query.id):
            sums[name].add(query.prompt)
    estimates = {name: total.make_estimate() for name, total in sums.items()}
    seconds = [
        _estimate_seconds(
            plan.pool.provider_of(names[0]), [(plan.pool[n], estimates[n]) for n in names], typical
        )
        for names in plan.lanes().values()
    ]
    times = [value for value in seconds if value is not None]
    seconds_in_all = max(times) if times and len(times) == len(seconds) else None
    return CollectionEstimate(targets=tuple(estimates.values()), seconds=seconds_in_all)


@final
class _EstimateSum:
    def __init__(self, target: Target, typical: TypicalAnswers) -> None:
        self._target, self._typical = target, typical
        self._calls = self._input_tokens = self._output_tokens = 0
        self._most = 0.0

    def add(self, prompt: Prompt) -> None:
        usage = self._typical.usage(self._target, prompt)
        self._calls += 1
        self._input_tokens += usage.input_tokens or 0
        self._output_tokens += usage.output_tokens or 0
        self._most += bound(self._target, prompt).dollars or 0.0

    def make_estimate(self) -> TargetEstimate:
        usage = Usage(input_tokens=self._input_tokens, output_tokens=self._output_tokens)
        return TargetEstimate(
            target=self._target.name,
            calls=self._calls,
            input_tokens=self._input_tokens,
            output_tokens=self._output_tokens,
            dollars=cost_of(usage, self._target),
            most_dollars=self._most if self._target.has_price else None,
        )


def _estimate_seconds(
    provider: Provider, targets: list[tuple[Target, TargetEstimate]], typical: TypicalAnswers
) -> float | None:
    """The time by the tightest limit of a provider; None where none is known."""
    calls = sum(estimate.calls for _, estimate in targets)
    tokens = sum(estimate.input_tokens + estimate.output_tokens for _, estimate in targets)
    seconds_by_limit = [] if calls else [0.0]
    if provider.requests_per_minute:
        seconds_by_limit.append(_MINUTE * calls / provider.requests_per_minute)
    if provider.tokens_per_minute:
        seconds_by_limit.append(_MINUTE * tokens / provider.tokens_per_minute)
    each = [
        (estimate.calls, typical.seconds(target)) for target, estimate in targets if estimate.calls
    ]
    if each and all(seconds is not None for _, seconds in each):
        seconds_by_limit.append(sum(n * (s or 0.0) for n, s in each) / provider.concurrency)
    return max(seconds_by_limit, default=None)


_DEVIATIONS = 2.0
"""Standard deviations above the mean: a limit at the mean alone would fall short half the time."""


def limit_for_the_rest(run: Run, plan: CollectionPlan, options: CollectOptions) -> float:
    """Estimate a limit, in US dollars, that is enough for all open questions.

    It is a sum of three parts. The first is what counts already. The second is the mean charge of a
    question to its target, dollars at risk included, for each open question, plus two standard
    deviations of that; where nothing has been charged it is the estimated cost. The third is the
    most that the most expensive question can cost, which must fit before it is asked.

    Args:
        run: The run as it is now.
        plan: The plan that the limit stopped; missing answers that are retried count as open.
        options: Which answers are retried, and the tokens of targets without answers.
    """
    rest = make_plan(plan.ids, plan.pool, run, retry=options.retry)
    typical = TypicalAnswers(run, assume_output_tokens=options.assume_output_tokens)
    targets = {target.name: target for target in plan.pool}
    number: Counter[str] = Counter()
    expected = dict.fromkeys(targets, 0.0)
    most = 0.0
    for query in run.queries([name for name in rest.ids if rest.targets_of(name)]):
        for name in rest.targets_of(query.id):
            target = targets[name]
            number[name] += 1
            expected[name] += cost_of(typical.usage(target, query.prompt), target) or 0.0
            most = max(most, bound(target, query.prompt).dollars or 0.0)
    sums = [_project_cost(number[name], run.charged(name), expected[name]) for name in targets]
    margin = _DEVIATIONS * math.sqrt(sum(variance for _, variance in sums))
    return run.spent + run.at_risk + sum(mean for mean, _ in sums) + margin + most


def _project_cost(number: int, charges: list[float], expected: float) -> tuple[float, float]:
    """Mean and variance of the charge for more questions; the mean's own variance is included."""
    if not charges:
        return expected, 0.0
    mean = statistics.fmean(charges)
    variance = statistics.fmean((dollars - mean) ** 2 for dollars in charges)
    return number * mean, variance * number * (1 + number / len(charges))
