import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from prefill_router.errors import ConfigError
from prefill_router.policy import check_lam, choose, lambda_path, rank, score

Table = np.ndarray


def tables(queries: int = 200, targets: int = 6, seed: int = 0) -> tuple[Table, Table]:
    random = np.random.default_rng(seed)
    return random.random((queries, targets)), random.random((queries, targets)) ** 3


def draw_nearly_dominated(seed: int) -> tuple[Table, Table]:
    """Targets 0, 2 and 4 are dominated by their neighbours, by one unit in the last place."""
    correctness, cost = tables(seed=seed)
    correctness[:, 0], cost[:, 0] = correctness[:, 1], np.nextafter(cost[:, 1], 2)
    correctness[:, 2], cost[:, 2] = np.nextafter(correctness[:, 3], 0), cost[:, 3]
    correctness[:, 4], cost[:, 4] = correctness[:, 5], cost[:, 5] * (1 + 1e-15)
    return correctness, cost


def test_score_is_equation_2() -> None:
    got = score(np.array([[0.8, 0.4]]), np.array([[0.5, 0.0]]), 0.25)
    assert got == pytest.approx(np.array([[0.25 * 0.8 - 0.75 * 0.5, 0.1]]))


def test_ends_of_lam_are_the_cheapest_and_the_most_probable() -> None:
    correctness, cost = tables()
    assert (choose(correctness, cost, 0.0) == cost.argmin(axis=1)).all()
    assert (choose(correctness, cost, 1.0) == correctness.argmax(axis=1)).all()


def test_rank_orders_by_score() -> None:
    correctness, cost = tables()
    order = rank(correctness, cost, 0.4)
    sorted_scores = np.take_along_axis(score(correctness, cost, 0.4), order, axis=1)
    assert (np.diff(sorted_scores) <= 0).all()
    assert (np.sort(order, axis=1) == np.arange(6)).all()


def test_ties_go_to_the_cheaper_then_the_more_probable_then_the_first() -> None:
    assert rank(np.array([[0.5, 0.5]]), np.array([[0.2, 0.1]]), 1.0).tolist() == [[1, 0]]
    assert rank(np.array([[0.5, 0.6]]), np.array([[0.1, 0.1]]), 0.0).tolist() == [[1, 0]]
    assert rank(np.array([[0.5, 0.5]]), np.array([[0.1, 0.1]]), 0.5).tolist() == [[0, 1]]


@pytest.mark.parametrize("seed", range(5))
def test_the_path_is_the_choice_at_every_lam(seed: int) -> None:
    correctness, cost = tables(seed=seed)
    path = lambda_path(correctness, cost)
    lams = [0.0, 1.0, *np.random.default_rng(seed).random(200).tolist()]
    for lam in lams:
        assert (path.at(lam) == choose(correctness, cost, lam)).all()


