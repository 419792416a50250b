"""Estimates of collecting: calls, tokens, dollars and time, and a spending limit that is enough."""

import math
import statistics
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from statistics import fmean
from typing import Any, Literal, final

from prefill_router.client import Reply, Usage, bound, cost_of, estimated_usage
from prefill_router.data import Prompt, Query
from prefill_router.harness.collection.plan import CollectionPlan, CollectOptions, make_plan
from prefill_router.harness.run import Run
from prefill_router.targets import Provider, Target

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
        self._known: dict[tuple[str, str], float | None] = {}

    def usage(self, target: Target, prompt: Prompt) -> Usage:
        """Tokens of a call: a quarter of the prompt's bytes in, the median of the outputs out."""
        given = estimated_usage(prompt, Reply(text="")).input_tokens
        return Usage(input_tokens=given, output_tokens=self.output_tokens(target))

    def output_tokens(self, target: Target) -> int:
        """Expected output tokens of an answer."""
        median = self._median(target.name, "output_tokens")
        return min(round(self._assumed if median is None else median), target.request.max_tokens)

    def seconds(self, target: Target) -> float | None:
        """Expected seconds of an answer; None where the run has none."""
        return self._median(target.name, "seconds")

    def _median(self, target: str, what: Literal["output_tokens", "seconds"]) -> float | None:
        if (target, what) not in self._known:
            values = [] if self._run is None else self._run.measured(target, what)
            self._known[target, what] = statistics.median(values) if values else None
        return self._known[target, what]


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
    made = {name: found.made() for name, found in sums.items()}
    seconds = [
        _seconds(plan.pool.provider_of(names[0]), [(plan.pool[n], made[n]) for n in names], typical)
        for names in plan.lanes().values()
    ]
    known = [value for value in seconds if value is not None]
    whole = max(known) if known and len(known) == len(seconds) else None
    return CollectionEstimate(targets=tuple(made.values()), seconds=whole)


@final
class _EstimateSum:
    def __init__(self, target: Target, typical: TypicalAnswers) -> None:
        self._target, self._typical = target, typical
        self._calls = self._given = self._written = 0
        self._most = 0.0

    def add(self, prompt: Prompt) -> None:
        usage = self._typical.usage(self._target, prompt)
        self._calls += 1
        self._given += usage.input_tokens or 0
        self._written += usage.output_tokens or 0
        self._most += bound(self._target, prompt).dollars or 0.0

    def made(self) -> TargetEstimate:
        usage = Usage(input_tokens=self._given, output_tokens=self._written)
        return TargetEstimate(
            target=self._target.name,
            calls=self._calls,
            input_tokens=self._given,
            output_tokens=self._written,
            dollars=cost_of(usage, self._target),
            most_dollars=self._most if self._target.has_price else None,
        )


def _seconds(
    provider: Provider, asked: list[tuple[Target, TargetEstimate]], typical: TypicalAnswers
) -> float | None:
    """The time by the tightest limit of a provider; None where none is known."""
    calls = sum(made.calls for _, made in asked)
    tokens = sum(made.input_tokens + made.output_tokens for _, made in asked)
    found = [] if calls else [0.0]
    if provider.requests_per_minute:
        found.append(_MINUTE * calls / provider.requests_per_minute)
    if provider.tokens_per_minute:
        found.append(_MINUTE * tokens / provider.tokens_per_minute)
    each = [(made.calls, typical.seconds(target)) for target, made in asked if made.calls]
    if each and all(seconds is not None for _, seconds in each):
        found.append(sum(n * (s or 0.0) for n, s in each) / provider.concurrency)
    return max(found, default=None)


_DEVIATIONS = 2.0
"""Standard deviations above the mean: a limit at the mean alone would fall short half the time."""


def limit_for_the_rest(run: Run, plan: CollectionPlan, options: CollectOptions) -> float:
    """Estimate a limit, in US dollars, that is enough for all open questions.

    It is the sum of what counts already; of the mean charge of a question to its target, dollars at
    risk included, for each open question (its expected cost where nothing has been charged), plus
    two standard deviations of that; and of the most that the dearest question can cost, which must
    fit before it is asked.

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
    sums = [_probable_cost(number[name], run.charged(name), expected[name]) for name in targets]
    margin = _DEVIATIONS * math.sqrt(sum(variance for _, variance in sums))
    return run.spent + run.at_risk + sum(mean for mean, _ in sums) + margin + most


def _probable_cost(number: int, charged: list[float], expected: float) -> tuple[float, float]:
    """Mean and variance of the charge for more questions; the mean's own variance is included."""
    if not charged:
        return expected, 0.0
    mean = fmean(charged)
    variance = fmean((dollars - mean) ** 2 for dollars in charged)
    return number * mean, variance * number * (1 + number / len(charged))
