"""Leases of a budget: what a replica may spend, requests and gives back."""

import math

import pytest

from prefill_router_gateway.decide import Budgets, Sessions
from prefill_router_gateway.errors import RefusalError
from prefill_router_gateway.settings import BudgetSettings, SessionSettings
from prefill_router_gateway.shared import BudgetLeases
from prefill_router_gateway.shared.leases import SharedAffinity

HOUR = 3600.0
AT = 500_000 * HOUR
TEN_DOLLARS = BudgetSettings(dollars=10, per="hour", stop=True)


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


def build_lease(dollars: float, *, others: float = 0.0) -> tuple[Budgets, BudgetLeases, Clock]:
    """A budget of ten dollars, and a replica's lease of some of it."""
    clock, budgets = Clock(), Budgets([TEN_DOLLARS])
    budgets.shares = leases = BudgetLeases("me", share=0.2, clock=clock)
    leases.take_grants(budgets.states_of(None, AT), [[(dollars, others)]])
    return budgets, leases, clock


def test_a_replica_spends_its_lease_and_no_more() -> None:
    budgets, _, _ = build_lease(2)
    assert budgets.adjust_lam(0.5, None, AT).lam == 0.5
    budgets.reserve("one", None, 1.5)
    assert budgets.adjust_lam(0.5, None, AT).lam == 0.5
    budgets.reserve("two", None, 0.5)
    with pytest.raises(RefusalError, match="reserved by requests in flight") as caught:
        budgets.adjust_lam(0.5, None, AT)
    assert (caught.value.status, caught.value.code) == (429, "budget_spent")
    budgets.release("two")
    assert budgets.adjust_lam(0.5, None, AT).lam == 0.5


def test_what_others_spent_lowers_lam() -> None:
    budgets, _, _ = build_lease(2, others=7.5)
    assert budgets.adjust_lam(0.5, None, AT).lam == pytest.approx(0.25)
    (state,) = budgets.states(AT)
    assert (state.spent, state.left, state.leased) == (7.5, 2.5, 2)


def test_cut_off_without_a_lease_is_told_as_such() -> None:
    budgets, leases, _ = build_lease(2)
    budgets.spend(None, 2, AT)
    leases.is_cut_off = True
    with pytest.raises(RefusalError, match="can't reach the database") as caught:
        budgets.adjust_lam(0.5, None, AT)
    assert (caught.value.status, caught.value.code) == (503, "budget_unknown")
    soft = TEN_DOLLARS.model_copy(update={"stop": False})
    budgets.use([soft])
    allowance = budgets.adjust_lam(0.5, None, AT)
    assert (allowance.lam, allowance.exhausted) == (0.0, True)


def test_a_new_hour_needs_a_new_lease() -> None:
    budgets, leases, _ = build_lease(2)
    (state,) = budgets.states_of(None, AT + HOUR)
    assert (state.leased, leases.find_low([state])) == (0, [state])


def test_a_lease_is_renewed_once_half_is_spent_and_not_again_at_once_where_none_is_left() -> None:
    budgets, leases, clock = build_lease(2)
    assert leases.find_low(budgets.states_of(None, AT)) == []
    budgets.spend(None, 1.25, AT)
    states = leases.find_low(budgets.states_of(None, AT))
    ((_, claim),) = leases.grants(states, 3)
    assert (claim["want"], claim["parts"], claim["dollars"]) == (1.25, 6, 10)
    leases.take_grants(states, [[(2.0, 8.75)]])  # the grant adds nothing
    assert leases.find_low(budgets.states_of(None, AT)) == []
    clock.now += 1
    assert leases.find_low(budgets.states_of(None, AT)) == budgets.states_of(None, AT)


def test_requests_in_flight_that_need_more_than_a_lease_are_granted_it() -> None:
    budgets, leases, _ = build_lease(2)
    budgets.reserve("one", None, 3)
    ((_, claim),) = leases.grants(leases.find_low(budgets.states_of(None, AT)), 3)
    assert (claim["want"], claim["least"]) == (3, 1.25)


def test_an_idle_lease_is_given_back_but_for_what_is_in_flight() -> None:
    budgets, leases, clock = build_lease(2)
    budgets.spend(None, 0.5, AT)
    budgets.reserve("one", None, 0.25)
    assert list(leases.returns(lambda _: budgets.dollars_reserved(None))) == []
    clock.now += 31
    ((_, values),) = leases.returns(lambda _: budgets.dollars_reserved(None))
    assert values == (0.75, "", "hour", 500_000, "me", 0.75)
    ((_, values),) = leases.returns()
    assert values[0] == 0.5


def test_spending_is_written_in_sum_for_each_hour_and_day() -> None:
    budgets, leases, _ = build_lease(2)
    for _ in range(2):
        budgets.spend("ann", 0.25, AT)
    rows = leases.spending(sorted(leases.unwritten))
    day = int(AT // 86_400)
    assert [(row["owner"], row["per"], row["win"]) for row in rows] == [
        ("", "day", day),
        ("", "hour", 500_000),
        ("ann", "day", day),
        ("ann", "hour", 500_000),
    ]
    assert {(row["replica"], row["spent"]) for row in rows} == {("me", 0.5)}
    leases.forget({"hour": 500_000, "day": day + 1})
    assert {name[1] for name in leases.unwritten} == {"hour"}


def test_without_replicas_there_is_no_lease() -> None:
    (state,) = Budgets([TEN_DOLLARS]).states_of(None, AT)
    assert (state.leased, state.is_cut_off) == (math.inf, False)


@pytest.mark.parametrize("is_escalated", [False, True])
def test_other_replicas_learn_that_a_task_was_escalated(is_escalated: bool) -> None:
    mine, others = Sessions(SessionSettings()), Sessions(SessionSettings())
    writer, reader = (SharedAffinity(sessions, lambda: None) for sessions in (mine, others))
    mine.on_entry = writer.remember
    mine.record_answer("s", target="large", tokens=9, at=AT, is_escalated=is_escalated)
    (row,) = writer.begin()
    columns = [row.get(name) for name in ("name", "target", "owner", "tokens", "at")]
    reader.learn({row["name"]: ("session", "s")}, [tuple(columns)])
    assert others.last_state("s") == mine.last_state("s")
    state = others.last_state("s")
    assert state is not None
    assert state.is_escalated is is_escalated
