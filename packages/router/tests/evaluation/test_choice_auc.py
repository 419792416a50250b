"""Choice AUC: what tells two targets apart, without what they share."""

from itertools import combinations

import numpy as np
import pytest

from packages.router.tests.evaluation.trials import plain_auc, random_system, system
from prefill_router.evaluation import Trial, evaluate
from prefill_router.evaluation.bootstrap import ones
from prefill_router.evaluation.metrics import PairRankings


def choice(trial: Trial) -> dict[str, float]:
    scores = PairRankings.of(trial.correctness, trial.correct).scores(ones(len(trial)))
    return {name: float(value[0]) for name, value in scores.items()}


@pytest.mark.parametrize("missing", [0.0, 0.3])
def test_choice_auc_is_the_mean_of_the_pairs_by_loops(missing: float) -> None:
    predictions, data = random_system(queries=80, targets=8, missing=missing)
    p = predictions.correctness.clip(1e-6, 1 - 1e-6)
    odds, y = np.log(p / (1 - p)), data.correct
    best = set(np.argsort(-np.nanmean(y, axis=0))[:6].tolist())
    every, leading = [], []
    for j, k in combinations(range(8), 2):
        apart = (y[:, j] != y[:, k]) & ~np.isnan(y[:, j] + y[:, k])
        auc = plain_auc(odds[apart, j] - odds[apart, k], y[apart, j])
        every.append(auc)
        leading += [auc] if {j, k} <= best else []
    got = choice(Trial.join(predictions, data))
    assert got["choice_auc"] == pytest.approx(np.nanmean(every))
    assert got["choice_auc_best"] == pytest.approx(np.nanmean(leading))
    assert len(leading) == 15


def test_difficulty_alone_has_a_high_auc_and_chooses_nothing() -> None:
    random = np.random.default_rng(0)
    chance = random.uniform(0.05, 0.95, (3000, 1))
    correct = (random.random((3000, 4)) < chance).astype(np.float64)
    correctness = np.repeat(chance, 4, axis=1)
    cost = np.ones((3000, 4))
    headline = evaluate(*system(correctness, cost, correct, cost), resamples=0).headline
    assert headline["auc_mean"].value > 0.8
    assert headline["choice_auc"].value == 0.5


def test_knowing_which_of_two_is_right_is_a_choice_auc_of_one() -> None:
    correct = np.array([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0], [0.0, 0.0]])
    correctness = np.array([[0.2, 0.1], [0.8, 0.9], [0.1, 0.9], [0.9, 0.1]])
    got = choice(Trial.join(*system(correctness, np.ones((4, 2)), correct, np.ones((4, 2)))))
    assert got == {"choice_auc": 1.0, "choice_auc_best": 1.0}


def test_targets_that_agree_on_everything_have_none_and_say_so() -> None:
    correct = np.array([[1.0, 1.0], [0.0, 0.0]])
    evaluation = evaluate(*system(correct, np.ones((2, 2)), correct, np.ones((2, 2))), resamples=3)
    assert "exactly one of two" in evaluation.headline["choice_auc"].reason
