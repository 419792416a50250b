"""Receipts, targets and the trade-off of the remembered requests, as the page shows them."""

import math
from collections.abc import Sequence

import numpy as np

from prefill_router.gateway.page.shapes import (
    AttemptView,
    CurvePoint,
    CurveView,
    DecisionDetail,
    DecisionRow,
    KeySpend,
    MinuteView,
    Move,
    Single,
    SingleTargetView,
    Stretch,
    SwitchPoint,
    TargetHealth,
    TargetSpend,
    TargetView,
    Timings,
    Tokens,
    WhatIf,
)
from prefill_router.gateway.proxy import Breakers
from prefill_router.gateway.receipts import Explanation, Receipt, ReceiptsSummary, Recorded, explain
from prefill_router.gateway.telemetry.recent import MinuteCounts
from prefill_router.router import Segment
from prefill_router.targets import Pool

_MANY, _OFTEN = 20, 0.1
"""Calls of a target from which on its failures are told, and the share that is."""
_GOOD = ("answered", "refused", "disconnected")


def row(receipt: Receipt) -> DecisionRow:
    """A row of the live decisions."""
    choice, outcome = receipt.choice, receipt.outcome
    target = outcome.target or choice.target
    return DecisionRow(
        id=choice.id,
        at=receipt.at,
        requested=receipt.requested,
        target=target,
        reason=choice.reason,
        fallback=choice.fallback,
        lam=choice.lam,
        probability=choice.correctness.get(target),
        estimated_cost=choice.estimated_cost.get(target),
        cost=receipt.cost,
        cost_is_estimated=receipt.cost_is_estimated,
        decision_seconds=receipt.decision_seconds,
        total_seconds=outcome.total_seconds,
        outcome=outcome.kind,
        status=outcome.status,
        endpoint=receipt.endpoint,
        stream=receipt.stream,
    )


def detail(receipt: Receipt) -> DecisionDetail:
    """All that is known of one decision."""
    choice, outcome = receipt.choice, receipt.outcome
    explanation = explain(receipt)
    below, above = _turns(explanation)
    again = explanation.decision
    return DecisionDetail(
        decision=row(receipt),
        targets=[
            TargetView(
                target=line.target,
                probability=line.probability,
                estimated_cost=line.estimated_cost,
                score=line.score,
                place=line.place,
                excluded=line.excluded,
            )
            for line in explanation.targets
        ],
        attempts=[
            AttemptView(target=a.target, end=a.end, status=a.status, seconds=a.seconds)
            for a in outcome.attempts
        ],
        path=[] if again is None else [_stretch(segment) for segment in again.path],
        below=below,
        above=above,
        tokens=_tokens(receipt),
        timings=Timings(
            decision=receipt.decision_seconds,
            forecast=receipt.forecast_seconds,
            first_byte=outcome.first_byte_seconds,
            total=outcome.total_seconds,
        ),
        router=receipt.router,
        policy=receipt.policy,
        policy_target=choice.policy_target,
        lam_asked=choice.lam_asked,
        novelty=choice.novelty,
        scored=receipt.scored,
        input_tokens=choice.input_tokens,
        in_session=choice.session is not None,
        key=receipt.key,
    )


def _turns(explanation: Explanation) -> tuple[SwitchPoint | None, SwitchPoint | None]:
    """Who would win at the next lower and the next higher lam."""
    if explanation.decision is None:
        return None, None
    below, above = explanation.decision.changes_below, explanation.decision.changes_above
    return (
        None if below is None else SwitchPoint(lam=below.lam_to, target=below.target),
        None if above is None else SwitchPoint(lam=above.lam_from, target=above.target),
    )


def _stretch(segment: Segment) -> Stretch:
    return Stretch(lam_from=segment.lam_from, lam_to=segment.lam_to, target=segment.target)


