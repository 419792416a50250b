import numpy as np
import pytest
from sklearn.metrics import brier_score_loss

from packages.router.tests.evaluation.trials import mean, random_system, system
from prefill_router.data import binary
from prefill_router.evaluation import Trial
from prefill_router.evaluation.bootstrap import known_mean, ones
from prefill_router.evaluation.metrics import (
    brier_by_target,
    by_regime,
    macro_mean,
    routing_by_target,
    selection,
)
from prefill_router.evaluation.scores import Scorer


def test_brier_equals_scikit_learn_over_what_is_measured() -> None:
    predictions, data = random_system(missing=0.3)
    trial = Trial.join(predictions, data)
    got = brier_by_target(trial, ones(len(trial)))[0]
    for k in range(len(trial.targets)):
        is_known = ~np.isnan(data.correct[:, k])
        p, y = predictions.correctness[is_known, k], data.correct[is_known, k]
        assert got[k] == pytest.approx(brier_score_loss(y, p), abs=1e-14)


def test_brier_takes_soft_labels_as_they_are() -> None:
    trial = Trial.join(*system(*(np.full((1, 1), v) for v in (0.7, 1.0, 0.6, 1.0))))
    assert brier_by_target(trial, ones(1))[0, 0] == pytest.approx(0.01)


def test_macro_mean_leaves_undefined_targets_out() -> None:
    assert macro_mean(np.array([[0.2, np.nan, 0.4]]))[0] == pytest.approx(0.3)
    assert np.isnan(macro_mean(np.array([[np.nan]]))[0])


def test_known_mean_masks_and_the_control_does_not() -> None:
    values = np.array([[1.0], [np.nan], [0.0], [1.0]])
    assert known_mean(ones(4), values)[0, 0] == pytest.approx(2 / 3)
    assert known_mean(ones(4), np.nan_to_num(values))[0, 0] == 0.5
    assert np.isnan(known_mean(ones(4), np.full((4, 1), np.nan))[0, 0])


def test_routing_delta_is_routed_minus_away() -> None:
    predictions, data = random_system(queries=300, missing=0.2)
    trial = Trial.join(predictions, data)
    routing = routing_by_target(trial, ones(len(trial)))
    choice = predictions.correctness.argmax(axis=1)
    for k in range(len(trial.targets)):
        to = choice == k
        assert routing["share_routed"][0, k] == pytest.approx(to.mean())
        for name, table in (("accuracy", data.correct), ("cost", data.observed_cost)):
            inside, outside = mean(table[to, k]), mean(table[~to, k])
            assert routing[f"{name}_routed"][0, k] == pytest.approx(inside)
            assert routing[f"{name}_away"][0, k] == pytest.approx(outside)
            assert routing[f"{name}_delta"][0, k] == pytest.approx(inside - outside)


@pytest.mark.parametrize("missing", [0.0, 0.2])
def test_accuracy_where_routed_weighted_by_share_is_the_accuracy_at_lam_1(missing: float) -> None:
    trial = Trial.join(*random_system(missing=missing))
    targets = Scorer(trial).score(ones(len(trial)))
    weighted = targets.targets["share_routed"] * targets.targets["accuracy_routed"]
    assert np.nansum(weighted) == pytest.approx(targets.headline["argmax_accuracy"][0])


def test_regimes_share_and_accuracy() -> None:
    correct = np.array([[1.0, 1.0], [0.0, 0.0], [1.0, 0.0], [0.0, 1.0], [np.nan, np.nan]])
    correctness = np.array([[0.9, 0.1]] * 4 + [[0.5, 0.4]])
    trial = Trial.join(*system(correctness, np.ones((5, 2)), correct, np.ones((5, 2))))
    got = by_regime(trial, ones(5))
    assert got["share"][0].tolist() == [0.25, 0.25, 0.5]
    assert got["accuracy"][0].tolist() == [1, 0, 0.5]
    assert got["best_single"][0].tolist() == [1, 0, 0.5]


def test_selection_counts_right_and_cheapest_right_choices() -> None:
    correct = np.array([[1.0, 1.0], [1.0, 0.0], [0.0, 1.0], [0.0, 0.0], [1.0, np.nan]])
    cost = np.array([[1.0, 2.0]] * 5)
    # Chosen: the second, the first, the first, the first, the second (which wasn't measured).
    p = np.array([[0.1, 0.9], [0.9, 0.1], [0.9, 0.1], [0.9, 0.1], [0.1, 0.9]])
    got = selection(Trial.join(*system(p, cost, correct, cost)), ones(5))
    assert got["solvable_share"][0] == pytest.approx(4 / 5)
    assert got["solvable_accuracy"][0] == pytest.approx(2 / 3)
    assert got["optimal_selection"][0] == pytest.approx(1 / 3)


def test_a_wrong_choice_is_not_optimal_whatever_it_cost() -> None:
    correct, p = np.array([[0.0, 1.0]]), np.array([[0.9, 0.1]])
    unknown = np.array([[np.nan, 2.0]])
    got = selection(Trial.join(*system(p, np.ones((1, 2)), correct, unknown)), ones(1))
    assert got["optimal_selection"][0] == 0


def test_best_label_and_best_cost() -> None:
    predictions, data = random_system(missing=0.4)
    trial = Trial.join(predictions, data)
    for row, labels in enumerate(data.correct):
        numbers = labels[~np.isnan(labels)]
        assert trial.best_label[row] == pytest.approx(
            numbers.max() if len(numbers) else np.nan, nan_ok=True
        )
        right = data.observed_cost[row][binary(labels[None])[0] == 1]
        assert trial.best_cost[row] == pytest.approx(
            right.min() if len(right) else np.nan, nan_ok=True
        )
