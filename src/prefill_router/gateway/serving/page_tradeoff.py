"""The trade-off of the remembered requests, as the page draws it."""

import math
from collections.abc import Sequence

from prefill_router.gateway.page.shapes import Curve, CurvePoint, Move, Single, WhatIf
from prefill_router.gateway.receipts import Receipt, Recorded

_THOUSAND = 1000


def curve(recorded: Recorded, receipts: Sequence[Receipt]) -> Curve:
    """The accuracy-cost curve of the requests that have a forecast."""
    found = recorded.curve().thinned()
    points = zip(found.lam.tolist(), found.accuracy.tolist(), found.cost.tolist(), strict=True)
    return Curve(
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
