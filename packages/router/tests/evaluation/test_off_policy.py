"""The value of a router from labels that chance selected, against truth and plain formulas."""

import numpy as np
import pytest

from packages.router.tests.evaluation.logs import draw_observed, traffic
from packages.router.tests.evaluation.trials import random_system
from prefill_router.errors import ConfigError
from prefill_router.evaluation import PolicyValues, Trial


def test_both_estimates_are_their_plain_formulas_at_every_lam() -> None:
    predictions, log, _ = traffic(queries=400, error=0.1)
    trial = Trial.join(predictions, log)
    values = PolicyValues.of(trial)
    assert log.propensity is not None
    rows = np.arange(400)
    for lam in (0.0, 0.2, 0.5, 0.8, 1.0):
        choice = trial.path.at(lam)
        p, m = log.propensity[rows, choice], predictions.correctness[rows, choice]
        is_observed = ~np.isnan(log.correct[rows, choice])
        y = np.where(is_observed, (log.correct[rows, choice] - 0.1) / 0.8, 0)
        each = m + is_observed / p * (y - m)
        value = values.at(lam)
        assert value.accuracy.value == pytest.approx(each.mean())
        error = each.std() / np.sqrt(400)
        assert value.accuracy.upper - value.accuracy.value == pytest.approx(1.96 * error, rel=1e-3)
        w = is_observed / p
        hajek = (w * y).sum() / w.sum()
        assert value.inverse.value == pytest.approx(hajek)
        error = np.sqrt((w**2 * (y - hajek) ** 2 * is_observed).sum()) / w.sum()
        assert value.inverse.upper - value.inverse.value == pytest.approx(1.96 * error, rel=1e-3)
        assert value.effective == pytest.approx(w.sum() ** 2 / (w**2).sum())


@pytest.mark.slow
@pytest.mark.parametrize("error", [0.0, 0.1])
def test_intervals_contain_the_truth_as_often_as_they_say(error: float) -> None:
    predictions, dataset = random_system(queries=800, seed=3)
    full = Trial.join(predictions, dataset)
    truth = {lam: full.of_choice(full.correct, full.path.at(lam)).mean() for lam in (0.0, 0.5, 1.0)}
    alone = full.correct.mean(axis=0)
    random = np.random.default_rng(int(100 * error))
    answered = full.path.at(0.5)[:, None] == np.arange(4)
    chance = np.where(answered, 1.0, np.where(predictions.correctness > 0.5, 0.5, 0.1))
    hits = []
    for _ in range(40):
        # The queries stay the same, so the intervals, which are for a population, are wide enough.
        log = Trial.join(predictions, draw_observed(dataset, chance, random, error=error))
        values = PolicyValues.of(log)
        for lam, value in truth.items():
            policy_value = values.at(lam)
            hits += [
                est.lower <= value <= est.upper
                for est in (policy_value.accuracy, policy_value.inverse)
            ]
        for k, policy_value in enumerate(values.targets.values()):
            hits.append(policy_value.accuracy.lower <= alone[k] <= policy_value.accuracy.upper)
    assert 0.93 <= np.mean(hits) < 1


def test_wrong_predictions_widen_the_intervals_and_move_nothing() -> None:
    predictions, log, dataset = traffic(queries=3000, label_share=0.2)
    trial = Trial.join(predictions, log)
    assert trial.chance is not None
    wrong = type(trial.chance)(
        trial.chance.observed,
        trial.chance.error,
        trial.chance.propensity,
        1 - predictions.correctness,
    )
    truth = dataset.correct.mean(axis=0)
    spread = np.nanstd(wrong.label, axis=0) / np.sqrt(3000)
    assert (np.abs(np.nanmean(wrong.label, axis=0) - truth) < 4 * spread).all()
    assert (np.nanstd(trial.chance.label, axis=0) < np.nanstd(wrong.label, axis=0)).all()


def test_labels_that_chance_did_not_select_need_no_estimate() -> None:
    with pytest.raises(ConfigError, match="propensities"):
        PolicyValues.of(Trial.join(*random_system()))
