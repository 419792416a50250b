"""An unknown cost is a question mark everywhere, and never zero."""

import json
import math
from pathlib import Path
from typing import Any

import pytest

from packages.gateway.tests.browser import serve_app
from packages.gateway.tests.page.app import PageApp
from packages.gateway.tests.page.source import FakeSource
from packages.gateway.tests.page.tab import tab
from packages.gateway.tests.receipts.example_receipts import START, example_receipt, write_receipts
from packages.router.tests.commands import check_refused, run_ok
from prefill_router_gateway import Receipt
from prefill_router_gateway.page import views
from prefill_router_gateway.page.shapes import (
    CurveView,
    Spend,
    SpendWindow,
    WhatIf,
)
from prefill_router_gateway.receipts import Recorded, explain, summary

pytestmark = pytest.mark.slow


def build_unpriced(number: int, **choice: Any) -> Receipt:
    return example_receipt(number, cost=None, choice={"estimated_cost": {}, **choice})


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return write_receipts(tmp_path / "receipts.sqlite", [build_unpriced(n) for n in range(8)])


def test_the_page_tells_no_sum_of_unknown_costs(file: Path) -> None:
    sums = summary(str(file), START)
    assert (sums.cost, sums.unknown) == (None, 8)
    assert {(t.cost, t.unknown) for t in sums.by_target.values()} == {(None, 4)}
    write_receipts(file, [example_receipt(20, cost=0.5)])
    sums = summary(str(file), START)
    assert (sums.cost, sums.unknown) == (0.5, 8)
    assert [(t.cost, t.unknown) for t in sums.by_target.values()] == [(0.5, 4), (None, 4)]


def test_requests_that_nobody_answered_cost_nothing(tmp_path: Path) -> None:
    failure = example_receipt(1, cost=None, outcome={"target": None, "kind": "failed"})
    sums = summary(str(write_receipts(tmp_path / "receipts.sqlite", [failure])), START)
    assert (sums.cost, sums.unknown) == (0.0, 0)
    assert summary(str(tmp_path / "receipts.sqlite"), START + 100).cost == 0.0


def test_the_trade_off_without_prices_has_accuracies_alone() -> None:
    receipts = [build_unpriced(n) for n in range(4)]
    curve = views.curve(Recorded.of(receipts), receipts)
    assert {point["cost"] for point in curve["points"]} == {None}
    assert curve["points"][0]["accuracy"] == pytest.approx(0.925)
    assert curve["singles"] == []
    assert views.whatif(Recorded.of(receipts), now=0.1, then=0.9)["now"]["cost"] is None


def test_one_request_of_unknown_cost_makes_the_sum_unknown() -> None:
    recorded = Recorded.of([build_unpriced(0), example_receipt(1)])
    assert math.isnan(recorded.point(recorded.at(0.5)).cost)
    assert not math.isnan(recorded.point(recorded.at(0.5)).accuracy)


def test_replay(file: Path, tmp_path: Path) -> None:
    text = run_ok("replay", file, "--lam", 0.5)
    assert "$" not in text
    assert "?" in text
    rows = json.loads(run_ok("replay", file, "--lam", 0.5, "--json"))["settings"]
    assert {(row["estimated_cost"], row["observed_cost"]) for row in rows} == {(None, None)}
    check_refused("so there is no picture", "replay", file, "--out", tmp_path / "picture")


def test_explain(file: Path) -> None:
    text = run_ok("explain", "last", "--receipts", file)
    assert "$" not in text
    assert "cost: ?" in text
    decision = explain(build_unpriced(1)).decision
    assert decision is not None
    assert set(decision.estimated_cost.values()) == {None}


def test_canary(tmp_path: Path) -> None:
    reasons = ("share", "policy") * 4
    traffic = [build_unpriced(n, reason=r, session=f"s{n}") for n, r in enumerate(reasons)]
    text = run_ok("canary", write_receipts(tmp_path / "receipts.sqlite", traffic))
    (costs,) = (line for line in text.splitlines() if line.startswith("cost"))
    assert costs.split()[3:] == ["?", "?", "?"]


class UnpricedSource(FakeSource):
    """A gateway whose pool has no prices."""

    async def spend(self) -> Spend:
        view = await super().spend()
        windows = {name: self._unknown(view[name]) for name in ("hour", "day")}  # type: ignore[literal-required]
        return {**view, **windows, "budgets": []}  # type: ignore[typeddict-item]

    def _unknown(self, window: SpendWindow) -> SpendWindow:
        targets = [{**each, "cost": None} for each in window["by_target"]]
        totals = {"cost": None, "unknown": window["requests"], "compared": 0, "compared_cost": 0.0}
        baseline = {"baseline": None, "at_baseline": None}
        keys = [{**each, "cost": None} for each in window["by_key"]]
        return {**window, **totals, **baseline, "by_target": targets, "by_key": keys}  # type: ignore[typeddict-item, return-value]

    async def curve(self) -> CurveView:
        view = await super().curve()
        points = [{**point, "cost": None} for point in view["points"]]
        return {**view, "points": points, "singles": []}  # type: ignore[typeddict-item]

    async def whatif(self, lam: float) -> WhatIf:
        view = await super().whatif(lam)
        view["now"]["cost"] = view["then"]["cost"] = None
        return view


def test_the_page_shows_question_marks(browser: Any) -> None:
    with serve_app(PageApp(UnpricedSource(requests=20))) as url, tab(browser, url) as page:
        page.get_by_text("of them of unknown cost").first.wait_for()
        page.get_by_text("Without prices there is no cost to plot accuracy against.").wait_for()
        page.wait_for_selector("#whatif dd")
        assert page.locator("#spend-body .figures dd").first.inner_text().startswith("?")
        for part in ("#spend-body", "#whatif"):
            assert "$" not in page.locator(part).inner_text()
            assert "?" in page.locator(part).inner_text()
