"""Estimates from labels that chance selected or that err, and where overlap is lacking."""

from dataclasses import replace

import numpy as np
import pytest

from packages.router.tests.evaluation.logs import draw_observed, traffic
from packages.router.tests.evaluation.trials import random_system
from prefill_router.data import RoutingDataset
from prefill_router.errors import ConfigError, OverlapError
from prefill_router.evaluation import (
    ChanceLabels,
    FixedChoice,
    JudgedPart,
    PolicyValues,
    References,
    SimulatedCheck,
    Trial,
    auc_by_target,
    evaluate,
    judge,
    ones,
    rankings,
)
from prefill_router.evaluation.scores import NEEDS_ALL_LABELS, NOT_KNOWN
from prefill_router.policy import Cascade


def test_the_mean_of_an_estimate_over_the_draw_and_the_error_is_the_label() -> None:
    random = np.random.default_rng(0)
    shape = (50, 3)
    label, m = random.integers(0, 2, shape).astype(float), random.random(shape)
    p, e = random.uniform(0.05, 0.9, shape), random.uniform(0, 0.4, shape)
    missing = np.full(shape, np.nan)
    estimates = [ChanceLabels(y, e, p, m).label for y in (label, 1 - label, missing)]
    chances = p * (1 - e), p * e, 1 - p
    mean = sum(chance * estimate for chance, estimate in zip(chances, estimates, strict=True))
    assert mean == pytest.approx(label)
    low, high = ChanceLabels(label, e, p, m).bounds
    for estimate in estimates:
        assert (low <= estimate + 1e-9).all()
        assert (estimate <= high + 1e-9).all()


def test_labels_that_were_certain_to_be_observed_are_judged_as_they_are() -> None:
    predictions, dataset = random_system(queries=200)
    certain = replace(dataset, propensity=np.ones(dataset.correct.shape))
    complete, log_trial = (Trial.join(predictions, data) for data in (dataset, certain))
    assert log_trial.correct == pytest.approx(complete.correct)
    assert log_trial.observed_cost == pytest.approx(complete.observed_cost)
    aucs = [auc_by_target(rankings(trial), ones(200)) for trial in (complete, log_trial)]
    assert aucs[1] == pytest.approx(aucs[0])
    brier = [trial.squared_error(trial.correctness) for trial in (complete, log_trial)]
    assert brier[1] == pytest.approx(brier[0])


@pytest.mark.slow
def test_a_log_is_evaluated_about_as_all_labels_are() -> None:
    predictions, log, dataset = traffic(queries=1400, label_share=0.5, error=0.1)
    ids = log.query_ids
    test_predictions = predictions.select(ids[500:])
    evaluation, truth = (
        evaluate(
            test_predictions, data, resamples=20, references=fit_references(data.select(ids[:500]))
        )
        for data in (log, dataset)
    )
    for name in (
        "argmax_accuracy",
        "argmax_cost",
        "best_single_accuracy",
        "auc_mean",
        "brier_mean",
    ):
        estimate = evaluation.headline[name]
        half = max(estimate.upper - estimate.lower, 1e-3)
        assert estimate.value == pytest.approx(truth.headline[name].value, abs=half), name
    assert evaluation.verdict is not None
    assert evaluation.verdict.compared == 900
    assert "chance selected" in evaluation.caution
    unknown = {
        name for name, estimate in evaluation.headline.items() if estimate.reason == NOT_KNOWN
    }
    assert unknown == NEEDS_ALL_LABELS & set(evaluation.headline)
    content = evaluation.to_dict()
    assert set(content["off_policy"]["lam"]) == {"0", "1"}
    assert content["coverage"]["overlap"]["lacking"] == 0
    assert "off_policy" not in truth.to_dict()


def test_erring_labels_alone_are_corrected_and_nothing_is_weighted() -> None:
    predictions, dataset = random_system(queries=300)
    error = np.full(dataset.correct.shape, 0.1)
    trial = Trial.join(predictions, replace(dataset, label_error=error))
    assert trial.correct == pytest.approx((dataset.correct - 0.1) / 0.8)
    assert np.array_equal(trial.observed_cost, dataset.observed_cost)
    assert trial.overlap is None
    assert np.isnan(trial.best_label).all()


