"""The value of a router from labels that chance selected, against truth and plain formulas."""

import numpy as np
import pytest

from packages.router.tests.evaluation.logs import observed, traffic
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
        seen = ~np.isnan(log.correct[rows, choice])
        y = np.where(seen, (log.correct[rows, choice] - 0.1) / 0.8, 0)
        each = m + seen / p * (y - m)
        found = values.at(lam)
        assert found.accuracy.value == pytest.approx(each.mean())
        error = each.std() / np.sqrt(400)
        assert found.accuracy.upper - found.accuracy.value == pytest.approx(1.96 * error, rel=1e-3)
        w = seen / p
        hajek = (w * y).sum() / w.sum()
        assert found.inverse.value == pytest.approx(hajek)
        error = np.sqrt((w**2 * (y - hajek) ** 2 * seen).sum()) / w.sum()
        assert found.inverse.upper - found.inverse.value == pytest.approx(1.96 * error, rel=1e-3)
        assert found.effective == pytest.approx(w.sum() ** 2 / (w**2).sum())


@pytest.mark.slow
@pytest.mark.parametrize("error", [0.0, 0.1])
def test_intervals_contain_the_truth_as_often_as_they_say(error: float) -> None:
    predictions, whole = random_system(queries=800, seed=3)
    full = Trial.join(predictions, whole)
    truth = {lam: full.of_choice(full.correct, full.path.at(lam)).mean() for lam in (0.0, 0.5, 1.0)}
    alone = full.correct.mean(axis=0)
    random = np.random.default_rng(int(100 * error))
    answered = full.path.at(0.5)[:, None] == np.arange(4)
    chance = np.where(answered, 1.0, np.where(predictions.correctness > 0.5, 0.5, 0.1))
    held = []
    for _ in range(40):
        # The queries stay the same, so the intervals, which are for a population, are wide enough.
        log = Trial.join(predictions, observed(whole, chance, random, error=error))
        values = PolicyValues.of(log)
        for lam, value in truth.items():
            one = values.at(lam)
            held += [est.lower <= value <= est.upper for est in (one.accuracy, one.inverse)]
        for k, one in enumerate(values.targets.values()):
            held.append(one.accuracy.lower <= alone[k] <= one.accuracy.upper)
    assert 0.93 <= np.mean(held) < 1


def test_wrong_predictions_widen_the_intervals_and_move_nothing() -> None:
    predictions, log, whole = traffic(queries=3000, asked=0.2)
    trial = Trial.join(predictions, log)
    assert trial.chance is not None
    wrong = type(trial.chance)(
        trial.chance.observed,
        trial.chance.error,
        trial.chance.propensity,
        1 - predictions.correctness,
    )
    truth = whole.correct.mean(axis=0)
    spread = np.nanstd(wrong.label, axis=0) / np.sqrt(3000)
    assert (np.abs(np.nanmean(wrong.label, axis=0) - truth) < 4 * spread).all()
    assert (np.nanstd(trial.chance.label, axis=0) < np.nanstd(wrong.label, axis=0)).all()


def test_labels_that_chance_did_not_select_need_no_estimate() -> None:
    with pytest.raises(ConfigError, match="propensities"):
        PolicyValues.of(Trial.join(*random_system()))
