"""What came of asking, and how the run stands."""

from collections import Counter
from dataclasses import dataclass, field
from typing import Any, final

from prefill_router.harness.collecting.asking import OVER_LIMIT
from prefill_router.harness.collecting.enough import limit_for_the_rest
from prefill_router.harness.collecting.options import CollectOptions
from prefill_router.harness.collecting.planning import Plan
from prefill_router.harness.collecting.tally import Tally
from prefill_router.harness.runs.run import Run

INTERRUPTED = "interrupted"
"""Why the questions that it didn't come to were not asked."""


@final
@dataclass(frozen=True, kw_only=True)
class TargetSummary:
    """How the tasks of this time stand with one target.

    Attributes:
        target: Its name.
        answered: Tasks with an answer.
        missing: Tasks that it was asked without an answer, by reason.
        not_asked: The other tasks: never asked, or missing from before and to be asked again, which
            they weren't this time.
        missing_before: So many of those not asked are missing from before.
    """

    target: str
    answered: int
    missing: dict[str, int] = field(hash=False)
    not_asked: int
    missing_before: int


@final
@dataclass(frozen=True, kw_only=True)
class Summary:
    """What came of asking, and how the run stands.

    Attributes:
        calls: Calls that were made this time.
        answered: Questions that were answered this time.
        missing: Questions that stayed missing this time, by reason.
        not_asked: Questions that were not asked, by why.
        cost: US dollars of this time, as far as known.
        spent: US dollars of the whole run, as far as known.
        at_risk: US dollars that may have been billed for the run beyond that, at most.
        limit: The spending limit, in US dollars; None for none.
        limit_that_would_do: One that would let the rest be asked, as an estimate; None where
            nothing was left for the limit's sake.
        seconds: How long it took.
        targets: How the tasks stand with each target.
    """

    calls: int
    answered: int
    missing: dict[str, int] = field(hash=False)
    not_asked: dict[str, int] = field(hash=False)
    cost: float
    spent: float
    at_risk: float
    limit: float | None
    limit_that_would_do: float | None
    seconds: float
    targets: tuple[TargetSummary, ...]

    def to_dict(self) -> dict[str, Any]:
        """Plain values."""
        return {**vars(self), "targets": [vars(target) for target in self.targets]}


def summarise(
    run: Run, plan: Plan, tally: Tally, options: CollectOptions, *, seconds: float
) -> Summary:
    """What came of asking, and how the run stands now."""
    targets = _targets(run, plan, tally)
    left = tally.not_asked()
    over = OVER_LIMIT in left
    if rest := sum(target.not_asked for target in targets) - sum(left.values()):
        left[INTERRUPTED] = rest
    return Summary(
        **{**tally.to_dict(), "not_asked": left},
        spent=run.spent,
        at_risk=run.at_risk,
        limit=options.limit,
        limit_that_would_do=limit_for_the_rest(run, plan, options) if over else None,
        seconds=seconds,
        targets=targets,
    )


def _targets(run: Run, plan: Plan, tally: Tally) -> tuple[TargetSummary, ...]:
    """Each task is counted once, so that what wasn't asked this time is no part of the missing."""
    wanted = set(plan.ids)
    missing = {name: Counter(tally.missing_of(name)) for name in plan.pool.names}
    answered: Counter[str] = Counter()
    again: Counter[str] = Counter()
    for target, query_id, reason in run.outcomes():
        if target not in missing or query_id not in wanted:
            continue
        if reason is None:
            answered[target] += 1
        elif query_id in plan.finished[target]:
            missing[target][reason] += 1
        else:
            again[target] += 1
    return tuple(
        TargetSummary(
            target=name,
            answered=answered[name],
            missing=dict(missing[name]),
            not_asked=len(wanted) - answered[name] - missing[name].total(),
            missing_before=again[name] - sum(tally.missing_of(name).values()),
        )
        for name in plan.pool.names
    )
