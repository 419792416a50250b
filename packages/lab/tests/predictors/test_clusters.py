from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from sklearn.cluster import KMeans

from prefill_router.errors import ConfigError
from prefill_router.predictors import Examples
from prefill_router_lab.predictors.clusters import (
    Clusters,
    ClustersConfig,
    kmeans,
    squared_distances,
)


def blobs(rows: int = 300, *, seed: int = 0, spread: float = 0.1) -> tuple[Any, Any, Any]:
    """Rows about five places, where they are, and which place each belongs to."""
    random = np.random.default_rng(seed)
    places = 3 * np.random.default_rng(9).normal(size=(5, 4))
    own = random.integers(5, size=rows)
    features = places[own] + spread * random.normal(size=(rows, 4))
    return features.astype(np.float32), places, own


def fit(features: Any, correct: Any, **options: Any) -> Clusters:
    names = tuple(f"t{i}" for i in range(correct.shape[1]))
    train = Examples(features, correct, names, ("",) * len(features))
    predictor = ClustersConfig(**options).fit(train).predictor
    assert isinstance(predictor, Clusters)
    return predictor


def test_planted_places_are_found() -> None:
    features, places, _ = blobs()
    centres = kmeans(features, 5, seed=0, restarts=3, iterations=50)
    away = squared_distances(places, centres)
    assert sorted(away.argmin(axis=1)) == list(range(5))
    assert np.sqrt(away.min(axis=1)).max() < 0.1


def test_as_good_as_anothers() -> None:
    features = np.random.default_rng(0).normal(size=(400, 6)).astype(np.float32)
    own = squared_distances(
        features.astype(np.float64), kmeans(features, 12, seed=0, restarts=5, iterations=100)
    )
    theirs = KMeans(12, n_init=5, random_state=0).fit(features.astype(np.float64)).inertia_
    assert own.min(axis=1).sum() < 1.02 * theirs


@given(st.integers(1, 30), st.integers(1, 6), st.integers(1, 40), st.integers(0, 3))
@settings(max_examples=60, deadline=None)
def test_every_cluster_has_rows(rows: int, distinct: int, clusters: int, seed: int) -> None:
    features = np.repeat((np.arange(rows) % distinct).astype(np.float32)[:, None], 2, axis=1)
    centres = kmeans(features, clusters, seed=seed, restarts=2, iterations=20)
    assert len(centres) == min(clusters, distinct, rows)
    own = squared_distances(features.astype(np.float64), centres).argmin(axis=1)
    assert set(own) == set(range(len(centres)))


def test_places_that_start_on_one_side_are_filled() -> None:
    """With as many clusters as distinct rows each row is a centre, whatever the start."""
    features = np.array([[0], [1e-6], [2e-6], [1e6]], np.float32)
    for seed in range(10):
        centres = kmeans(features, 4, seed=seed, restarts=1, iterations=20)
        np.testing.assert_allclose(np.sort(centres[:, 0]), features[:, 0], atol=1e-7)


def test_rates_are_smoothed_towards_the_targets_own() -> None:
    features, _, own = blobs(200)
    correct = (np.random.default_rng(1).random((200, 2)) < 0.3 + 0.1 * own[:, None]).astype(float)
    correct[::3, 1] = np.nan
    predictor = fit(features, correct, clusters=5, smoothing=7.0, nearest=1)
    rate = (np.nansum(correct, axis=0) + 1) / ((~np.isnan(correct)).sum(axis=0) + 2)
    rates = predictor.correctness(features)
    for place in range(5):
        inside = correct[own == place]
        count = (~np.isnan(inside)).sum(axis=0)
        expected = (np.nansum(inside, axis=0) + 7 * rate) / (count + 7)
        np.testing.assert_allclose(rates[own == place], np.tile(expected, (len(inside), 1)), 1e-5)


def test_cluster_in_which_a_target_was_never_measured() -> None:
    features, _, own = blobs(200)
    correct = (np.random.default_rng(1).random((200, 2)) < 0.4).astype(float)
    correct[own == 2, 0] = np.nan
    rate = (np.nansum(correct[:, 0]) + 1) / ((~np.isnan(correct[:, 0])).sum() + 2)
    for smoothing in (0.0, 5.0):
        predictor = fit(features, correct, clusters=5, smoothing=smoothing, nearest=1)
        np.testing.assert_allclose(predictor.correctness(features)[own == 2, 0], rate, rtol=1e-5)


def test_nearest_clusters_are_weighed_by_their_distance() -> None:
    features, _, own = blobs(200)
    correct = (own[:, None] % 2).astype(np.float64)
    hard, soft, flat = (
        fit(features, correct, clusters=5, smoothing=0.0, nearest=nearest, sharpness=sharpness)
        for nearest, sharpness in ((1, 0.0), (5, 0.01), (5, 0.0))
    )
    centres, rates = hard.centres.astype(np.float64), hard.rates[:, 0]
    point = (centres[0] + centres[1])[None] / 2
    squared = squared_distances(point, centres)[0]
    weights = np.exp(-0.01 * squared / soft.spread)
    query = point.astype(np.float32)
    expected = (weights * rates).sum() / weights.sum()
    assert soft.correctness(query)[0, 0] == pytest.approx(expected, rel=1e-4)
    assert hard.correctness(query)[0, 0] == pytest.approx(rates[squared.argmin()], rel=1e-6)
    assert flat.correctness(query)[0, 0] == pytest.approx(rates.mean(), rel=1e-6)


def test_no_more_clusters_than_distinct_rows() -> None:
    features = np.repeat(np.eye(3, dtype=np.float32), 4, axis=0)
    correct = np.tile([[0.0], [1.0], [1.0], [1.0]], (3, 1))
    predictor = fit(features, correct, clusters=50, nearest=9, smoothing=0.0)
    assert len(predictor.centres) == 3
    np.testing.assert_allclose(predictor.correctness(features), 0.75)


@pytest.mark.parametrize(
    "wrong",
    [
        {"clusters": 0},
        {"nearest": 0},
        {"restarts": 0},
        {"iterations": 0},
        {"sharpness": -1.0},
        {"smoothing": float("inf")},
        {"smoothing": float("nan")},
    ],
)
def test_options_that_make_no_sense(wrong: dict[str, Any]) -> None:
    [name] = wrong
    with pytest.raises(ConfigError, match=f"{name} is .*must be"):
        ClustersConfig(**wrong)
