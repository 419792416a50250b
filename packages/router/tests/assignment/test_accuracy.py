"""The forecast is corrected by what judged queries say of the chosen targets."""

import dataclasses

import numpy as np
import pytest

from packages.router.tests.assignment.worlds import predictions_of, random_predictions
from prefill_router.assignment import assign, expect_accuracy
from prefill_router.data import Query, RoutingDataset
from prefill_router.errors import DataError
from prefill_router.evaluation import Trial
from prefill_router.policy import Predictions
from prefill_router.targets import Pool, Target

PROMPTS, JUDGED = 400, 600


def draw_trial(predictions: Predictions, truth: np.ndarray, seed: int) -> Trial:
    """Labels drawn by the true probabilities."""
    is_right = np.random.default_rng(seed).random(truth.shape) < truth
    queries = [Query(name, name) for name in predictions.query_ids]
    pool = Pool(tuple(Target(name=name) for name in predictions.targets))
    return Trial.join(predictions, RoutingDataset.of(queries, pool, is_right.astype(np.float64)))


def world(seed: int, *, error: float) -> tuple[Predictions, np.ndarray]:
    """Predictions with noise of their own, and the true probabilities."""
    predictions = random_predictions(PROMPTS + JUDGED, 4, seed)
    truth = predictions.correctness
    noise = np.random.default_rng([seed, 1]).normal(0, error, truth.shape)
    return dataclasses.replace(predictions, correctness=np.clip(truth + noise, 0.01, 0.99)), truth


def select_rows(predictions: Predictions, rows: slice) -> Predictions:
    return predictions.select(predictions.query_ids[rows])


@pytest.mark.slow
def test_the_interval_holds_the_accuracy_about_as_often_as_it_says() -> None:
    covers, gains = [], []
    for seed in range(60):
        predictions, truth = world(seed, error=0.15)
        assignment = assign(select_rows(predictions, slice(PROMPTS)), budget=1200)
        trial = draw_trial(select_rows(predictions, slice(PROMPTS, None)), truth[PROMPTS:], seed)
        expected = expect_accuracy(assignment, trial, resamples=200)
        p = truth[np.arange(PROMPTS), assignment.choice]
        observed = (np.random.default_rng([seed, 2]).random(PROMPTS) < p).mean()
        covers.append(expected.corrected.lower <= observed <= expected.corrected.upper)
        gains.append(abs(expected.predicted - observed) - abs(expected.corrected.value - observed))
    assert np.mean(covers) >= 0.85
    assert np.mean(gains) > 0.02  # chosen predictions are too high, and that is corrected


def test_right_predictions_need_no_correction() -> None:
    predictions, truth = world(0, error=0.0)
    assignment = assign(select_rows(predictions, slice(PROMPTS)), budget=1200, limits={"t3": 50})
    trial = draw_trial(select_rows(predictions, slice(PROMPTS, None)), truth[PROMPTS:], 0)
    expected = expect_accuracy(assignment, trial, resamples=200)
    assert expected.error.lower < 0 < expected.error.upper
    assert expected.corrected.lower < expected.predicted < expected.corrected.upper
    assert expected.judged == JUDGED


def test_the_turns_of_a_conversation_stay_together() -> None:
    predictions, truth = world(0, error=0.0)
    assignment = assign(select_rows(predictions, slice(PROMPTS)), budget=1200)
    trial = draw_trial(select_rows(predictions, slice(PROMPTS, None)), truth[PROMPTS:], 0)
    turns = tuple(f"c{row // 100}" for row in range(JUDGED))
    one_in_each = np.repeat(np.random.default_rng(1).random(JUDGED // 100) < 0.5, 100)
    same = dataclasses.replace(trial, correct=np.tile(one_in_each[:, None], (1, 4)) * 1.0)
    alone, together = (
        expect_accuracy(
            assignment, dataclasses.replace(same, conversations=groups), resamples=200
        ).error
        for groups in (None, turns)
    )
    assert together.upper - together.lower > 2 * (alone.upper - alone.lower)


def test_missing_labels_are_left_out_and_all_missing_are_refused() -> None:
    p = np.tile([0.2, 0.8], (20, 1))
    predictions = predictions_of(p, np.tile([1.0, 2.0], (20, 1)))
    assignment = assign(predictions, budget=1e9)
    labels = np.column_stack([np.ones(20), np.full(20, np.nan)])
    labels[0, 1] = 1
    queries = [Query(name, name) for name in predictions.query_ids]
    pool = Pool(tuple(Target(name=name) for name in predictions.targets))
    forecast = expect_accuracy(
        assignment, Trial.join(predictions, RoutingDataset.of(queries, pool, labels)), resamples=50
    )
    assert (forecast.judged, forecast.error.value) == (1, pytest.approx(0.2))
    labels[0, 1] = np.nan
    with pytest.raises(DataError, match="no chosen target of a judged query has a label"):
        expect_accuracy(
            assignment, Trial.join(predictions, RoutingDataset.of(queries, pool, labels))
        )