def test_the_fixed_mix_of_a_log_is_chosen_by_inverse_propensity() -> None:
    """A target that is asked only what it gets right isn't chosen for that."""
    _, dataset = random_system(queries=3000, seed=2)
    chance = np.full(dataset.correct.shape, 0.5)
    easy = dataset.correct.mean(axis=1) > 0.5
    chance[:, 0] = np.where(easy, 1.0, 0.1)  # the worst target, mostly asked easy questions
    log = draw_observed(dataset, chance, np.random.default_rng(0))
    free = replace(log, recorded_cost=np.full(chance.shape, np.nan))
    best = int(dataset.correct.mean(axis=0).argmax())
    assert np.nanmean(log.correct[:, 0]) > np.nanmean(log.correct[:, 1])
    assert FixedChoice.mix(free).corners == (best,)


def fit_references(train: RoutingDataset) -> References:
    return References.fit(train, np.zeros(train.correct.shape))


def make_log(target: int, share: float) -> tuple[Trial, RoutingDataset]:
    """A log in which a target was never asked on a share of the queries."""
    predictions, dataset = random_system(queries=1000)
    random = np.random.default_rng(0)
    chance = np.full(dataset.correct.shape, 0.5)
    chance[random.random(1000) < share, target] = 0
    log = draw_observed(dataset, chance, random)
    return Trial.join(predictions, log), log


def test_where_overlap_is_lacking_nothing_is_estimated_and_it_says_where() -> None:
    trial, log = make_log(3, 0.5)
    lost = int((log.propensity[:, 3] == 0).sum())  # type: ignore[index]
    values = PolicyValues.of(trial)
    with pytest.raises(OverlapError, match=r"t3 on \d+ of \d+.*some probability"):
        values.at(1.0)
    assert values.at(0.0).accuracy.value > 0  # the cheapest target was asked everywhere
    assert np.isnan(values.table["accuracy"][-1])
    assert set(values.targets) == {"t0", "t1", "t2"}
    assert not trial.compared.any()
    assert trial.overlap is not None
    assert f"{lost} of 1,000 queries lack overlap" in trial.overlap.note
    verdict = judge([JudgedPart(trial, fit_references(log), lam=1.0)], resamples=20)
    assert verdict.word == "can't tell"
    assert "lack overlap" in verdict.because
    assert np.isnan(verdict.setting.mix.gain.value)


def test_a_few_queries_without_overlap_are_left_out_and_told() -> None:
    trial, log = make_log(3, 0.03)
    lost = int((log.propensity[:, 3] == 0).sum())  # type: ignore[index]
    assert 0 < lost == 1000 - trial.compared.sum()
    assert trial.overlap is not None
    assert not trial.overlap.refusal
    assert f"{lost} of 1,000 queries lack overlap and are left out" in trial.overlap.note


def test_labels_that_chance_did_not_select_are_left_out_and_counted() -> None:
    predictions, log, _ = traffic()
    assert log.propensity is not None
    chance = log.propensity.copy()
    chance[:70] = np.nan
    trial = Trial.join(predictions, replace(log, propensity=chance))
    assert not trial.compared[:70].any()
    assert trial.compared[70:].all()
    assert trial.overlap is not None
    assert "70 queries are left out, since not chance decided" in trial.overlap.note


def test_labels_lost_by_other_reasons_than_chance_are_told() -> None:
    predictions, log, _ = traffic()
    correct = log.correct.copy()
    correct[: len(log) // 2, 1] = np.nan
    trial = Trial.join(predictions, replace(log, correct=correct))
    assert trial.overlap is not None
    assert trial.overlap.short == ("t1",)
    assert "t1 has" in trial.overlap.note


def test_too_few_labels_are_refused() -> None:
    predictions, log, _ = traffic(queries=30, label_share=0.2)
    with pytest.raises(OverlapError, match="equally weighted"):
        PolicyValues.of(Trial.join(predictions, log)).at(1.0)


def test_a_cascade_is_not_judged_by_labels_that_chance_selected() -> None:
    predictions, log, _ = traffic(queries=50)
    with pytest.raises(ConfigError, match="cascade"):
        Trial.join(
            predictions,
            log,
            policy=Cascade(),
            check=SimulatedCheck(sensitivity=0.9, specificity=0.9),
        )
