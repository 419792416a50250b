"""The optimum against trying everything, and what must hold for every assignment."""

import dataclasses
import re

import numpy as np
import pytest

from packages.router.tests.assignment.worlds import (
    find_best_right,
    find_least_cost,
    predictions_of,
    random_predictions,
    spread_of,
)
from prefill_router.assignment import assign
from prefill_router.errors import ConfigError
from prefill_router.policy import Predictions, choose

SEEDS = range(12)


def budget_at(predictions: Predictions, share: float) -> float:
    low, high = spread_of(predictions)
    return low + share * (high - low)


@pytest.mark.parametrize("seed", SEEDS)
def test_bound_best_and_ours_are_in_this_order(seed: int) -> None:
    predictions = random_predictions(6, 3, seed)
    for share in (0.02, 0.2, 0.5):
        budget = budget_at(predictions, share)
        assignment = assign(predictions, budget=budget)
        best = find_best_right(predictions, budget, {})
        assert assignment.bound >= best - 1e-9
        assert best >= assignment.expected_right - 1e-9
        assert assignment.expected_cost <= budget * (1 + 1e-9)
        assert assignment.gap == pytest.approx(
            assignment.bound - assignment.expected_right, abs=1e-12
        )


@pytest.mark.slow
@pytest.mark.parametrize("seed", SEEDS)
def test_the_same_with_limits_which_are_kept(seed: int) -> None:
    predictions = random_predictions(6, 3, seed)
    random = np.random.default_rng(seed)
    for share in (0.05, 0.4, 1.0):
        limits = {f"t{k}": int(random.integers(1, 4)) for k in (1, 2)}
        budget = budget_at(predictions, share)
        best = find_best_right(predictions, budget, limits)
        if best == -np.inf:
            with pytest.raises(ConfigError, match="the cheapest assignment"):
                assign(predictions, budget=budget, limits=limits)
            continue
        assignment = assign(predictions, budget=budget, limits=limits)
        assert assignment.bound >= best - 1e-9
        assert best >= assignment.expected_right - 1e-9
        assert assignment.expected_cost <= budget * (1 + 1e-9)
        assert all(assignment.counts[name] <= most for name, most in limits.items())


@pytest.mark.parametrize("seed", SEEDS)
def test_the_gap_is_less_than_one_upgrade(seed: int) -> None:
    predictions = random_predictions(400, 5, seed)
    most = np.ptp(predictions.correctness, axis=1).max()
    for share in (0.0, 0.01, 0.1, 0.3, 0.9):
        assignment = assign(predictions, budget=budget_at(predictions, share))
        assert assignment.gap <= most


def test_it_is_equation_2_at_one_lam_but_for_what_is_left_of_the_budget() -> None:
    predictions = random_predictions(400, 5, 3)
    assignment = assign(predictions, budget=budget_at(predictions, 0.2))
    assert 0 < assignment.lam < 1
    plain = choose(predictions.correctness, predictions.normalised_cost, assignment.lam)
    upgraded = np.flatnonzero(plain != assignment.choice)
    assert len(upgraded) < 10
    rows = np.arange(len(predictions))
    gain = predictions.correctness[rows, assignment.choice] - predictions.correctness[rows, plain]
    assert (gain[upgraded] > 0).all()


def test_a_larger_budget_is_never_worth_less_and_ends_at_the_most_probable_targets() -> None:
    predictions = random_predictions(200, 4, 1)
    assignments = [
        assign(predictions, budget=budget_at(predictions, s)) for s in np.linspace(0, 1, 30)
    ]
    bounds = np.array([assignment.bound for assignment in assignments])
    right = np.array([assignment.expected_right for assignment in assignments])
    lams = np.array([assignment.lam for assignment in assignments])
    assert (np.diff(bounds) >= -1e-9).all()
    assert (np.diff(lams) >= 0).all()
    assert (right >= bounds - 1).all()
    assert assignments[-1].lam == 1
    assert assignments[-1].expected_right == pytest.approx(
        predictions.correctness.max(axis=1).sum()
    )


@pytest.mark.slow
@pytest.mark.parametrize("limits", [{}, {"t3": 30, "t1": 40}])
def test_prompts_in_another_order_have_the_same_targets(limits: dict[str, int]) -> None:
    predictions = random_predictions(200, 4, 2)
    budget = budget_at(predictions, 0.3)
    order = np.random.default_rng(0).permutation(len(predictions))
    shuffled = predictions.select([predictions.query_ids[i] for i in order])
    first = assign(predictions, budget=budget, limits=limits)
    second = assign(shuffled, budget=budget, limits=limits)
    assert (first.choice[order] == second.choice).all()


