"""The JSON of spending, and of the trade-off between accuracy and cost."""

from typing import Literal, TypedDict


class TargetSpend(TypedDict):
    """What one target took; its cost is None where it isn't known of any answered request."""

    target: str
    requests: int
    cost: float | None


class KeySpend(TypedDict):
    """What one client's key asked for; None for requests without a key, and for unknown costs."""

    key: str | None
    requests: int
    cost: float | None


class Instead(TypedDict):
    """What the compared requests would have cost at one target alone, estimated."""

    target: str
    cost: float


class SpendWindow(TypedDict):
    """Spending since one moment.

    Attributes:
        since: From when on.
        requests: How many came.
        cost: What they cost, as observed, where it is known; None where it is of none.
        unknown: Answered requests whose cost isn't known.
        by_target: Those that took anything, the dearest first.
        by_key: Whose requests they were, the dearest first.
        compared: How many answered requests `at_best` and `at_dearest` hold: the latest of those
            that know every present target's cost.
        compared_cost: What these cost; their estimates where nothing was observed.
        at_best: The single target with the greatest expected accuracy on these requests; None
            where there is no forecast to tell.
        at_dearest: The single target that would have cost most; None where prices are unknown.
    """

    since: float
    requests: int
    cost: float | None
    unknown: int
    by_target: list[TargetSpend]
    by_key: list[KeySpend]
    compared: int
    compared_cost: float
    at_best: Instead | None
    at_dearest: Instead | None


class BudgetState(TypedDict):
    """One budget, and what is left of it.

    Attributes:
        key: The name of the key it is for; None for the whole gateway.
        per: Its window.
        dollars: All of it.
        spent: In this window.
        soften_from: The share from which on lam falls.
        stop: Whether requests are refused once all is spent.
        resets_at: When the next window begins.
    """

    key: str | None
    per: Literal["hour", "day"]
    dollars: float
    spent: float
    soften_from: float
    stop: bool
    resets_at: float


class Spend(TypedDict):
    """Spending of the last hour and of this day (UTC), and the budgets."""

    hour: SpendWindow
    day: SpendWindow
    budgets: list[BudgetState]


class CurvePoint(TypedDict):
    """What the recorded requests would give at one lam.

    Attributes:
        lam: The trade-off.
        accuracy: Mean probability of the chosen targets.
        cost: Expected dollars per 1,000 requests; None where prices are unknown.
    """

    lam: float
    accuracy: float
    cost: float | None


class Single(TypedDict):
    """What the recorded requests would give at one target alone; as `CurvePoint`."""

    target: str
    accuracy: float
    cost: float


class Curve(TypedDict):
    """The accuracy-cost curve of the recorded traffic, expected.

    Attributes:
        since: The first request that counts; None where there is none.
        requests: How many have a forecast, and count.
        points: By rising lam, from 0 to 1; empty where no request counts.
        singles: Every target alone.
    """

    since: float | None
    requests: int
    points: list[CurvePoint]
    singles: list[Single]


class Move(TypedDict):
    """So many recorded requests would go from one target to another."""

    origin: str
    to: str
    requests: int


class WhatIf(TypedDict):
    """What another lam would have changed for the recorded requests.

    Attributes:
        now: At the lam that is set, before budgets.
        then: At the lam that is asked about.
        requests: How many count.
        changed: How many of them would have had another target.
        moves: From whom to whom, the most frequent first.
    """

    now: CurvePoint
    then: CurvePoint
    requests: int
    changed: int
    moves: list[Move]


class LamSet(TypedDict):
    """What was applied: the trade-off now, and the one before it."""

    lam: float
    before: float
