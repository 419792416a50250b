"""The theorems of effective dimensionality, anisotropy and Fisher's J."""

import numpy as np
import pytest
from hypothesis import given, strategies as st
from scipy.stats import ortho_group

from packages.router.tests.fakes.planted_signal import without_checks
from prefill_router.errors import ConfigError
from prefill_router.geometry import (
    ClassSums,
    Directions,
    Moments,
    anisotropy,
    effective_dimensionality,
    fisher_j,
)

seeds = st.integers(0, 10_000)


def draw_features(seed: int, rows: int = 60) -> tuple[np.ndarray, np.ndarray]:
    """Features that know the labels of three targets a little; some labels are missing."""
    random = np.random.default_rng(seed)
    correct = (random.random((rows, 3)) < [0.3, 0.5, 0.7]).astype(np.float64)
    features = random.normal(size=(rows, 5)) * [3, 2, 1, 1, 0.5]
    features[:, :3] += correct
    correct[random.random(correct.shape) < 0.15] = np.nan
    return features, correct


def test_isotropic_states_have_every_dimension() -> None:
    assert effective_dimensionality(Moments(10, np.zeros(7), np.eye(7))) == pytest.approx(7)
    states = np.random.default_rng(0).normal(size=(20_000, 12)) + 100
    assert effective_dimensionality(Moments.of(states)) == pytest.approx(12, rel=0.01)


def test_states_on_a_line_have_one_dimension() -> None:
    random = np.random.default_rng(0)
    states = np.outer(random.normal(size=50), random.normal(size=6)) + random.normal(size=6)
    assert effective_dimensionality(Moments.of(states)) == pytest.approx(1)


def test_states_without_spread_have_no_dimension() -> None:
    assert np.isnan(effective_dimensionality(Moments.of(np.ones((5, 3)))))


@given(seeds)
def test_effective_dimensionality_is_the_participation_ratio(seed: int) -> None:
    states = draw_features(seed)[0]
    values = np.linalg.eigvalsh(np.cov(states, rowvar=False))
    expected = values.sum() ** 2 / (values**2).sum()
    assert effective_dimensionality(Moments.of(states)) == pytest.approx(expected)


@given(seeds, st.integers(2, 30), st.floats(0, 20))
def test_anisotropy_is_the_mean_cosine_of_pairs(seed: int, rows: int, offset: float) -> None:
    states = np.random.default_rng(seed).normal(size=(rows, 4)) + offset
    units = states / np.linalg.norm(states, axis=1, keepdims=True)
    cosines = units @ units.T
    expected = cosines[~np.eye(rows, dtype=bool)].mean()
    parts = [Directions.of(part) for part in np.array_split(states, 3)]
    assert anisotropy(Directions.of(states)) == pytest.approx(expected, abs=1e-9)
    assert anisotropy(parts[0] + parts[1] + parts[2]) == pytest.approx(expected, abs=1e-9)


def test_anisotropy_of_one_direction_and_of_opposites() -> None:
    line = np.outer([1.0, 2.0, 5.0], [1.0, -2.0])
    assert anisotropy(Directions.of(line)) == pytest.approx(1)
    assert anisotropy(Directions.of(np.array([[1.0, 0], [-3.0, 0]]))) == pytest.approx(-1)


def test_rows_of_zeros_have_no_direction() -> None:
    states = np.random.default_rng(0).normal(size=(9, 3))
    with_zeros = np.insert(states, [2, 5], 0.0, axis=0)
    assert anisotropy(Directions.of(with_zeros)) == pytest.approx(anisotropy(Directions.of(states)))
    assert np.isnan(anisotropy(Directions.of(np.zeros((4, 3)))))
    assert np.isnan(anisotropy(Directions.of(states[:1])))


@pytest.mark.parametrize("scale", [1e-30, 1e30])
def test_anisotropy_neither_over_nor_underflows(scale: float) -> None:
    states = np.random.default_rng(0).normal(size=(9, 3)).astype(np.float32)
    scaled = (states * np.float32(scale)).astype(np.float32)
    expected = anisotropy(Directions.of(states))
    assert anisotropy(Directions.of(scaled)) == pytest.approx(expected, rel=1e-5)


@given(seeds)
def test_fisher_is_its_definition(seed: int) -> None:
    features, correct = draw_features(seed)
    for k, j in enumerate(fisher_j(features, correct)):
        right, wrong = features[correct[:, k] == 1], features[correct[:, k] == 0]
        gap = ((right.mean(axis=0) - wrong.mean(axis=0)) ** 2).sum()
        spread = np.trace(np.cov(right, rowvar=False)) + np.trace(np.cov(wrong, rowvar=False))
        assert j == pytest.approx(gap / spread)


@pytest.mark.slow
@given(seeds, st.floats(0.01, 100), st.floats(-1000, 1000))
def test_fisher_does_not_change_with_the_frame(seed: int, scale: float, shift: float) -> None:
    features, correct = draw_features(seed)
    expected = fisher_j(features, correct)
    rotation = ortho_group.rvs(5, random_state=seed)
    np.testing.assert_allclose(fisher_j(features + shift, correct), expected, rtol=1e-7)
    np.testing.assert_allclose(fisher_j(features @ rotation, correct), expected, rtol=1e-7)
    np.testing.assert_allclose(fisher_j(features * scale, correct), expected, rtol=1e-7)
    np.testing.assert_allclose(fisher_j(features, 1 - correct), expected, rtol=1e-7)


def test_fisher_changes_with_a_scaling_that_is_not_uniform() -> None:
    features, correct = draw_features(0)
    changed = fisher_j(features * [10, 1, 1, 1, 1], correct)
    assert np.abs(changed / fisher_j(features, correct) - 1).min() > 0.01


@given(seeds)
def test_missing_labels_are_rows_that_are_not_there(seed: int) -> None:
    features, correct = draw_features(seed)
    for k, j in enumerate(fisher_j(features, correct)):
        is_known = ~np.isnan(correct[:, k])
        assert j == pytest.approx(fisher_j(features[is_known], correct[is_known][:, [k]])[0])


def test_soft_labels_are_cut() -> None:
    features, correct = draw_features(1)
    soft = np.where(correct == 1, 0.5, np.where(correct == 0, 0.49, np.nan))
    np.testing.assert_allclose(fisher_j(features, soft), fisher_j(features, correct))


@given(seeds)
def test_sums_add_up_over_rows(seed: int) -> None:
    features, correct = draw_features(seed)
    fisher = ClassSums.of(features, correct).fisher()
    added = ClassSums.of(features[:7], correct[:7]) + ClassSums.of(features[7:], correct[7:])
    np.testing.assert_allclose(added.fisher(), fisher, rtol=1e-9)


def test_a_class_of_fewer_than_two_gives_nan() -> None:
    features, correct = draw_features(2)
    correct[:, 0] = 1
    correct[:, 1] = 0
    correct[0, 1] = 1
    assert np.isnan(fisher_j(features, correct)).tolist() == [True, True, False]


def test_classes_without_spread_are_infinitely_far_apart() -> None:
    correct = np.array([[0.0], [0], [1], [1]])
    assert fisher_j(correct, correct)[0] == np.inf
    assert np.isnan(fisher_j(np.ones((4, 1)), correct)[0])


def test_rows_must_match() -> None:
    with without_checks(), pytest.raises(ConfigError, match="3 rows of features, but 4"):
        ClassSums.of(np.ones((3, 2)), np.ones((4, 1)))
