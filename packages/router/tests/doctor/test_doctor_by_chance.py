"""The doctor on traffic, where chance selected the labels."""

from dataclasses import replace

import numpy as np
import pytest

from packages.router.tests.doctor.patients import patient, with_parts
from packages.router.tests.evaluation.trials import Array
from prefill_router.doctor import Checkup, Subject, examine
from prefill_router.evaluation import ChanceLabels


def draw_labels(subject: Subject, chance: Array) -> Subject:
    random = np.random.default_rng(0)
    trial = subject.trial
    label = np.where(random.random(chance.shape) < chance, trial.correct, np.nan)
    labels = ChanceLabels(label, np.zeros(chance.shape), chance, trial.correctness)
    cost = labels.cost(np.where(np.isnan(label), np.nan, trial.observed_cost), trial.observed_cost)
    logged_trial = replace(trial, correct=labels.label, observed_cost=cost, chance=labels)
    return with_parts(replace(subject, trial=logged_trial))


def examine_traffic(kind: str, chance: Array) -> Checkup:
    subject = patient(kind, queries=len(chance))
    return examine(draw_labels(subject, chance), resamples=40, shuffles=40)


@pytest.mark.slow
def test_a_router_that_knows_is_worth_it_and_one_that_guesses_is_not() -> None:
    chance = np.full((2500, 3), 0.5)
    assert examine_traffic("knows", chance).verdict == "worth it"
    assert examine_traffic("random", chance).verdict == "not worth it"


def test_without_overlap_the_doctor_cannot_tell_and_says_why() -> None:
    chance = np.full((600, 3), 0.5)
    chance[:200, 2] = 0
    checkup = examine_traffic("knows", chance)
    assert checkup.verdict == "can't tell"
    assert "t2 on" in checkup.because
    mix = next(finding for finding in checkup.findings if finding.name == "mix")
    assert mix.sign == "unclear"
    assert "lack overlap" in mix.result
    assert any("lack overlap" in note for note in checkup.notes)