def _tokens(receipt: Receipt) -> Tokens:
    usage = receipt.outcome.usage
    return Tokens(
        input=None if usage is None else usage.input_tokens,
        cached=None if usage is None else usage.cached_tokens,
        output=None if usage is None else usage.output_tokens,
        reasoning=None if usage is None else usage.reasoning_tokens,
        estimated=receipt.outcome.usage_is_estimated,
    )


def health(pool: Pool, name: str, breakers: Breakers, ended: Sequence[Receipt]) -> TargetHealth:
    """How a target does, by the requests that ended lately."""
    target = pool[name]
    attempts = (a for r in ended for a in r.outcome.attempts if a.target == name)
    calls = [a for a in attempts if a.end != "breaker_open"]  # which is no call
    first = [
        r.outcome.first_byte_seconds
        for r in ended
        if r.outcome.target == name and r.outcome.first_byte_seconds is not None
    ]
    middle, most = np.quantile(first, [0.5, 0.95]).tolist() if first else (None, None)
    return TargetHealth(
        target=name,
        provider=pool.provider_of(name).name,
        breaker=breakers.state(name),
        retry_in=breakers.retry_in(name),
        requests=len(calls),
        failures=sum(call.end not in _GOOD for call in calls),
        first_byte_p50=middle,
        first_byte_p95=most,
        input_price=target.input_price,
        cached_input_price=target.cached_input_price,
        output_price=target.output_price,
        context_tokens=target.context_tokens,
        accepts=list(target.accepts),
        serves=list(pool.serves(name)),
    )


def failing(rows: Sequence[TargetHealth]) -> list[str]:
    """A sentence for each target that fails often, of those that were called often."""
    return [
        f"{row['failures'] / row['requests']:.0%} of the last {row['requests']} calls of "
        f"{row['target']} failed"
        for row in rows
        if row["requests"] >= _MANY and row["failures"] >= _OFTEN * row["requests"]
    ]


def spends(found: ReceiptsSummary) -> list[TargetSpend]:
    """What each target took."""
    return [
        TargetSpend(target=name, requests=total.requests, cost=total.cost)
        for name, total in found.by_target.items()
    ]


def keys(found: ReceiptsSummary) -> list[KeySpend]:
    """What each client's key asked for."""
    return [
        KeySpend(key=key, requests=total.requests, cost=total.cost)
        for key, total in found.by_key.items()
    ]


def minute(held: MinuteCounts) -> MinuteView:
    """One minute of the last hour."""
    return MinuteView(
        at=60.0 * held.number,
        requests=held.requests,
        failed=held.failed,
        fallbacks=held.fallbacks,
        cost=held.cost,
    )


def instead(found: ReceiptsSummary, target: str | None) -> SingleTargetView | None:
    """What one target alone would have cost; None where that isn't known."""
    if target is None or target not in found.instead.at:
        return None
    return SingleTargetView(target=target, cost=found.instead.at[target])


_THOUSAND = 1000


def curve(recorded: Recorded, receipts: Sequence[Receipt]) -> CurveView:
    """The accuracy-cost curve of the requests that have a forecast."""
    found = recorded.curve().thinned()
    points = zip(found.lam.tolist(), found.accuracy.tolist(), found.cost.tolist(), strict=True)
    return CurveView(
        since=min((r.at for r in receipts), default=None) if len(recorded) else None,
        requests=len(recorded),
        points=[CurvePoint(lam=lam, accuracy=p, cost=_of_thousand(c)) for lam, p, c in points],
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
        now=_point(recorded, now),
        then=_point(recorded, then),
        requests=len(recorded),
        changed=int((before != after).sum()),
        moves=[Move(origin=a, to=b, requests=n) for a, b, n in recorded.moves(before, after)],
    )


def _point(recorded: Recorded, lam: float) -> CurvePoint:
    point = recorded.point(recorded.at(lam))
    known = len(recorded) > 0
    return CurvePoint(
        lam=lam,
        accuracy=point.accuracy if known else 0.0,
        cost=_of_thousand(point.cost),
    )


def _of_thousand(cost: float) -> float | None:
    return _THOUSAND * cost if math.isfinite(cost) else None
