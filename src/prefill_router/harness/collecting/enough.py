"""Which spending limit would let the rest be asked."""

import math
from collections import Counter
from statistics import fmean

from prefill_router.harness.collecting.estimate import Typical
from prefill_router.harness.collecting.options import CollectOptions
from prefill_router.harness.collecting.planning import Plan, make_plan
from prefill_router.harness.runs.run import Run
from prefill_router.upstream.pricing import bound, cost_of

_DEVIATIONS = 2.0
"""A few calls at risk are most of what is charged, so that means alone fall short half the time."""


def limit_for_the_rest(run: Run, plan: Plan, options: CollectOptions) -> float:
    """A limit under which all that is left would be asked, as an estimate, in US dollars.

    It is what counts already; for each question left as much as questions to its target have been
    charged on average, what is at risk included, and two standard deviations of that sum, or, where
    none has been charged, what it is expected to cost; and the most that the dearest of them can
    cost, which must fit before it is asked.

    Args:
        run: The run as it stands now.
        plan: What was to be asked. Missing answers that would be asked again are among the rest.
        options: What is asked again, and what to expect of targets without answers.
    """
    rest = make_plan(plan.ids, plan.pool, run, retry=options.retry)
    typical = Typical(run, assume_output_tokens=options.assume_output_tokens)
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
    sums = [_sum(number[name], run.charged(name), expected[name]) for name in targets]
    margin = _DEVIATIONS * math.sqrt(sum(variance for _, variance in sums))
    return run.spent + run.at_risk + sum(mean for mean, _ in sums) + margin + most


def _sum(number: int, charged: list[float], expected: float) -> tuple[float, float]:
    """Of so many questions more: the mean and the variance, that of the known mean included."""
    if not charged:
        return expected, 0.0
    mean = fmean(charged)
    variance = fmean((dollars - mean) ** 2 for dollars in charged)
    return number * mean, variance * number * (1 + number / len(charged))
