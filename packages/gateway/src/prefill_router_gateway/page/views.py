"""Converts receipts, targets and the trade-off of recent requests to the page's JSON."""

import math
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, TypeVar, cast

import numpy as np

from prefill_router.endpoints import Breakers, Usage
from prefill_router.router import VersionState
from prefill_router.targets import Pool
from prefill_router_gateway.decide import BudgetState
from prefill_router_gateway.page.shapes import (
    AttemptView,
    BudgetView,
    CurvePoint,
    CurveView,
    DecisionDetail,
    DecisionRow,
    DeductionView,
    FigureView,
    InsteadView,
    KeySpend,
    Move,
    RangeView,
    SavingsView,
    Single,
    SpendWindow,
    StepView,
    Stretch,
    SwitchPoint,
    TargetHealth,
    TargetSpend,
    TargetView,
    Timings,
    Tokens,
    VersionsView,
    WhatIf,
)
from prefill_router_gateway.receipts import (
    ReceiptsSummary,
    Recorded,
    RequestSaving,
    Savings,
    explain,
    version_of,
    version_step_of,
)
from prefill_router_gateway.records import Receipt

Shape = TypeVar("Shape")
_MANY, _OFTEN = 20, 0.1
"""The number of calls and the share of failures from which on a target counts as failing."""
_MOST_STEPS = 20  # steps of versions
_GOOD = ("answered", "refused", "disconnected")


def pick(shape: type[Shape], values: Mapping[str, Any], *sources: object) -> Shape:
    """Fill a shape's fields: from `known`, or else from the first source that has them.

    Raises:
        AttributeError: A field is in none of them.
    """
    fields = {}
    for name in shape.__annotations__:
        source = next((each for each in sources if hasattr(each, name)), None)
        fields[name] = values[name] if name in values else getattr(source, name)
    return cast("Shape", fields)


def budget(state: BudgetState, now: float) -> BudgetView:
    """What remains of a budget, and of its lease where replicas share it."""
    leased = max(0.0, state.leased) if math.isfinite(state.leased) else None
    values = {"resets_at": now + state.seconds_left, "leased": leased}
    return pick(BudgetView, values, state, state.budget)


def row(receipt: Receipt) -> DecisionRow:
    """One row of the list of recent decisions."""
    choice, outcome = receipt.choice, receipt.outcome
    target = outcome.target or choice.target
    agent = _read_agent(receipt)
    return pick(
        DecisionRow,
        {
            "target": target,
            "agent": agent.get("agent"),
            "kind": agent.get("kind") if agent.get("agent") else None,
            "probability": choice.correctness.get(target),
            "estimated_cost": choice.estimated_cost.get(target),
            "outcome": outcome.kind,
        },
        *(choice, receipt, outcome),
    )


def _read_agent(receipt: Receipt) -> Mapping[str, Any]:
    """What the receipt says of the agent that asked; empty for none."""
    agent = receipt.details.get("agent")
    return agent if isinstance(agent, Mapping) else {}


def detail(receipt: Receipt, instead: RequestSaving | None = None) -> DecisionDetail:
    """Everything about one decision."""
    choice, outcome, usage = receipt.choice, receipt.outcome, receipt.outcome.usage or Usage()
    explanation = explain(receipt)
    again = explanation.decision
    below, above = (None, None) if again is None else (again.changes_below, again.changes_above)
    return pick(
        DecisionDetail,
        {
            "decision": row(receipt),
            "targets": [pick(TargetView, {}, line) for line in explanation.targets],
            "attempts": [pick(AttemptView, {}, attempt) for attempt in outcome.attempts],
            "path": [] if again is None else [pick(Stretch, {}, segment) for segment in again.path],
            "below": None if below is None else SwitchPoint(lam=below.lam_to, target=below.target),
            "above": None
            if above is None
            else SwitchPoint(lam=above.lam_from, target=above.target),
            "tokens": Tokens(
                input=usage.input_tokens,
                cached=usage.cached_tokens,
                output=usage.output_tokens,
                reasoning=usage.reasoning_tokens,
                estimated=outcome.usage_is_estimated,
            ),
            "timings": Timings(
                decision=receipt.decision_seconds,
                forecast=receipt.forecast_seconds,
                first_byte=outcome.first_byte_seconds,
                total=outcome.total_seconds,
            ),
            "in_session": choice.session is not None,
            "type": _read_agent(receipt).get("type"),
            "failing_steps": _read_agent(receipt).get("failing_steps", 0),
            "version": version_of(receipt),
            "version_step": version_step_of(receipt),
            "instead": None if instead is None else pick(InsteadView, {}, instead),
        },
        *(receipt, choice),
    )


