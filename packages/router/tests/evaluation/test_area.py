import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from packages.router.tests.evaluation.trials import plain_area
from prefill_router.evaluation import Anchors, frontier, oracle_distance, padded_area


def anchors(low: float, high: float, floor: float = 0.2, ceiling: float = 0.8) -> Anchors:
    return Anchors(*(np.array([float(value)]) for value in (low, high, floor, ceiling)))


def test_normalised_cost_is_the_formula_of_the_paper() -> None:
    cost = np.array([[1.0, 1.5, 2.0, 4.0, 8.0]])
    expected = (1 / cost - 1 / 4) / (1 / 1 - 1 / 4)
    np.testing.assert_allclose(anchors(1, 4).cheapness(cost, axis="inverse"), expected)
    np.testing.assert_allclose(anchors(1, 4).cheapness(cost, axis="linear"), (4 - cost) / 3)
    assert anchors(1, 4).cheapness(np.array([[1.0, 4.0]]), axis="inverse").tolist() == [[1, 0]]


@pytest.mark.parametrize(("low", "high"), [(2.0, 2.0), (0.0, 0.0), (np.nan, np.nan)])
def test_no_spread_of_cost_is_undefined(low: float, high: float) -> None:
    for axis in ("inverse", "linear"):
        assert np.isnan(anchors(low, high).cheapness(np.array([[1.0]]), axis=axis)).all()  # type: ignore[arg-type]


def test_a_free_target_leaves_only_linear_cost() -> None:
    cost = np.array([[0.0, 1.0]])
    assert np.isnan(anchors(0, 2).cheapness(cost, axis="inverse")).all()
    assert anchors(0, 2).cheapness(cost, axis="linear").tolist() == [[1, 0.5]]


def test_height() -> None:
    assert anchors(1, 2).height(np.array([[0.2, 0.5, 0.8]]))[0] == pytest.approx([0, 0.5, 1])
    assert np.isnan(anchors(1, 2, 0.5, 0.5).height(np.array([[0.5]]))).all()


def test_area_of_figures_known_from_geometry() -> None:
    corner = np.array([[1.0]]), np.array([[1.0]])
    assert padded_area(*corner)[0] == 1
    triangle = np.array([[1.0, 0.0]]), np.array([[0.0, 1.0]])
    assert padded_area(*triangle)[0] == 0.5
    padded = np.array([[0.5, 1.0]]), np.array([[0.6, 0.4]])
    assert padded_area(*padded)[0] == pytest.approx(0.5 * 0.6 + 0.5 * 0.5)
    curve = np.array([[-0.5, 0.5]]), np.array([[1.0, 1.0]])
    assert padded_area(*curve)[0] == 1


def test_area_leaves_out_what_is_unknown() -> None:
    x = np.array([[0.2, np.nan, 0.9, 0.5, np.inf], [np.nan] * 5])
    y = np.array([[0.9, 0.5, 0.1, np.nan, 0.3], [0.5] * 5])
    area = padded_area(x, y)
    assert area[0] == pytest.approx(plain_area([(0.2, 0.9), (0.9, 0.1)]))
    assert np.isnan(area[1])


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(
    st.dictionaries(st.integers(-3, 13), st.floats(-0.5, 1.2), min_size=1),
    st.integers(0, 100),
)
def test_area_is_the_plain_one_in_any_order(heights: dict[int, float], seed: int) -> None:
    points = [(x / 10, y) for x, y in heights.items()]
    x, y = (np.array([column], dtype=float) for column in zip(*points, strict=True))
    assert padded_area(x, y)[0] == pytest.approx(plain_area(points), abs=1e-12)
    order = np.random.default_rng(seed).permutation(len(points))
    shuffled = padded_area(x[:, order], y[:, order])[0]
    assert shuffled == pytest.approx(padded_area(x, y)[0], abs=1e-12)


def test_same_costs_do_not_depend_on_rounding() -> None:
    x, y = np.array([[0.9, 0.5, 0.5]]), np.array([[0.2, 0.4, 0.9]])
    jittered = x + np.array([[0, 0, 1e-15]])
    assert padded_area(x, y)[0] == pytest.approx(padded_area(jittered, y)[0])
    # At one cost the later point, that of the higher lam, is the left one.
    assert padded_area(x, y)[0] == pytest.approx(0.5 * 0.9 + 0.4 * (0.4 + 0.2) / 2)


def test_oracle_distance_counts_each_point_once() -> None:
    x, y = np.array([[1.0, 1.0, 0.0, np.nan]]), np.array([[1.0, 0.0, 1.0, 1.0]])
    every = np.ones((1, 4), dtype=np.bool_)
    assert oracle_distance(x, y, counted=every)[0] == pytest.approx(2 / 3)
    some = np.array([[True, False, True, True]])
    assert oracle_distance(x, y, counted=some)[0] == pytest.approx(1 / 2)
    assert np.isnan(oracle_distance(x, y, counted=~every)[0])


@settings(max_examples=100, deadline=None)
@given(st.lists(st.tuples(st.integers(1, 4), st.integers(0, 4)), min_size=1, max_size=7))
def test_frontier_is_the_undominated_targets(points: list[tuple[int, int]]) -> None:
    cost, accuracy = (np.array([column], dtype=float) for column in zip(*points, strict=True))
    on = frontier(cost, accuracy)[0]
    best = {
        (c, a)
        for c, a in points
        if not any(d <= c and b >= a and (d, b) != (c, a) for d, b in points)
    }
    assert {point for point, is_on in zip(points, on, strict=True) if is_on} == best
    assert on.sum() == len(best)


def test_targets_of_unknown_cost_are_not_on_the_frontier() -> None:
    on = frontier(np.array([[np.nan, 2.0, 1.0]]), np.array([[0.9, 0.5, np.nan]]))
    assert on.tolist() == [[False, True, False]]
