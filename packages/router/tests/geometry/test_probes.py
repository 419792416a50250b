"""Probes: scikit-learn's coefficients, missing labels left out, and the AUC."""

import numpy as np
import pytest
from hypothesis import given, strategies as st
from sklearn.decomposition import PCA
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from packages.router.tests.fakes.planted_signal import (
    PLANTED,
    relabel,
    shuffle_labels,
    states_of,
    without_checks,
)
from prefill_router.activations import Site
from prefill_router.data import stratified_folds
from prefill_router.errors import ConfigError
from prefill_router.probes import Probes, cross_validated_auc
from prefill_router.statistics import auc_by_target
from prefill_router.testing import make_routing_dataset

pytestmark = pytest.mark.slow


def problem(
    seed: int = 0, *, rows: int = 400, features: int = 12, missing: float = 0.2
) -> tuple[np.ndarray, np.ndarray]:
    """Correlated features of unequal scale, off centre; four targets."""
    random = np.random.default_rng(seed)
    mixing = random.normal(size=(features, features)) / np.sqrt(features)
    inputs = random.normal(size=(rows, features)) @ mixing * np.linspace(0.3, 3, features) + 2
    logits = (inputs - 2) @ random.normal(size=(features, 4)) * 0.5 + [-2, 0, 0.5, 3]
    correct = (random.random((rows, 4)) < 1 / (1 + np.exp(-logits))).astype(np.float64)
    correct[random.random(correct.shape) < missing] = np.nan
    return inputs, correct


@pytest.mark.parametrize("c", [0.01, 1.0, 100.0])
@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_coefficients_are_scikit_learns(c: float, dtype: type) -> None:
    inputs, correct = problem()
    probes = Probes.fit(inputs.astype(dtype), correct, c=c)
    for k in range(4):
        is_known = ~np.isnan(correct[:, k])
        oracle = LogisticRegression(C=c, solver="newton-cholesky", tol=1e-10).fit(
            inputs[is_known], correct[is_known, k]
        )
        # in float32 the loss is flat to within its rounding over some 1e-3 of a weight
        tolerance = 1e-4 if dtype is np.float64 else 3e-3
        np.testing.assert_allclose(probes.weights[:, k], oracle.coef_[0], atol=tolerance)
        np.testing.assert_allclose(probes.intercepts[k], oracle.intercept_[0], atol=2 * tolerance)


def test_weights_depend_on_the_regularisation() -> None:
    inputs, correct = problem()
    strong, weak = (Probes.fit(inputs, correct, c=c).weights for c in (0.01, 100))
    assert (np.linalg.norm(strong, axis=0) < 0.9 * np.linalg.norm(weak, axis=0)).all()


def test_each_target_is_fitted_for_itself() -> None:
    inputs, correct = problem(1)
    together = Probes.fit(inputs, correct)
    for k in range(4):
        alone = Probes.fit(inputs, correct[:, [k]])
        np.testing.assert_allclose(alone.weights[:, 0], together.weights[:, k], atol=1e-5)


def test_a_start_changes_nothing_but_the_way() -> None:
    inputs, correct = problem(2)
    first = Probes.fit(inputs[:, :5], correct)
    np.testing.assert_allclose(
        Probes.fit(inputs, correct, start=first).weights,
        Probes.fit(inputs, correct).weights,
        atol=1e-5,
    )


def test_a_target_of_one_class_is_not_fitted_and_harms_no_other() -> None:
    inputs, correct = problem()
    single_class = correct.copy()
    single_class[:, 1], single_class[:, 2] = 1, np.nan
    probes = Probes.fit(inputs, single_class)
    assert np.isnan(probes.intercepts).tolist() == [False, True, True, False]
    expected = Probes.fit(inputs, correct).weights[:, [0, 3]]
    np.testing.assert_allclose(probes.weights[:, [0, 3]], expected, atol=1e-5)


@given(st.integers(0, 1000), st.floats(0.1, 1e4))
def test_classes_that_can_be_separated_converge(seed: int, size: float) -> None:
    random = np.random.default_rng(seed)
    inputs = random.normal(size=(20, 3)) * size
    correct = (inputs[:, :1] > 0).astype(np.float64)
    correct[:2, 0] = [0, 1]
    probes = Probes.fit(inputs, correct, c=10.0)
    assert np.isfinite(probes.weights).all()
    assert auc_by_target(probes.scores(inputs), correct)[0] > 0.5


