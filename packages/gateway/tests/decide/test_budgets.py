"""Budgets: lam falls as they run out, and what is under way counts."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from packages.gateway.tests.decide.deciders import (
    AT,
    THREE_TARGETS,
    build_forecast,
    outcome,
    parts,
    set_up_decider,
)
from packages.gateway.tests.decide.test_eligibility import refusal
from prefill_router.policy import Argmax
from prefill_router_gateway.decide import Budgets, SteadyClock
from prefill_router_gateway.settings import BudgetSettings

DAY = 86_400.0
NOON = AT // DAY * DAY + DAY / 2
TEN_DOLLARS = BudgetSettings(dollars=10, per="day")
FORECAST = build_forecast(0.2, 0.5, 0.9)


def budgets_after(spent: float, budget: BudgetSettings = TEN_DOLLARS) -> Budgets:
    budgets = Budgets([budget])
    budgets.spend(None, spent, NOON)
    return budgets


@pytest.mark.parametrize(
    ("spent", "lam"), [(0, 0.8), (5, 0.8), (6, 0.64), (7.5, 0.4), (10, 0.0), (12, 0.0)]
)
def test_lam_falls_in_a_straight_line(spent: float, lam: float) -> None:
    allowance = budgets_after(spent).adjust_lam(0.8, None, NOON)
    assert allowance.lam == pytest.approx(lam)
    assert allowance.exhausted is (spent >= 10)


@settings(deadline=None)
@given(
    st.lists(st.floats(0, 5), max_size=8),
    st.floats(0, 0.99),
    st.floats(0, 1),
    st.booleans(),
)
def test_lam_never_rises_as_more_is_spent(
    costs: list[float],
    soft: float,
    requested_lam: float,
    reserve: bool,
) -> None:
    budgets = Budgets([BudgetSettings(dollars=10, per="hour", soften_from=soft)])
    last = budgets.adjust_lam(requested_lam, "ann", NOON).lam
    assert last == requested_lam
    for i, cost in enumerate(costs):
        if reserve:
            budgets.reserve(f"{i}", "ann", cost)
        else:
            budgets.spend("ann", cost, NOON + i)
        now = budgets.adjust_lam(requested_lam, "ann", NOON + i).lam
        assert 0 <= now <= last
        last = now


def test_a_new_hour_or_day_begins_at_nothing() -> None:
    budgets = Budgets(
        [BudgetSettings(dollars=1, per="hour"), BudgetSettings(dollars=10, per="day")]
    )
    midnight = NOON + DAY / 2
    budgets.spend(None, 1.0, midnight - 1)
    assert budgets.adjust_lam(1.0, None, midnight - 1).lam == 0
    assert budgets.adjust_lam(1.0, None, midnight).lam == 1
    assert [s.spent for s in budgets.states(midnight - 1)] == [1, 1]
    assert [s.seconds_left for s in budgets.states(midnight - 1)] == [1, 1]
    assert [s.spent for s in budgets.states(midnight)] == [0, 0]
    assert [s.left for s in budgets.states(midnight - 1)] == [0, 9]
    budgets.spend(None, 2.0, midnight)
    budgets.spend(None, 4.0, midnight - 1)  # it ended before, and is recorded late
    assert [s.spent for s in budgets.states(midnight)] == [2, 2]
    assert [s.spent for s in budgets.states(midnight - 1)] == [5, 5]  # the clock was set back


def test_keys_have_their_own_and_the_least_counts() -> None:
    own = BudgetSettings(dollars=2, per="day", key="ann")
    budgets = Budgets([TEN_DOLLARS, own])
    budgets.spend("ann", 1.5, NOON)
    budgets.spend("bob", 3.0, NOON)
    assert [s.spent for s in budgets.states(NOON)] == [4.5, 1.5]
    assert budgets.adjust_lam(1.0, "ann", NOON).lam == pytest.approx(0.5)
    assert budgets.adjust_lam(1.0, "bob", NOON).lam == 1
    budgets.spend("bob", 3.0, NOON)
    assert budgets.adjust_lam(1.0, "bob", NOON).lam == pytest.approx(0.5)
    assert budgets.adjust_lam(1.0, "ann", NOON).lam == pytest.approx(0.5)


def test_what_is_under_way_counts_until_it_has_ended() -> None:
    budgets = budgets_after(5.0)
    budgets.reserve("one", "ann", 2.5)
    budgets.reserve("two", None, 1.5)
    assert budgets.adjust_lam(1.0, None, NOON).lam == pytest.approx(0.2)
    assert budgets.release("one") == "ann"
    assert budgets.adjust_lam(1.0, None, NOON).lam == pytest.approx(0.7)
    assert budgets.release("one") is None
    assert budgets.release("two") is None
    assert budgets.adjust_lam(1.0, None, NOON).lam == 1


def test_nothing_is_left_set_aside_by_rounding() -> None:
    budgets = budgets_after(0.0)
    for i in range(1000):
        budgets.reserve(f"{i}", "ann", 0.1 + i / 7)
    for i in range(1000):
        budgets.release(f"{i}")
    assert budgets.states(NOON)[0].reserved == 0


def test_a_budget_that_stops_refuses_and_says_until_when() -> None:
    budgets = budgets_after(10.0, BudgetSettings(dollars=10, per="day", stop=True))
    error = refusal(lambda: budgets.adjust_lam(0.5, None, NOON + 0.5))
    assert (error.status, error.code) == (429, "budget_spent")
    assert error.headers == {"retry-after": "43200"}
    nearly_spent = budgets_after(9.0, BudgetSettings(dollars=10, per="day", stop=True))
    nearly_spent.reserve("one", None, 2.0)
    error = refusal(lambda: nearly_spent.adjust_lam(0.5, None, NOON))
    assert error.headers == {"retry-after": "1"}
    assert "in flight" in str(error)
    nearly_spent.release("one")
    assert nearly_spent.adjust_lam(0.5, None, NOON).lam > 0


def test_of_two_that_stop_the_longer_wait_is_told() -> None:
    limits = [BudgetSettings(dollars=1, per=per, stop=True) for per in ("hour", "day")]
    budgets = Budgets(limits)
    budgets.spend(None, 1.0, NOON)
    assert refusal(lambda: budgets.adjust_lam(1, None, NOON)).headers == {"retry-after": "43200"}


def test_every_tenth_is_noted_once() -> None:
    budgets = Budgets([TEN_DOLLARS])
    notes = []
    for i in range(101):
        notes += [
            budgets.adjust_lam(0.5, None, NOON + i).note,
            budgets.adjust_lam(0.9, None, NOON + i).note,
        ]
        budgets.spend(None, 0.1, NOON + i)
    messages = [note for note in notes if note is not None]
    assert len(messages) == 10
    assert messages[0].startswith("55 % of the budget of the gateway, 10 dollars per day, is used")
    assert messages[-1].endswith("lam is lowered to 0 % of what is requested")
    assert budgets.adjust_lam(0.5, None, NOON + DAY).note == (
        "a new day: the budget of the gateway, 10 dollars per day, is unspent, and lam is as "
        "requested"
    )
    assert budgets.adjust_lam(0.5, None, NOON + 2 * DAY).note is None


def test_notes_dont_come_again_as_reservations_go_up_and_down() -> None:
    budgets = budgets_after(4.5)
    notes = []
    for i in range(5):
        budgets.reserve("one", None, 1.0)
        notes.append(budgets.adjust_lam(0.5, None, NOON + i).note)
        budgets.release("one")
        notes.append(budgets.adjust_lam(0.5, None, NOON + i).note)
    assert [note is None for note in notes] == [False, *[True] * 9]


def test_what_was_spent_outlives_a_reload() -> None:
    budgets = Budgets()
    budgets.spend("ann", 3.0, NOON)
    assert budgets.adjust_lam(0.5, "ann", NOON).lam == 0.5
    budgets.use([BudgetSettings(dollars=4, per="day", key="ann"), TEN_DOLLARS])
    assert budgets.adjust_lam(0.5, "ann", NOON).lam == pytest.approx(0.25)
    assert [s.spent for s in budgets.states(NOON)] == [3, 3]


def test_receipts_bring_back_what_was_spent() -> None:
    budgets = Budgets([TEN_DOLLARS, BudgetSettings(dollars=10, per="hour", key="ann")])
    budgets.restore([(None, NOON - 3600, 1.0), ("ann", NOON, 2.0), ("bob", NOON + 1, 4.0)])
    assert [s.spent for s in budgets.states(NOON + 2)] == [7, 2]


def test_a_spent_budget_leaves_the_cheapest_whatever_the_policy() -> None:
    budgets = ({"dollars": 0.001, "per": "day"},)
    setup = set_up_decider(parts(*THREE_TARGETS.pool, policy=Argmax()), budgets=budgets)
    choice = setup.decide(FORECAST)
    assert (choice.target, choice.lam) == ("large", 0.5)
    setup.decider.reserve(choice, key="ann")
    assert setup.decide(FORECAST).order == ("small", "middle", "large")
    assert setup.decide("deadline").order == ("small", "middle", "large")
    setup.decider.record_outcome(choice, outcome("large"), cost=0.00075, at=AT)
    next_choice = setup.decide(FORECAST)
    assert (next_choice.target, next_choice.lam_asked) == ("large", 0.5)
    assert next_choice.lam == pytest.approx(0.25)
    assert len(setup.messages) == 1
    assert [s.spent for s in setup.budgets.states(AT)] == [0.00075]


def test_budgets_set_aside_what_nine_answers_of_ten_do_not_exceed() -> None:
    setup = set_up_decider(budgets=({"dollars": 1, "per": "day"},))
    choice = setup.decide(replace(FORECAST, output=np.full(3, 50.0), output_high=np.full(3, 400.0)))
    setup.decider.reserve(choice, key=None)
    [state] = setup.budgets.states(AT)
    price = THREE_TARGETS.pool[choice.target].input_price or 0
    assert state.reserved == pytest.approx((100 + 4 * 400) * price / 1e6)
    assert choice.estimated_cost[choice.target] == pytest.approx((100 + 4 * 50) * price / 1e6)
    plain = setup.decide(FORECAST)
    assert plain.high_cost == plain.estimated_cost[plain.target]


def test_a_key_pays_for_what_it_asked() -> None:
    setup = set_up_decider(budgets=({"dollars": 1, "per": "day", "key": "ann", "stop": True},))
    choice = setup.decide(FORECAST, key="ann")
    setup.decider.reserve(choice, key="ann")
    setup.decider.record_outcome(choice, outcome("small"), cost=1.0, at=AT)
    error = refusal(lambda: setup.decide(FORECAST, key="ann", named="small"))
    assert (error.status, error.code) == (429, "budget_spent")
    assert setup.decide(FORECAST, key="bob").lam == 0.5


def test_a_spent_budget_leaves_the_cheapest_outside_the_share_and_within_conversations() -> None:
    budgets = ({"dollars": 1, "per": "day"},)
    outside_share = set_up_decider(budgets=budgets, traffic={"share": 0.0, "otherwise": "large"})
    in_conversation = set_up_decider(budgets=budgets, sessions={"margin": 2.0})
    in_conversation.sessions.record_answer("5" * 32, target="large", tokens=10, at=AT)
    for setup, reason in ((outside_share, "share"), (in_conversation, "session")):
        choice = setup.decide(FORECAST, session="5" * 32, lam_asked=0.0)
        assert (choice.target, choice.reason) == ("large", reason)
        setup.budgets.spend(None, 1.0, AT)
        for forecast in (FORECAST, "deadline"):
            assert setup.decide(forecast, session="5" * 32, lam_asked=1.0).target == "small"


@pytest.mark.parametrize("jump", [3 * DAY, -3 * DAY, 3700.0, -3700.0])
def test_what_is_spent_stays_spent_when_the_clock_jumps(jump: float) -> None:
    now = 50.0
    budgets = Budgets(
        [TEN_DOLLARS, BudgetSettings(dollars=10, per="hour")], steady=SteadyClock(clock=lambda: now)
    )
    budgets.spend(None, 6, NOON)
    now += 10
    assert budgets.adjust_lam(0.8, None, NOON + 10 + jump).lam == pytest.approx(0.64)
    budgets.spend(None, 1.5, NOON + 10 + jump)
    now += 10
    assert budgets.adjust_lam(0.8, None, NOON + 20 + jump).lam == pytest.approx(0.4)
    assert [state.spent for state in budgets.states(NOON + 20 + jump)] == [7.5, 7.5]
    now += 10  # it is set right again
    assert budgets.adjust_lam(0.8, None, NOON + 30).lam == pytest.approx(0.4)


def test_a_jump_that_lasts_is_believed_and_can_be_taken_back() -> None:
    now = 50.0
    budgets = Budgets([TEN_DOLLARS], steady=SteadyClock(clock=lambda: now))
    budgets.spend(None, 6, NOON)
    budgets.states(NOON + DAY)
    now += 3601
    assert budgets.states(NOON + DAY + 3601)[0].spent == 0
    budgets.spend(None, 1, NOON + DAY + 3601)
    budgets.states(NOON)
    now += 3601
    assert budgets.states(NOON + 3601)[0].spent == 6


def test_a_clock_that_runs_a_little_fast_is_followed() -> None:
    now = 0.0
    steady = SteadyClock(clock=lambda: now)
    for minute in range(1000):
        now = 60.0 * minute
        assert steady(NOON + now * 1.01) == NOON + now * 1.01