@pytest.mark.parametrize("rows", [1, 7, 199])
def test_the_path_in_blocks_is_that_of_the_whole(
    rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    correctness, cost = tables()
    expected = lambda_path(correctness, cost)
    monkeypatch.setattr("prefill_router.policy.path._ROWS", rows)
    path = lambda_path(correctness, cost)
    for name in ("start", "lam", "target"):
        np.testing.assert_array_equal(getattr(path, name), getattr(expected, name))


def test_between_changes_nothing_changes() -> None:
    correctness, cost = tables(queries=40)
    path = lambda_path(correctness, cost)
    ends = np.append(path.lam[1:], 1.0)
    ends[path.start[1:] - 1] = 1.0
    for query, low, high, target in zip(path.query, path.lam, ends, path.target, strict=True):
        for part in (0.001, 0.5, 0.999):
            lam = float(low + part * (high - low))
            assert choose(correctness[[query]], cost[[query]], lam)[0] == target


def test_at_most_k_minus_one_changes() -> None:
    path = lambda_path(*tables(targets=5))
    counts = np.diff(path.start)
    assert counts.min() >= 1
    assert counts.max() <= 5
    assert len(path) == 200


def test_chosen_cost_and_probability_never_fall_as_lam_rises() -> None:
    correctness, cost = tables()
    path = lambda_path(correctness, cost)
    same = np.diff(path.query) == 0
    for table in (correctness, cost):
        assert (np.diff(table[path.query, path.target])[same] > 0).all()
    previous = np.full(200, -np.inf)
    for lam in np.linspace(0, 1, 101):
        chosen = cost[np.arange(200), choose(correctness, cost, float(lam))]
        assert (chosen >= previous).all()
        previous = chosen


@pytest.mark.parametrize("seed", range(20))
def test_a_dominated_target_is_never_chosen_to_the_last_bit(seed: int) -> None:
    correctness, cost = draw_nearly_dominated(seed)
    path = lambda_path(correctness, cost)
    assert set(path.target.tolist()) <= {1, 3, 5}
    for lam in np.random.default_rng(seed).random(50):
        assert set(choose(correctness, cost, float(lam)).tolist()) <= {1, 3, 5}


def test_a_dominating_target_is_chosen() -> None:
    correctness, cost = draw_nearly_dominated(0)
    assert set(lambda_path(correctness, cost).target.tolist()) == {1, 3, 5}


def test_permuting_targets_permutes_choices() -> None:
    correctness, cost = tables()
    order = np.random.default_rng(1).permutation(6)
    path, permuted = (
        lambda_path(correctness, cost),
        lambda_path(correctness[:, order], cost[:, order]),
    )
    assert (order[permuted.target] == path.target).all()
    assert (permuted.lam == path.lam).all()


def test_each_query_is_on_its_own() -> None:
    correctness, cost = tables()
    path = lambda_path(correctness, cost)
    alone = lambda_path(correctness[[17]], cost[[17]])
    assert (alone.target == path.target[path.query == 17]).all()
    assert (alone.lam == path.lam[path.query == 17]).all()


def test_lam_never_falls_where_many_lines_meet_in_one_point() -> None:
    random = np.random.default_rng(0)
    for _ in range(30):
        correctness, meet = random.random((50, 6)), random.uniform(0.01, 0.99, (50, 1))
        cost = correctness * meet / (1 - meet) + 0.1
        path = lambda_path(correctness, cost)
        assert (np.diff(path.lam)[np.diff(path.query) == 0] >= 0).all()
        for lam in (0.0, 0.3, 0.8, 1.0):
            away = np.abs(meet[:, 0] - lam) > 1e-6
            assert (path.at(lam) == choose(correctness, cost, lam))[away].all()


grid = st.integers(0, 4).map(lambda i: i / 4)


@pytest.mark.slow
@settings(max_examples=200, deadline=None)
@given(st.lists(st.tuples(grid, grid), min_size=1, max_size=6))
def test_ties_on_the_path_are_as_good_as_the_best(points: list[tuple[float, float]]) -> None:
    correctness, cost = (np.array([column]) for column in zip(*points, strict=True))
    path = lambda_path(correctness, cost)
    for lam in (0.0, 0.2, 1 / 3, 0.5, 0.61, 0.75, 1.0):
        scores = score(correctness, cost, lam)[0]
        assert scores[path.at(lam)[0]] == pytest.approx(scores.max(), abs=1e-12)
    assert path.at(0.0)[0] == choose(correctness, cost, 0.0)[0]
    assert path.at(1.0)[0] == choose(correctness, cost, 1.0)[0]


@settings(max_examples=100, deadline=None)
@given(st.lists(st.tuples(st.floats(0, 1), st.floats(-1e3, 1e3)), min_size=1, max_size=5))
def test_any_finite_numbers(points: list[tuple[float, float]]) -> None:
    correctness, cost = (np.array([column]) for column in zip(*points, strict=True))
    path = lambda_path(correctness, cost)
    assert ((path.lam >= 0) & (path.lam <= 1)).all()
    assert path.at(1.0)[0] == choose(correctness, cost, 1.0)[0]


def test_equal_costs_leave_only_the_most_probable() -> None:
    correctness, _ = tables()
    path = lambda_path(correctness, np.zeros_like(correctness))
    assert (path.target == correctness.argmax(axis=1)).all()


def test_one_target() -> None:
    path = lambda_path(np.array([[0.3], [0.9]]), np.array([[1.0], [2.0]]))
    assert path.target.tolist() == [0, 0]
    assert path.at(0.5).tolist() == [0, 0]


@pytest.mark.parametrize("lam", [-0.1, 1.1, float("nan"), float("inf")])
def test_lam_outside_is_refused(lam: float) -> None:
    correctness, cost = tables(queries=2)
    for use in (lambda: check_lam(lam), lambda: choose(correctness, cost, lam)):
        with pytest.raises(ConfigError, match="lam is"):
            use()
    with pytest.raises(ConfigError, match="lam is"):
        lambda_path(correctness, cost).at(lam)


def test_numbers_that_are_not_finite_are_refused() -> None:
    correctness, cost = tables(queries=2)
    for broken in (np.nan, np.inf):
        with pytest.raises(ConfigError, match="finite"):
            lambda_path(correctness, np.full_like(cost, broken))
    with pytest.raises(ConfigError, match="at least one target"):
        lambda_path(np.zeros((2, 0)), np.zeros((2, 0)))
