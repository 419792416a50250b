"""The doctor on traffic, where chance selected the labels."""

from dataclasses import replace

import numpy as np
import pytest

from packages.router.tests.doctor.patients import patient, with_parts
from packages.router.tests.evaluation.trials import Array
from prefill_router.doctor import Checkup, Subject, examine
from prefill_router.evaluation import ChanceLabels


def seen_by_chance(subject: Subject, chance: Array) -> Subject:
    random = np.random.default_rng(0)
    trial = subject.trial
    label = np.where(random.random(chance.shape) < chance, trial.correct, np.nan)
    labels = ChanceLabels(label, np.zeros(chance.shape), chance, trial.correctness)
    cost = labels.cost(np.where(np.isnan(label), np.nan, trial.observed_cost), trial.observed_cost)
    seen = replace(trial, correct=labels.label, observed_cost=cost, chance=labels)
    return with_parts(replace(subject, trial=seen))


def examined(kind: str, chance: Array) -> Checkup:
    subject = patient(kind, queries=len(chance))
    return examine(seen_by_chance(subject, chance), resamples=40, shuffles=40)


@pytest.mark.slow
def test_a_router_that_knows_is_worth_it_and_one_that_guesses_is_not() -> None:
    chance = np.full((2500, 3), 0.5)
    assert examined("knows", chance).verdict == "worth it"
    assert examined("random", chance).verdict == "not worth it"


def test_without_overlap_the_doctor_cannot_tell_and_says_why() -> None:
    chance = np.full((600, 3), 0.5)
    chance[:200, 2] = 0
    found = examined("knows", chance)
    assert found.verdict == "can't tell"
    assert "t2 on" in found.because
    mix = next(one for one in found.findings if one.name == "mix")
    assert mix.sign == "unclear"
    assert "lack overlap" in mix.result
    assert any("lack overlap" in note for note in found.notes)