def test_more_features_than_rows() -> None:
    inputs, correct = problem(rows=30, features=50, missing=0)
    oracle = LogisticRegression(solver="newton-cholesky", tol=1e-10).fit(inputs, correct[:, 1])
    np.testing.assert_allclose(
        Probes.fit(inputs, correct).weights[:, 1], oracle.coef_[0], atol=1e-4
    )


def test_options_that_make_no_sense_are_refused() -> None:
    inputs, correct = problem()
    with pytest.raises(ConfigError, match="c = 0"):
        Probes.fit(inputs, correct, c=0)
    with without_checks(), pytest.raises(ConfigError, match="399 of labels"):
        Probes.fit(inputs, correct[1:])


@given(st.integers(0, 1000), st.integers(2, 6))
def test_auc_is_scikit_learns_with_ties_and_missing_labels(seed: int, levels: int) -> None:
    random = np.random.default_rng(seed)
    scores = random.integers(0, levels, (50, 3)).astype(np.float64)
    correct = random.choice([0.0, 1.0, np.nan], (50, 3))
    correct[:2] = [[0.0], [1.0]]
    got = auc_by_target(scores, correct)
    for k in range(3):
        is_known = ~np.isnan(correct[:, k])
        assert got[k] == pytest.approx(roc_auc_score(correct[is_known, k], scores[is_known, k]))


def test_auc_of_one_class_is_not_defined() -> None:
    scores = np.arange(6.0).reshape(3, 2)
    correct = np.array([[1.0, 0], [1, 1], [np.nan, 0]])
    assert np.isnan(auc_by_target(scores, correct)).tolist() == [True, False]
    with without_checks(), pytest.raises(ConfigError, match=r"scores are \(3, 2\)"):
        auc_by_target(scores, correct[:2])


def test_cross_validation_is_scikit_learns_pipeline() -> None:
    dataset = make_routing_dataset(queries=200, missing=0.1)
    activations, site = states_of(dataset), Site(PLANTED, "last")
    states = activations.read(site, dataset.prompt_keys).astype(np.float64)
    folds = stratified_folds(dataset)
    got = cross_validated_auc(activations, dataset, site=site, dims=(6, 3), folds=folds)
    for row, dim in enumerate((6, 3)):
        for k in range(3):
            assert got[row, k] == pytest.approx(
                _pipeline_auc(states, dataset.correct[:, k], folds, dim), abs=1e-3
            )


def test_shuffled_labels_probe_like_chance() -> None:
    dataset = make_routing_dataset(queries=400)
    activations, site = states_of(dataset), Site(PLANTED, "last")
    true, chance = (
        cross_validated_auc(activations, d, site=site, dims=(8,), folds=stratified_folds(d))
        for d in (dataset, shuffle_labels(dataset))
    )
    assert (true > 0.8).all()
    assert (np.abs(chance - 0.5) < 0.1).all()


def test_folds_without_both_classes_are_left_out() -> None:
    dataset = make_routing_dataset(queries=60)
    correct = dataset.correct.copy()
    folds = stratified_folds(dataset)
    correct[folds < 2, 0] = np.nan
    correct[:, 1] = 0
    got = cross_validated_auc(
        states_of(dataset),
        relabel(dataset, correct),
        site=Site(PLANTED, "mean"),
        dims=(4,),
        folds=folds,
    )
    assert np.isnan(got).tolist() == [[False, True, False]]


def _pipeline_auc(states: np.ndarray, labels: np.ndarray, folds: np.ndarray, dim: int) -> float:
    scores = []
    for fold in range(5):
        train, test = folds != fold, folds == fold
        reduce = make_pipeline(StandardScaler(), PCA(dim, svd_solver="full")).fit(states[train])
        is_known, is_held = train & ~np.isnan(labels), test & ~np.isnan(labels)
        probe = LogisticRegression(solver="newton-cholesky", tol=1e-8)
        probe.fit(reduce.transform(states[is_known]), labels[is_known])
        chance = probe.decision_function(reduce.transform(states[is_held]))
        scores.append(roc_auc_score(labels[is_held], chance))
    return float(np.mean(scores))
