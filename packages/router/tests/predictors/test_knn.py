from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings, strategies as st
from numpy.typing import NDArray
from sklearn.neighbors import KNeighborsRegressor

from packages.router.tests.fakes.planted_signal import without_checks
from prefill_router.errors import ConfigError, CorruptError
from prefill_router.predictors import Examples, load_predictor
from prefill_router.predictors.knn import (
    KERNELS,
    Kernel,
    KnnMajorityConfig,
    KnnScoreConfig,
    neighbour_weights,
)

Array = NDArray[Any]
NAMES = ("a", "b", "c")


def draw_examples(rows: int = 120, *, seed: int = 0, missing: float = 0.0) -> Examples:
    random = np.random.default_rng(seed)
    features = random.normal(size=(rows, 4)).astype(np.float32)
    correct = random.random((rows, 3)).round(2)
    correct[random.random(correct.shape) < missing] = np.nan
    return Examples(features, correct, NAMES, ("",) * rows)


def fit_sklearn(train: Examples, rows: Array, *, k: int, weights: Any, cut: bool) -> Array:
    """One regressor per target, on the rows that it was measured on."""
    columns = []
    for i in range(3):
        is_known = ~np.isnan(train.correct[:, i])
        labels = train.correct[is_known, i]
        model = KNeighborsRegressor(n_neighbors=k, weights=weights, algorithm="brute")
        model.fit(train.features[is_known].astype(np.float64), labels >= 0.5 if cut else labels)
        columns.append(model.predict(rows.astype(np.float64)))
    return np.stack(columns, axis=1)


@pytest.mark.parametrize("missing", [0.0, 0.2, 0.6])
def test_majority_is_the_share_of_votes_among_the_nearest_measured_rows(missing: float) -> None:
    train, rows = draw_examples(missing=missing), draw_examples(40, seed=1).features
    correctness = KnnMajorityConfig(k=7).fit(train).predictor.correctness(rows)
    expected = fit_sklearn(train, rows, k=7, weights="uniform", cut=True)
    np.testing.assert_allclose(correctness, expected, atol=1e-12)
    assert set(np.round(correctness * 7, 9).ravel()) <= set(range(8))


@pytest.mark.parametrize("missing", [0.0, 0.2, 0.6])
@pytest.mark.parametrize("kernel", KERNELS)
def test_score_is_the_weighted_mean_of_labels(kernel: Kernel, missing: float) -> None:
    train, rows = draw_examples(missing=missing), draw_examples(40, seed=1).features

    def weigh(distances: Array) -> Array:
        u = distances / distances.max(axis=1, keepdims=True) / 1.3
        return {
            "uniform": np.ones_like(u),
            "inverse": 1 / u,
            "gaussian": np.exp(-0.5 * u * u),
            "exponential": np.exp(-u),
            "triangular": (1 - u) * (u < 1),
            "epanechnikov": (1 - u * u) * (u < 1),
        }[kernel]

    config = KnnScoreConfig(k=9, kernel=kernel, bandwidth=1.3)
    correctness = config.fit(train).predictor.correctness(rows)
    expected = fit_sklearn(train, rows, k=9, weights=weigh, cut=False)
    np.testing.assert_allclose(correctness, expected, atol=1e-6)


@pytest.mark.slow
@given(
    st.lists(st.floats(0, 1e6), min_size=1, max_size=12),
    st.sampled_from(KERNELS),
    st.floats(0.1, 3),
)
@example([0.0, 5e-324], "gaussian", 1.5)
@settings(max_examples=150, deadline=None)
def test_weights(distances: list[float], kernel: Kernel, bandwidth: float) -> None:
    ordered = np.sort(np.array([distances], dtype=np.float64))
    weights = neighbour_weights(ordered, kernel, bandwidth=bandwidth)[0]
    assert weights.sum() == pytest.approx(1)
    assert (weights >= 0).all()
    assert (np.diff(weights) <= 1e-12).all()  # a nearer one never counts less
    doubled = neighbour_weights(2 * ordered, kernel, bandwidth=bandwidth)[0]
    np.testing.assert_allclose(doubled, weights, atol=1e-9)  # units of length don't matter


def test_with_the_inverse_a_train_row_is_given_its_own_label() -> None:
    train = draw_examples()
    correctness = KnnScoreConfig(k=5).fit(train).predictor.correctness(train.features)
    np.testing.assert_allclose(correctness, train.correct, atol=1e-6)
    uniform = KnnScoreConfig(k=5, kernel="uniform").fit(train).predictor
    assert np.abs(uniform.correctness(train.features) - train.correct).max() > 0.1  # control


def test_queries_with_equal_features_are_all_counted() -> None:
    features = np.zeros((4, 2), np.float32)
    correct = np.array([[1.0], [0.0], [1.0], [1.0]])
    train = Examples(features, correct, ("a",), ("",) * 4)
    for config in (KnnMajorityConfig(k=4), KnnScoreConfig(k=4), KnnScoreConfig(kernel="gaussian")):
        assert config.fit(train).predictor.correctness(features[:1])[0, 0] == 0.75


def test_target_that_is_of_one_class_once_cut() -> None:
    train = draw_examples()
    train.correct[:, 1] = np.where(train.correct[:, 1] > 0.3, 0.9, 0.6)
    fit = KnnMajorityConfig().fit(train)
    assert "b can't be learned: all its 120 train labels are the same" in fit.notes[0]
    np.testing.assert_allclose(
        fit.predictor.correctness(train.features)[:, 1], 121 / 122, rtol=1e-6
    )
    assert not KnnScoreConfig().fit(train).notes


def test_more_queries_than_one_pass() -> None:
    train, rows = draw_examples(), np.tile(draw_examples(30).features, (80, 1))
    predictor = KnnScoreConfig(k=3).fit(train).predictor
    correctness = predictor.correctness(rows)
    assert np.array_equal(correctness, np.tile(correctness[:30], (80, 1)))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"k": 0}, "k is 0"),
        ({"kernel": "cosine"}, "kernel is 'cosine'.*'gaussian'"),
        ({"bandwidth": 0.0}, "bandwidth is 0"),
        ({"bandwidth": float("nan")}, "bandwidth is nan"),
    ],
)
def test_options_that_make_no_sense(options: dict[str, Any], message: str) -> None:
    with without_checks(), pytest.raises(ConfigError, match=message):
        KnnScoreConfig(**options)
    if "k" in options:
        with pytest.raises(ConfigError, match=message):
            KnnMajorityConfig(**options)


@pytest.mark.parametrize("value", [-0.5, 1.5, 2.0])
def test_saved_labels_must_be_labels(value: float) -> None:
    predictor = KnnScoreConfig().fit(draw_examples()).predictor
    tensors = {name: array.copy() for name, array in predictor.tensors().items()}
    tensors["labels"][3, 1] = value
    with pytest.raises(CorruptError, match="labels"):
        load_predictor(predictor.to_dict(), tensors)