def test_limits_that_are_not_reached_change_nothing() -> None:
    predictions = random_predictions(100, 4, 0)
    budget = budget_at(predictions, 0.3)
    free, limited = (assign(predictions, budget=budget, limits=n) for n in ({}, {"t3": 100}))
    assert (free.choice == limited.choice).all()
    assert not limited.prices


def test_a_limit_of_none_and_equal_prompts() -> None:
    same = predictions_of(np.tile([0.2, 0.5, 0.9], (50, 1)), np.tile([1.0, 2.0, 4.0], (50, 1)))
    assignment = assign(same, budget=1000, limits={"t2": 0, "t1": 20})
    assert assignment.counts == {"t0": 30, "t1": 20, "t2": 0}
    assert assignment.gap < 0.2


@pytest.mark.slow
def test_the_least_budget_is_enough_and_less_is_refused_with_it() -> None:
    for seed in range(4):
        predictions = random_predictions(5, 3, seed)
        for limits in ({}, {"t0": 2, "t1": 2}):
            least = find_least_cost(predictions, limits)
            assert assign(predictions, budget=least, limits=limits).expected_cost <= least + 1e-9
            with pytest.raises(ConfigError) as error:
                assign(predictions, budget=least * 0.999, limits=limits)
            cost = float(re.findall(r"costs \$([0-9.]+);", str(error.value))[0])
            assert least <= cost <= least * 1.0001
            assert assign(predictions, budget=cost, limits=limits).expected_cost <= cost * (
                1 + 1e-9
            )


@pytest.mark.parametrize("cells", [10_000, 0])
def test_equal_prompts_go_to_the_cheapest_targets_that_have_room(
    cells: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("prefill_router.assignment.assignment.MOST_CELLS", cells, raising=False)
    same = predictions_of(np.tile([0.2, 0.5, 0.9], (200, 1)), np.tile([1.0, 2.0, 3.0], (200, 1)))
    limits = {"t0": 50, "t2": 30}
    assignment = assign(same, budget=350, limits=limits)
    assert assignment.counts == {"t0": 50, "t1": 150, "t2": 0}
    for budget in (360, 399):
        assert assign(same, budget=budget, limits=limits).gap < 0.5
    with pytest.raises(ConfigError, match=r"costs \$350;" if cells else r"costs about \$350;"):
        assign(same, budget=349, limits=limits)


@pytest.mark.slow
@pytest.mark.parametrize("seed", [*range(4), 68, 96])
def test_the_least_cost_is_enough_where_many_prompts_cost_the_same(seed: int) -> None:
    random = np.random.default_rng(seed)
    prompts = int(random.integers(3, 7))
    cost = random.integers(1, 5, (prompts, 3)).astype(np.float64)
    predictions = predictions_of(random.uniform(0, 1, (prompts, 3)), cost)
    limits = {name: int(random.integers(1, prompts)) for name in ("t0", "t1")}
    least = find_least_cost(predictions, limits)
    assert assign(predictions, budget=least, limits=limits).expected_cost == least


@pytest.mark.parametrize("budget", [-1.0, np.nan, np.inf])
@pytest.mark.parametrize("limits", [{}, {"t0": 3}])
def test_budgets_that_are_no_amount(budget: float, limits: dict[str, int]) -> None:
    free = predictions_of(np.full((10, 3), 0.5), np.tile([0.0, 0.0, 1.0], (10, 1)))
    with pytest.raises(ConfigError, match="give a finite number of US dollars"):
        assign(free, budget=budget, limits=limits)


def test_a_dearer_target_that_is_no_better_gets_nothing() -> None:
    predictions = random_predictions(100, 3, 0)
    worse = dataclasses.replace(
        predictions, correctness=predictions.correctness * np.array([1, 1, 0.0])
    )
    assert assign(worse, budget=1e9).counts["t2"] == 0


@pytest.mark.parametrize(
    ("limits", "reason"),
    [
        ({"t9": 1}, "limits name"),
        ({"t0": -1}, "0 prompts or more"),
        ({"t0": 3, "t1": 3, "t2": 3}, "leave room for 9 of 10"),
    ],
)
def test_limits_that_make_no_sense(limits: dict[str, int], reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        assign(random_predictions(10, 3, 0), budget=1e9, limits=limits)
