"""The scaler and PCA: scikit-learn's, up to sign, for any rank."""

import numpy as np
import pytest
from hypothesis import given, strategies as st
from sklearn.decomposition import PCA
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from prefill_router.errors import ConfigError, CorruptError, FitError
from prefill_router.geometry import Moments
from prefill_router.reduction import Reducer


def sample(rows: int = 80, hidden: int = 10, seed: int = 0) -> np.ndarray:
    random = np.random.default_rng(seed)
    mixing = random.normal(size=(hidden, hidden)) * np.linspace(0.2, 3, hidden)
    states = random.normal(size=(rows, hidden)) @ mixing + 20 * random.normal(size=hidden)
    return states.astype(np.float32)


def fit(states: np.ndarray, dim: int) -> Reducer:
    return Reducer.fit(Moments.of(states), dim)


def test_it_is_scikit_learns_up_to_sign() -> None:
    states, other = sample(), sample(seed=1)
    oracle = make_pipeline(StandardScaler(), PCA(4, svd_solver="full")).fit(states.astype(float))
    expected = oracle.transform(other.astype(float))
    got = fit(states, 4).transform(other)
    signs = np.sign((expected * got).sum(axis=0))
    # scikit-learn divides by n, the reducer by n - 1
    np.testing.assert_allclose(got * signs * np.sqrt(80 / 79), expected, rtol=1e-3, atol=1e-3)


def test_components_are_orthonormal_with_falling_variance_and_a_fixed_sign() -> None:
    states = sample()
    reducer = fit(states, 6)
    np.testing.assert_allclose(reducer.components @ reducer.components.T, np.eye(6), atol=1e-5)
    spread = reducer.transform(states).std(axis=0)
    assert (np.diff(spread) < 0).all()
    assert spread[0] > 2 * spread[-1]  # not whitened
    largest = np.abs(reducer.components).argmax(axis=1)
    assert (reducer.components[np.arange(6), largest] > 0).all()


def test_the_first_components_serve_smaller_dimensions() -> None:
    states = sample()
    small, cut = fit(states, 3), fit(states, 8).first(3)
    np.testing.assert_allclose(small.components, cut.components, atol=1e-5)


@pytest.mark.slow
@given(st.integers(0, 1000))
def test_the_order_and_the_parts_of_the_rows_do_not_matter(seed: int) -> None:
    states = sample()
    order = np.random.default_rng(seed).permutation(len(states))
    parts = (Moments.of(part) for part in np.array_split(states[order], 5))
    other = Reducer.fit(Moments.total(parts, hidden=10), 3)
    np.testing.assert_allclose(other.components, fit(states, 3).components, atol=1e-5)


def test_constant_dimensions_become_zero() -> None:
    states = sample()
    states[:, 2], states[:, 5] = 1e4, 0
    reducer = fit(states, 20)
    assert reducer.dim == 8
    assert reducer.scale[[2, 5]].tolist() == [1, 1]
    np.testing.assert_allclose(reducer.components[:, [2, 5]], 0, atol=1e-7)


@pytest.mark.parametrize(("rows", "rank"), [(2, 1), (5, 4), (11, 10), (80, 10)])
def test_no_more_components_than_the_rank(rows: int, rank: int) -> None:
    reducer = fit(sample(rows), 100)
    assert reducer.dim == rank
    assert np.isfinite(reducer.transform(sample())).all()


def test_repeated_rows_and_columns_lower_the_rank() -> None:
    states = sample(hidden=4)
    assert fit(np.concatenate([states, states], axis=1), 8).dim == 4
    assert fit(np.repeat(states[:3], 9, axis=0), 8).dim == 2


def test_states_that_are_all_the_same_are_refused() -> None:
    with pytest.raises(FitError, match="all 9 rows are the same"):
        fit(np.full((9, 3), 0.1, dtype=np.float32), 2)
    with pytest.raises(FitError, match="two rows or more"):
        fit(sample(1), 2)


def test_a_dimension_below_one_is_refused() -> None:
    with pytest.raises(ConfigError, match="dim is 0"):
        fit(sample(), 0)


def test_other_widths_are_refused() -> None:
    with pytest.raises(ConfigError, match="9 wide; the reducer was fitted on 10"):
        fit(sample(), 2).transform(np.zeros((1, 9), dtype=np.float32))


def test_a_dimension_that_dwarfs_the_others_does_not_rule() -> None:
    states = sample()
    huge = states.copy()
    huge[:, 0] = 1e4 * huge[:, 0] + 1e6
    plain, scaled = fit(states, 3).transform(states), fit(huge, 3).transform(huge)
    np.testing.assert_allclose(np.abs(plain), np.abs(scaled), atol=0.02)


def test_tensors_round_trip_exactly() -> None:
    reducer = fit(sample(), 4)
    again = Reducer.from_tensors(reducer.tensors(), hidden=10, dim=4)
    np.testing.assert_array_equal(again.transform(sample()), reducer.transform(sample()))


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("mean", np.zeros(9, dtype=np.float32), r"mean must be finite float32 \(10,\)"),
        ("mean", np.zeros(10), "got float64"),
        ("scale", np.zeros(10, dtype=np.float32), "positive"),
        ("scale", np.full(10, np.nan, dtype=np.float32), "finite"),
        ("components", np.zeros((10, 4), dtype=np.float32), r"\(4, 10\)"),
        ("surplus", np.zeros(1, dtype=np.float32), "surplus"),
    ],
)
def test_wrong_tensors_are_refused(name: str, value: np.ndarray, message: str) -> None:
    tensors = {**fit(sample(), 4).tensors(), name: value}
    with pytest.raises(CorruptError, match=message):
        Reducer.from_tensors(tensors, hidden=10, dim=4)
