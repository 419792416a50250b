"""Tests that are valid at any moment."""

import math

import numpy as np
import pytest

from prefill_router.errors import ConfigError
from prefill_router.statistics import _STAKES, ChangeDetector, log_capital


def path(shortfalls: list[float]) -> list[float]:
    detector = ChangeDetector()
    return [detector.add(shortfall, worst=1.0) for shortfall in shortfalls]


def test_capital_is_the_mean_over_strategies_of_products() -> None:
    shortfalls = np.array([0.5, -0.25, 0.1])
    products = np.cumprod(1 + np.outer(shortfalls / 0.5, _STAKES), axis=0).mean(axis=1)
    assert np.allclose(np.exp(log_capital(shortfalls, worst=0.5)), products, rtol=1e-12)


def test_detector_is_the_sum_of_the_capitals_of_all_who_began() -> None:
    shortfalls = [0.5, -0.25, 0.1, 0.4]
    for end, value in enumerate(path(shortfalls), 1):
        capitals = [log_capital(np.array(shortfalls[i:end]), worst=1.0)[-1] for i in range(end)]
        assert value == pytest.approx(np.logaddexp.reduce(capitals), abs=1e-12)


def test_what_was_computed_does_not_depend_on_what_follows() -> None:
    shortfalls = np.random.default_rng(0).uniform(-1, 1, 50)
    assert np.array_equal(
        log_capital(shortfalls, worst=1.0)[:20], log_capital(shortfalls[:20], worst=1.0)
    )


@pytest.mark.slow
def test_without_shortfalls_rejections_and_alarms_are_as_rare_as_promised() -> None:
    """At most a twentieth of the capitals exceed 20, and of the detectors 20 times the steps."""
    rng, rejected, alarms = np.random.default_rng(1), 0, 0
    for _ in range(200):
        expected = rng.uniform(0.2, 0.9, 200)
        shortfalls = expected - (rng.random(200) < expected)
        rejected += log_capital(shortfalls, worst=0.8).max() > math.log(20)
        alarms += max(path(shortfalls.tolist())) > math.log(200 * 20)
    assert rejected <= 18  # of 200; more than 18 has a probability below 0.01 at one in twenty
    assert alarms <= 18


def test_shortfalls_that_begin_late_are_noticed_soon() -> None:
    rng = np.random.default_rng(2)
    right = rng.random(1200) < np.where(np.arange(1200) < 1000, 0.8, 0.4)
    reached = np.array(path((0.8 - right).tolist())) > math.log(1200 * 20)
    assert 1000 < int(reached.argmax()) < 1100


@pytest.mark.parametrize(("shortfall", "worst"), [(-0.6, 0.5), (0.1, 0.0)])
def test_a_worst_excess_that_is_not_is_refused(shortfall: float, worst: float) -> None:
    with pytest.raises(ConfigError, match="worst"):
        log_capital(np.array([shortfall]), worst=worst)
