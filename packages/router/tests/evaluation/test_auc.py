import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from sklearn.metrics import roc_auc_score

from packages.router.tests.evaluation.trials import plain_auc
from prefill_router.evaluation import metrics
from prefill_router.evaluation.bootstrap import ones
from prefill_router.evaluation.metrics import Ranking
from prefill_router.statistics import auc_by_target


def auc(scores: np.ndarray, labels: np.ndarray) -> float:
    return float(Ranking.of(scores, labels).auc(ones(len(scores)))[0])


def test_equals_the_unweighted_auc_of_the_probes() -> None:
    random = np.random.default_rng(3)
    labels, scores = random.integers(0, 2, (90, 3)).astype(float), random.random((90, 3)).round(1)
    labels[random.random(labels.shape) < 0.2] = np.nan
    got = [auc(*column) for column in zip(scores.T, labels.T, strict=True)]
    assert got == pytest.approx(auc_by_target(scores, labels))


def test_equals_scikit_learn_with_ties_and_missing_labels() -> None:
    random = np.random.default_rng(0)
    for decimals in (1, 15):
        labels = random.integers(0, 2, 300).astype(float)
        scores = np.round(labels * 0.2 + random.random(300), decimals)
        labels[random.random(300) < 0.2] = np.nan
        is_known = ~np.isnan(labels)
        assert auc(scores, labels) == pytest.approx(
            roc_auc_score(labels[is_known], scores[is_known]), abs=1e-14
        )


def test_weights_are_repeated_rows() -> None:
    random = np.random.default_rng(1)
    labels, scores = random.integers(0, 2, 80).astype(float), np.round(random.random(80), 1)
    rows = random.integers(0, 80, 80)
    weights = np.bincount(rows, minlength=80).astype(float)[None]
    expected = roc_auc_score(labels[rows], scores[rows])
    assert Ranking.of(scores, labels).auc(weights)[0] == pytest.approx(expected, abs=1e-14)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 4), st.sampled_from([0.0, 0.3, 0.5, 1.0])), min_size=1))
def test_counts_the_pairs(rows: list[tuple[int, float]]) -> None:
    scores, labels = (np.array(column, dtype=float) for column in zip(*rows, strict=True))
    assert auc(scores, labels) == pytest.approx(plain_auc(scores, labels), nan_ok=True)


@pytest.mark.parametrize("labels", [[1.0, 1.0], [0.0, 0.0], [np.nan, np.nan], [np.nan, 1.0]])
def test_one_class_is_undefined(labels: list[float]) -> None:
    assert np.isnan(auc(np.array([0.1, 0.9]), np.array(labels)))


def test_random_labels_give_a_half_and_planted_ones_do_not() -> None:
    random = np.random.default_rng(2)
    scores = random.random(20_000)
    assert auc(scores, random.integers(0, 2, 20_000).astype(float)) == pytest.approx(0.5, abs=0.015)
    assert auc(scores, (scores + random.random(20_000) > 1).astype(float)) > 0.8


def test_a_missing_label_is_not_a_wrong_answer() -> None:
    scores = np.array([0.9, 0.8, 0.2, 0.1])
    labels = np.array([1.0, np.nan, 1.0, 0.0])
    assert auc(scores, labels) == 1.0
    assert auc(scores, np.nan_to_num(labels)) == 0.75


def test_many_queries_are_computed_one_resample_after_another(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    random = np.random.default_rng(4)
    labels, scores = random.integers(0, 2, 80).astype(float), np.round(random.random(80), 1)
    weights = random.integers(0, 3, (5, 80)).astype(float)
    together = Ranking.of(scores, labels).auc(weights)
    monkeypatch.setattr(metrics, "_LONG", 10)
    np.testing.assert_array_equal(Ranking.of(scores, labels).auc(weights), together)
