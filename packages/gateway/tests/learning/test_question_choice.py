"""Which answers are labelled: at the recorded chance, within the budget, more where labels help."""

import numpy as np
import pytest

from prefill_router_gateway.learning import expected_gain, propensities
from prefill_router_gateway.learning.side_plan import FLOOR, chance


def test_an_uncertain_choice_teaches_more_than_a_clear_one() -> None:
    cost = np.array([1e-5, 2e-5])
    close = expected_gain(np.array([0.70, 0.72]), cost, 0.9)
    clear = expected_gain(np.array([0.05, 0.95]), cost, 0.9)
    assert (close > 10 * clear).all()


def test_the_expected_spending_is_what_may_be_spent_and_the_floor_holds() -> None:
    random = np.random.default_rng(0)
    gain, price = random.random((500, 4)), random.random((500, 4)) * 1e-3
    price[:20, 1] = np.nan
    gain[30] = np.nan
    dollars = 0.1
    chances = propensities(gain, price, dollars)
    assert np.nansum(chances * price) == pytest.approx(dollars, rel=1e-6)
    assert (chances[:20, 1] == 0).all()
    askable = ~np.isnan(price)
    assert chances[askable].min() >= FLOOR * dollars / np.nansum(price) * (1 - 1e-9)
    worth = gain[40:] / price[40:]
    better, worse = worth > np.median(worth) * 4, worth < np.median(worth)
    assert chances[40:][better].mean() > 3 * chances[40:][worse].mean()


def test_a_choice_that_is_beyond_doubt_teaches_nothing_and_never_less() -> None:
    random = np.random.default_rng(1)
    for _ in range(300):
        correctness, cost = random.random(5), 10 ** random.uniform(-7, 0, 5)
        correctness[0] = 1e-6 * random.random()
        assert (expected_gain(correctness, cost, 1 - 10 ** random.uniform(-6, 0)) >= 0).all()


@pytest.mark.parametrize("dollars", [1e-4, 0.05, 0.2, 1.0])
def test_worth_may_differ_by_any_factor(dollars: float) -> None:
    random = np.random.default_rng(2)
    gain = 10 ** random.uniform(-320, 0, (200, 4))
    gain[::7] = 0.0
    price = random.random((200, 4)) * 1e-2
    chances = propensities(gain, price, dollars)
    assert ((chances >= 0) & (chances <= 1)).all()
    spent = float((chances * price).sum())
    assert spent <= dollars * (1 + 1e-9)
    teaches = gain / price > (gain / price).max() * 1e-9
    assert spent == pytest.approx(dollars, rel=1e-9) or (chances[teaches] == 1).all()


def test_all_are_labelled_where_the_budget_is_large_enough() -> None:
    price = np.array([[1.0, np.nan], [2.0, 3.0]])
    assert propensities(np.zeros((2, 2)), price, 6.0).tolist() == [[1, 0], [1, 1]]
    assert propensities(np.zeros((2, 2)), price * 0, 0.0).tolist() == [[1, 0], [1, 1]]


def test_without_forecasts_all_that_cost_the_same_have_the_same_chance() -> None:
    price = np.full((50, 3), 0.01)
    for gain in (np.nan, 0.0):
        assert propensities(np.full((50, 3), gain), price, 0.3) == pytest.approx(
            np.full((50, 3), 0.2)
        )


def test_the_draw_is_uniform_and_the_same_again() -> None:
    draws = [chance(0, f"pr_{i}", "small") for i in range(2000)]
    assert draws == [chance(0, f"pr_{i}", "small") for i in range(2000)]
    assert draws[:5] != [chance(1, f"pr_{i}", "small") for i in range(5)]
    assert np.histogram(draws, 4, (0, 1))[0] == pytest.approx([500] * 4, abs=80)
