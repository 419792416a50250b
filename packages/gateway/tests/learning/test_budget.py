"""What the learner spends: never more than the limits, and nothing twice."""

from contextlib import closing
from pathlib import Path

import pytest

from prefill_router.errors import ConfigError
from prefill_router_gateway.learning import BudgetEntry, BudgetLimits, LearningBudget
from prefill_router_gateway.receipts import SideAnswer, open_learning, read_learning

ENTRY = BudgetEntry(id="pr_1", target="small", purpose="side")
ANSWER = SideAnswer(id="pr_1", target="small", at=1.0, propensity=0.5, answer="x")


def test_what_was_intended_counts_until_it_is_charged_and_survives_a_kill(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/r.sqlite"
    with closing(open_learning(url)) as store:
        budget = LearningBudget(store, BudgetLimits(per_day=1.0), clock=lambda: 100.0)
        budget.reserve(ENTRY, 0.3)
        assert budget.available == pytest.approx(0.7)
    with closing(open_learning(url)) as store:
        budget = LearningBudget(store, BudgetLimits(per_day=1.0), clock=lambda: 100.0)
        assert budget.spending() == 0.3
        assert budget.paid_cells("side") == {("pr_1", "small")}
        assert budget.interrupted_calls("side") == [("pr_1", "small", 0.3)]
        budget.settle(ENTRY, 0.3, 0.1, [ANSWER])
        assert budget.spending() == 0.1
        assert budget.interrupted_calls("side") == []
        assert list(read_learning(url, SideAnswer)) == [ANSWER]


def test_retries_add_up_and_what_cost_nothing_may_be_asked_again(tmp_path: Path) -> None:
    with closing(open_learning(str(tmp_path / "r.sqlite"))) as store:
        budget = LearningBudget(store, BudgetLimits(in_all=1.0))
        for charged in (0.2, 0.1):
            budget.reserve(ENTRY, 0.3)
            budget.settle(ENTRY, 0.3, charged)
        assert budget.spending() == pytest.approx(0.3)
        other = BudgetEntry(id="pr_2", target="small", purpose="side")
        budget.reserve(other, 0.3)
        budget.settle(other, 0.3, 0.0)
        assert budget.paid_cells("side") == {("pr_1", "small")}


def test_a_day_ends_and_the_limit_in_all_stays(tmp_path: Path) -> None:
    now = [86_400.0 * 5 - 1]
    with closing(open_learning(str(tmp_path / "r.sqlite"))) as store:
        budget = LearningBudget(store, BudgetLimits(per_day=0.5, in_all=0.8), clock=lambda: now[0])
        budget.reserve(ENTRY, 0.5)
        budget.settle(ENTRY, 0.5, 0.5, [ANSWER])
        assert budget.available == 0
        now[0] += 1
        assert budget.available == pytest.approx(0.3)
        assert budget.spending(today=True) == 0


def test_a_budget_needs_a_limit() -> None:
    with pytest.raises(ConfigError, match="--per-day, --max-cost or both"):
        BudgetLimits()
    with pytest.raises(ConfigError, match="--per-day is -1"):
        BudgetLimits(per_day=-1)