def health(pool: Pool, name: str, breakers: Breakers, ended: Sequence[Receipt]) -> TargetHealth:
    """A target's state, and its performance in the requests that ended recently."""
    target = pool[name]
    attempts = (a for r in ended for a in r.outcome.attempts if a.target == name)
    calls = [a for a in attempts if a.end != "breaker_open"]  # an open breaker makes no call
    first = [
        r.outcome.first_byte_seconds
        for r in ended
        if r.outcome.target == name and r.outcome.first_byte_seconds is not None
    ]
    failures = [call.failure for call in calls if call.failure is not None]
    middle, most = np.quantile(first, [0.5, 0.95]).tolist() if first else (None, None)
    return pick(
        TargetHealth,
        {
            "target": name,
            "provider": pool.provider_of(name).name,
            "breaker": breakers.state(name),
            "retry_in": breakers.retry_in(name),
            "last_failure": failures[-1] if failures else None,
            "requests": len(calls),
            "failures": sum(call.end not in _GOOD for call in calls),
            "first_byte_p50": middle,
            "first_byte_p95": most,
            "accepts": list(target.accepts),
            "serves": list(pool.serves(name)),
        },
        target,
    )


def failing(rows: Sequence[TargetHealth]) -> list[str]:
    """A sentence for each target that was called often and fails often."""
    return [
        f"{row['failures'] / row['requests']:.0%} of the last {row['requests']} calls of "
        f"{row['target']} failed"
        for row in rows
        if row["requests"] >= _MANY and row["failures"] >= _OFTEN * row["requests"]
    ]


def spend(summary: ReceiptsSummary, compared: Savings | None, since: float) -> SpendWindow:
    """Spending since a point in time, in seconds since 1970, beside that at the baseline."""
    return pick(
        SpendWindow,
        {
            "since": since,
            "by_target": [
                pick(TargetSpend, {"target": n}, total) for n, total in summary.by_target.items()
            ],
            "by_key": [
                pick(KeySpend, {"key": key}, total) for key, total in summary.by_key.items()
            ],
            "baseline": None if compared is None else compared.baseline,
            "compared": 0 if compared is None else compared.requests,
            "compared_cost": 0.0 if compared is None else compared.spent,
            "at_baseline": None if compared is None else compared.at_baseline,
        },
        summary,
    )


_THOUSAND = 1000


def curve(recorded: Recorded, receipts: Sequence[Receipt]) -> CurveView:
    """The accuracy-cost curve of the requests with a forecast."""
    thin_curve = recorded.curve().thin()
    points = zip(
        thin_curve.lam.tolist(), thin_curve.accuracy.tolist(), thin_curve.cost.tolist(), strict=True
    )
    return CurveView(
        since=min((r.at for r in receipts), default=None) if len(recorded) else None,
        requests=len(recorded),
        points=[CurvePoint(lam=lam, accuracy=p, cost=_cost_of_thousand(c)) for lam, p, c in points],
        singles=[
            Single(target=name, accuracy=point.accuracy, cost=_THOUSAND * point.cost)
            for name, point in recorded.singles().items()
            if math.isfinite(point.accuracy) and math.isfinite(point.cost)
        ],
    )


def whatif(recorded: Recorded, *, now: float, then: float) -> WhatIf:
    """What another lam would have changed."""
    before, after = recorded.at(now), recorded.at(then)
    return WhatIf(
        now=_make_point(recorded, now),
        then=_make_point(recorded, then),
        requests=len(recorded),
        changed=int((before != after).sum()),
        moves=[Move(origin=a, to=b, requests=n) for a, b, n in recorded.moves(before, after)],
    )


def _make_point(recorded: Recorded, lam: float) -> CurvePoint:
    point = recorded.point(recorded.at(lam))
    is_known = len(recorded) > 0
    return CurvePoint(
        lam=lam,
        accuracy=point.accuracy if is_known else 0.0,
        cost=_cost_of_thousand(point.cost),
    )


def _cost_of_thousand(cost: float) -> float | None:
    return _THOUSAND * cost if math.isfinite(cost) else None


def savings(report: Savings) -> SavingsView:
    """Savings as the page shows them."""
    ranges = ("saved", "share", "net", "expected_gain", "observed")
    values = {name: pick(RangeView, {}, getattr(report, name)) for name in ranges}
    deducted = [pick(DeductionView, {}, deduction) for deduction in report.deducted]
    return pick(SavingsView, {**values, "deducted": deducted, "notes": [*report.notes()]}, report)


def versions(state: VersionState, serving: str) -> VersionsView:
    """The versions as the page shows them; raises nothing."""
    return VersionsView(
        serving=serving,
        versions=len(state.versions),
        steps=[
            StepView(
                at=datetime.fromisoformat(step.at).timestamp(),
                words=step.words,
                evidence=[FigureView(name=name, value=value) for name, value in step.figures()],
            )
            for step in state.steps[: -_MOST_STEPS - 1 : -1]
        ],
    )
