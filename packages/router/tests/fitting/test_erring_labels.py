"""Labels that may be wrong, in the fit."""

from dataclasses import replace

import numpy as np
import pytest

from packages.router.tests.fitting.recipe_fits import ANSWERS, PREFILL, STATES
from prefill_router.calibration import fit_calibrator
from prefill_router.data import Query, RoutingDataset
from prefill_router.fitting import FitConfig, fit_router, recipe_from_dict
from prefill_router.fitting.inputs import (
    calibrate,
    correct_labels,
    posterior,
    posterior_labels,
)
from prefill_router.predictors import Examples, predictor_config
from prefill_router.progress import SilentProgress
from prefill_router.statistics import sigmoid
from prefill_router.targets import Pool, Target

NAN = np.nan


def test_the_posterior_is_bayes_rule() -> None:
    prior = np.array([[0.7, 0.7, 0.7, 0.7, 0.7]])
    label = np.array([[1.0, 0.0, 1.0, NAN, 0.25]])
    error = np.array([[0.1, 0.1, NAN, 0.1, 0.1]])
    right, wrong = 0.63 / (0.63 + 0.03), 0.07 / (0.07 + 0.27)
    expected = [[right, wrong, 1.0, NAN, 0.25 * right + 0.75 * wrong]]
    assert posterior(label, error, prior) == pytest.approx(np.array(expected), nan_ok=True)


def test_corrected_labels_are_right_on_average() -> None:
    label, error = np.array([[1.0, 0.0]]), np.array([[0.2, 0.2]])
    mean = 0.8 * correct_labels(label, error) + 0.2 * correct_labels(1 - label, error)
    assert mean == pytest.approx(label)


def flip_labels(error: float, *, rows: int = 1200) -> tuple[Examples, np.ndarray, np.ndarray]:
    """Examples with flipped labels, the true labels and the errors; half of them are exact."""
    random = np.random.default_rng(0)
    features = random.normal(size=(rows, 6)).astype(np.float32)
    odds = 2.5 * features[:, :2] + np.array([0.3, -0.3])
    truth = (random.random((rows, 2)) < sigmoid(odds.astype(np.float64))).astype(np.float64)
    errors = np.where(random.random(truth.shape) < 0.5, error, NAN)
    flipped = random.random(truth.shape) < np.nan_to_num(errors)
    label = np.where(flipped, 1 - truth, truth)
    label[0, 0] = NAN
    folds = np.arange(rows) % 5
    return Examples(features, label, ("a", "b"), ("",) * rows, folds=folds), truth, errors


def test_posterior_labels_are_nearer_to_the_truth_and_exact_ones_stay() -> None:
    examples, truth, errors = flip_labels(0.25)
    config = predictor_config({"kind": "logistic", "c": 1.0})
    labels = posterior_labels(config, examples, errors, seed=0, progress=SilentProgress())
    exact = np.isnan(errors)
    assert np.array_equal(labels[exact], examples.correct[exact], equal_nan=True)
    before, after = (np.nanmean((t - truth)[~exact] ** 2) for t in (examples.correct, labels))
    assert before == pytest.approx(0.25, abs=0.03)
    assert after < 0.5 * before
    assert np.nanmean(labels[~exact]) == pytest.approx(truth[~exact].mean(), abs=0.03)


def test_exact_labels_are_not_touched() -> None:
    examples, _, errors = flip_labels(0.25)
    config = predictor_config({"kind": "logistic", "c": 1.0})
    for none in (None, np.full(errors.shape, NAN)):
        labels = posterior_labels(config, examples, none, seed=0, progress=SilentProgress())
        assert labels is examples.correct


@pytest.mark.slow
def test_a_fit_knows_the_errors_of_its_labels() -> None:
    parts = {"features": PREFILL, "predictor": "constant", "calibration": "platt"}
    recipe = recipe_from_dict(parts)
    config = FitConfig(test=0.15, recipe=recipe, resamples=0)

    def fit(data: RoutingDataset) -> object:
        return fit_router(data, [STATES], config=config).router

    plain = fit(ANSWERS)
    exact = fit(replace(ANSWERS, label_error=np.full(ANSWERS.correct.shape, NAN)))
    erring = fit(replace(ANSWERS, label_error=np.full(ANSWERS.correct.shape, 0.2)))
    predictions = [r.predict(ANSWERS, stores=[STATES]).correctness for r in (plain, exact, erring)]  # type: ignore[attr-defined]
    assert np.array_equal(predictions[0], predictions[1])
    assert not np.allclose(predictions[0], predictions[2])
    assert any("20.0 %" in note for note in erring.record.notes)  # type: ignore[attr-defined]


def test_a_calibrator_is_not_drawn_to_the_middle_by_wrong_labels() -> None:
    random = np.random.default_rng(0)
    odds = random.normal(0, 2, (8000, 1))
    truth = (random.random(odds.shape) < sigmoid(odds)).astype(np.float64)
    label = np.where(random.random(odds.shape) < 0.2, 1 - truth, truth)
    predicted = sigmoid(odds / 2)  # too timid
    pool = Pool((Target(name="a"),))
    part = RoutingDataset.of(
        [Query(f"q{i}", "?") for i in range(8000)],
        pool,
        label,
        label_error=np.full(label.shape, 0.2),
    )
    calibrated_chances = calibrate("platt", predicted, part).calibrator.calibrate(predicted)
    naive = fit_calibrator("platt", predicted, label, ("a",)).calibrator.calibrate(predicted)
    off, naive_off = (
        np.abs(chances - sigmoid(odds)).mean() for chances in (calibrated_chances, naive)
    )
    assert off < 0.4 * naive_off
