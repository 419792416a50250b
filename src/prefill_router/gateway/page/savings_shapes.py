"""The JSON of the page's savings, and how it is made."""

from typing import TypedDict

from prefill_router.gateway.page.views import pick
from prefill_router.gateway.receipts import Savings


class RangeView(TypedDict):
    """An estimate with its 95 % interval."""

    value: float | None
    low: float | None
    high: float | None


class DeductionView(TypedDict):
    """What routing itself cost, of one kind; `dollars` is None where it isn't counted."""

    kind: str
    dollars: float | None
    items: int


class SavingsView(TypedDict):
    """The savings against one target alone, as in `gateway.receipts.Savings`."""

    since: float
    baseline: str
    chosen_by: str
    requests: int
    spent: float
    at_baseline: float
    saved: RangeView
    share: RangeView
    net: RangeView
    deducted: list[DeductionView]
    expected: float | None
    expected_baseline: float | None
    expected_gain: RangeView
    observed: RangeView
    scored: int
    notes: list[str]


class SavingsPanel(TypedDict):
    """The savings, or why they aren't known."""

    problem: str | None
    savings: SavingsView | None


def savings_view(found: Savings) -> SavingsView:
    """Savings as the page shows them."""
    ranges = ("saved", "share", "net", "expected_gain", "observed")
    known = {name: pick(RangeView, {}, getattr(found, name)) for name in ranges}
    deducted = [pick(DeductionView, {}, one) for one in found.deducted]
    return pick(SavingsView, {**known, "deducted": deducted, "notes": [*found.notes()]}, found)
