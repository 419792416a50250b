"""The calibration error's interval covers what endless queries would say, near 0 and far off."""

import dataclasses
import functools
from collections.abc import Callable

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.stats import binom

from packages.router.tests.evaluation.trials import random_system
from prefill_router.evaluation import Trial, evaluate
from prefill_router.evaluation.bootstrap import ones
from prefill_router.evaluation.reliability import Bins, calibration_error, chance_error
from prefill_router.evaluation.reliability_diagram import MEAN, reliability_of

pytestmark = pytest.mark.slow

Array = NDArray[np.float64]
DRAWS, TARGETS = 25, 4


def too_sure(chance: Array) -> Array:
    odds = (chance / (1 - chance)) ** 2
    return odds / (1 + odds)


FORECASTS: dict[str, Callable[[Array], Array]] = {
    "calibrated": lambda chance: chance,
    "too sure": too_sure,
    "too high": lambda chance: np.clip(chance + 0.05, 0, 1),
    "off in one place": lambda chance: np.where(abs(chance - 0.65) < 0.05, chance - 0.15, chance),
}


def measure_endless(kind: str) -> float:
    """The binned error where each bin's share of right answers is known."""
    chance = np.random.default_rng(99).beta(2, 2, 200_000)
    forecast = FORECASTS[kind](chance)
    inside = np.minimum((15 * forecast).astype(int), 14)
    return float(np.abs(np.bincount(inside, forecast - chance)).sum() / len(forecast))


@functools.cache
def make_trial(queries: int) -> Trial:
    return Trial.join(*random_system(queries=queries, targets=TARGETS))


def draw_trial(kind: str, *, queries: int, seed: int) -> Trial:
    random = np.random.default_rng(seed)
    chance = random.beta(2, 2, (queries, TARGETS))
    correct = (random.random(chance.shape) < chance).astype(np.float64)
    return dataclasses.replace(
        make_trial(queries), correctness=FORECASTS[kind](chance), correct=correct
    )


@pytest.mark.parametrize(
    ("kind", "queries"),
    [("calibrated", 120), ("too high", 120), ("too sure", 600), ("off in one place", 600)],
)
def test_nine_intervals_of_ten_hold_the_truth(kind: str, queries: int) -> None:
    truth, hits = measure_endless(kind), dict.fromkeys(("t0", MEAN), 0)
    for seed in range(DRAWS):
        reliability = reliability_of(
            draw_trial(kind, queries=queries, seed=seed), resamples=60, seed=seed
        )
        for name in hits:
            estimate = reliability.estimates[name]["ece"]
            hits[name] += estimate.lower <= truth <= estimate.upper
            assert estimate.lower <= estimate.value <= estimate.upper
    assert min(hits.values()) >= 0.9 * DRAWS, hits


def test_intervals_of_what_is_off_leave_zero_out() -> None:
    """Negative control: an interval that always went down to 0 would cover as well."""
    reliabilities = [
        reliability_of(draw_trial("too sure", queries=900, seed=s), resamples=60) for s in range(5)
    ]
    assert all(reliability.estimates[MEAN]["ece"].lower > 0.02 for reliability in reliabilities)


def test_the_level_by_chance_is_the_mean_of_what_holds() -> None:
    errors, levels = [], []
    for seed in range(40):
        trial = draw_trial("calibrated", queries=80, seed=seed)  # few queries to a bin
        sums = Bins.of(trial).sums(ones(80))
        errors.append(calibration_error(sums)[0, :-1].mean())
        levels.append(chance_error(sums)[0, :-1].mean())
    spread = np.std(errors) / np.sqrt(len(errors))
    assert abs(np.mean(errors) - np.mean(levels)) < 3 * spread
    assert np.mean(levels) > 20 * spread  # control: it isn't near 0


def test_the_level_by_chance_of_one_bin_is_the_binomial_mean_deviation() -> None:
    trial = draw_trial("calibrated", queries=7, seed=0)
    trial = dataclasses.replace(trial, correctness=np.full((7, TARGETS), 0.3))
    counts = np.arange(8)
    expected = (binom.pmf(counts, 7, 0.3) * np.abs(counts / 7 - 0.3)).sum()
    got = chance_error(Bins.of(trial, count=1).sums(ones(7)))[0, :-1]
    np.testing.assert_allclose(got, expected)


def test_soft_labels_have_less_chance_in_them() -> None:
    trial = draw_trial("calibrated", queries=500, seed=1)
    soft = dataclasses.replace(trial, correct=0.2 * trial.correct + 0.4)
    hard, softer = (chance_error(Bins.of(t).sums(ones(500)))[0, 0] for t in (trial, soft))
    assert softer == pytest.approx(0.2 * hard, rel=0.1)


def test_an_evaluation_has_both_numbers() -> None:
    trial = draw_trial("calibrated", queries=300, seed=2)
    predictions, data = random_system(queries=300, targets=TARGETS, seed=2)
    data = dataclasses.replace(data, correct=trial.correct)
    calibrated_predictions = dataclasses.replace(predictions, correctness=trial.correctness)
    headline = evaluate(calibrated_predictions, data, resamples=60).headline
    assert headline["ece_mean"].lower == 0
    assert headline["ece_mean"].value == pytest.approx(headline["ece_by_chance"].value, abs=0.03)
