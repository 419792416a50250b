import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from packages.router.tests.evaluation.trials import complete, plain_points, random_system, system
from prefill_router.errors import ConfigError
from prefill_router.evaluation import LambdaSweep, Trial
from prefill_router.evaluation.bootstrap import ones
from prefill_router.evaluation.curve import lam_grid
from prefill_router.policy import choose

pytestmark = pytest.mark.slow


def grid_points(trial: Trial, grid: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    rows = np.arange(len(trial))
    choices = [choose(trial.correctness, trial.cost, float(lam)) for lam in grid]
    return (
        np.array([np.nanmean(trial.correct[rows, choice]) for choice in choices]),
        np.array([np.nanmean(trial.observed_cost[rows, choice]) for choice in choices]),
    )


@pytest.mark.parametrize("missing", [0.0, 0.3])
@pytest.mark.parametrize("seed", range(3))
def test_exact_path_equals_a_fine_grid_at_every_grid_point(seed: int, missing: float) -> None:
    options = {"queries": 50, "seed": seed, "missing": missing}
    trial = Trial.join(*random_system(**options))
    sweep = LambdaSweep.of(trial)
    points = sweep.points(ones(len(trial)))
    grid = lam_grid(1e-3)
    at = sweep.place(grid)
    accuracy, cost = grid_points(Trial.join(*complete(*random_system(**options))), grid)
    np.testing.assert_allclose(points.accuracy[0, at], accuracy, rtol=1e-12)
    np.testing.assert_allclose(points.cost[0, at], cost, rtol=1e-12)


@pytest.mark.parametrize("seed", range(4))
def test_points_are_all_there_are_and_none_twice(seed: int) -> None:
    predictions, data = random_system(queries=12, targets=3, missing=0.1, seed=seed)
    trial = Trial.join(predictions, data)
    points = LambdaSweep.of(trial).points(ones(len(trial)))
    expected = np.array(plain_points(*complete(predictions, data)))
    np.testing.assert_allclose(points.accuracy[0], expected[:, 0], atol=1e-12)
    np.testing.assert_allclose(points.cost[0], expected[:, 1], atol=1e-12)


def test_intervals_of_lam_cover_it_all_and_hold() -> None:
    trial = Trial.join(*random_system(queries=20))
    sweep = LambdaSweep.of(trial)
    assert sweep.lam[0] == 0
    assert (np.diff(sweep.lam) > 0).all()
    assert sweep.lam[-1] <= 1
    middle = (sweep.lam + np.append(sweep.lam[1:], 1)) / 2
    assert (sweep.place(middle) == np.arange(len(sweep))).all()


def test_a_query_on_which_a_side_was_not_measured_counts_for_none() -> None:
    predictions, data = random_system(queries=80, missing=0.1)
    trial = Trial.join(predictions, data)
    masked = LambdaSweep.of(trial).points(ones(len(trial))).accuracy[0, -1]
    is_complete = ~np.isnan(data.correct).any(axis=1)
    chosen = trial.of_choice(trial.correct, trial.most_probable)
    assert 0 < is_complete.sum() < len(np.flatnonzero(~np.isnan(chosen)))
    assert masked == pytest.approx(chosen[is_complete].mean())


def test_an_unknown_cost_is_not_free() -> None:
    correctness = np.array([[0.9], [0.9]])
    data = system(correctness, np.ones((2, 1)), np.ones((2, 1)), np.array([[np.nan], [0.5]]))
    trial = Trial.join(*data)
    assert LambdaSweep.of(trial).points(ones(2)).cost[0].tolist() == [0.5]


def test_estimated_cost_of_each_query_never_falls_as_lam_rises() -> None:
    trial = Trial.join(*random_system(queries=200, targets=6))
    path = trial.path
    cost = trial.cost[path.query, path.target]
    same = np.diff(path.query) == 0
    assert same.sum() > 200
    assert (np.diff(cost)[same] > 0).all()


@pytest.mark.parametrize("step", [1e-2, 1e-3])
def test_a_grid_retains_each_operating_point_that_it_meets_once(step: float) -> None:
    predictions, data = random_system(queries=300)
    sweep = LambdaSweep.of(Trial.join(predictions, data))
    retained = sweep.retained(step)
    assert set(retained) == set(sweep.place(lam_grid(step)).tolist())
    assert len(retained) < min(len(sweep), len(lam_grid(step)) + 1)
    assert len(sweep.retained(None)) == len(sweep)


def test_points_at_some_places_are_the_same_points() -> None:
    predictions, data = random_system(queries=60)
    sweep = LambdaSweep.of(Trial.join(predictions, data))
    at = sweep.retained(0.05)
    some, every = sweep.points(ones(60), at=at), sweep.points(ones(60))
    assert (some.accuracy == every.accuracy[:, at]).all()
    assert some.distinct.all()


@pytest.mark.parametrize("step", [0.0, -0.1, 0.3, 2.0, 1e-9, float("nan")])
def test_a_step_that_does_not_divide_one_is_refused(step: float) -> None:
    with pytest.raises(ConfigError, match="step of lam"):
        lam_grid(step)


tenths = st.integers(0, 4).map(lambda i: i / 4)


@settings(max_examples=80, deadline=None)
@given(st.data())
def test_tables_full_of_ties(data: st.DataObject) -> None:
    queries, targets = data.draw(st.integers(1, 4)), data.draw(st.integers(1, 3))
    size = queries * targets
    tables = [
        np.array(data.draw(st.lists(tenths, min_size=size, max_size=size))).reshape(-1, targets)
        for _ in range(4)
    ]
    trial = Trial.join(*system(tables[0], tables[1], (tables[2] > 0.5) * 1.0, tables[3]))
    sweep = LambdaSweep.of(trial)
    points = sweep.points(ones(queries))
    rows = np.arange(queries)
    for lam in (0.0, 0.37, 0.71, 0.93, 1.0):
        choice = choose(trial.correctness, trial.cost, lam)
        place = sweep.place(np.array([lam]))[0]
        assert points.accuracy[0, place] == pytest.approx(trial.correct[rows, choice].mean())
        assert points.cost[0, place] == pytest.approx(trial.observed_cost[rows, choice].mean())


def test_at_the_lam_of_a_change_the_cheaper_still_wins() -> None:
    correctness, cost = np.array([[0.0, 1.0]]), np.array([[0.0, 1.0]])
    trial = Trial.join(*system(correctness, cost, correctness, cost))
    sweep = LambdaSweep.of(trial)
    assert sweep.lam.tolist() == [0, 0.5]
    lam = np.array([0.0, 0.5, np.nextafter(0.5, 1), 1.0])
    assert sweep.place(lam).tolist() == [0, 0, 1, 1]
    assert [choose(trial.correctness, trial.cost, float(x))[0] for x in lam] == [0, 0, 1, 1]
