"""Tests by betting: valid for any distribution and any number of observations, and no weaker."""

import math

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from scipy.stats import binom

from prefill_router.errors import ConfigError
from prefill_router.statistics import enough, p_value

pytestmark = pytest.mark.slow

LEVEL = 0.1
RUNS = 1500
LIMIT = binom.ppf(1 - 1e-6, RUNS, LEVEL) / RUNS
"""No fair test rejects more often than this by chance."""


def reject_share(draw, threshold: float, *, runs: int = RUNS) -> float:  # noqa: ANN001
    random = np.random.default_rng(0)
    return float(
        np.mean([p_value(draw(random), threshold, level=LEVEL) <= LEVEL for _ in range(runs)])
    )


SAMPLES = {
    "coins": (lambda r: (r.random(60) < 0.5).astype(float), 0.5),
    "few": (lambda r: (r.random(5) < 0.5).astype(float), 0.5),
    "rare": (lambda r: np.where(r.random(200) < 0.02, 1.0, 0.0), 0.02),
    "nearly always": (lambda r: np.where(r.random(200) < 0.98, 1.0, 0.0), 0.98),
    "three values": (lambda r: r.choice([0.0, 0.5, 1.0], 80, p=[0.1, 0.8, 0.1]), 0.5),
    "continuous": (lambda r: r.beta(0.5, 2, 100), 0.2),
}


@pytest.mark.parametrize("name", SAMPLES)
def test_a_true_hypothesis_is_rejected_no_more_often_than_the_level(name: str) -> None:
    assert reject_share(*SAMPLES[name]) <= LIMIT


def test_a_p_value_that_peeks_is_caught() -> None:
    draw, threshold = SAMPLES["coins"]

    def peek(random: np.random.Generator) -> np.ndarray:
        return np.sort(draw(random))  # an order that depends on the values

    assert reject_share(peek, threshold) > LIMIT


def test_a_false_hypothesis_is_rejected() -> None:
    assert reject_share(lambda r: r.choice([0.0, 0.5, 1.0], 800, p=[0.14, 0.78, 0.08]), 0.5) > 0.5


def test_against_an_exact_binomial_test() -> None:
    observed = np.random.default_rng(1).permutation(np.repeat([0.0, 1.0], [65, 35]))
    exact = binom.cdf(35, 100, 0.5)
    got = p_value(observed, 0.5, level=0.05)
    assert exact <= got <= 60 * exact


@given(st.lists(st.floats(0, 1), max_size=40), st.floats(0.05, 0.95), st.floats(0.001, 0.5))
@settings(max_examples=60, deadline=None)
def test_a_p_value_is_a_probability_and_rises_with_the_observations(
    observed: list[float], threshold: float, level: float
) -> None:
    values = np.array(observed, dtype=np.float64)
    got = p_value(values, threshold, level=level)
    assert 0 <= got <= 1
    assert p_value(np.ones(len(values)), threshold, level=level) == 1
    assert p_value(values, threshold, level=level) == got


def test_enough_is_what_an_even_chance_needs() -> None:
    values, chances = np.array([0.0, 0.5, 1.0]), [0.13, 0.77, 0.1]
    many = np.random.default_rng(0).choice(values, 20_000, p=chances)
    count = enough(many, 0.5, level=LEVEL)
    assert count is not None
    power = reject_share(lambda r: r.choice(values, count, p=chances), 0.5, runs=200)
    assert 0.35 < power < 0.75


def test_more_of_what_says_nothing_is_never_enough() -> None:
    assert enough(np.array([0.0, 1.0, 1.0]), 0.5, level=LEVEL) is None
    assert enough(np.zeros(0), 0.5, level=LEVEL) is None
    assert p_value(np.zeros(0), 0.5, level=LEVEL) == 1


@pytest.mark.parametrize(
    ("observed", "threshold", "level"),
    [([0.5, 1.1], 0.5, 0.1), ([math.nan], 0.5, 0.1), ([0.5], 1.0, 0.1), ([0.5], 0.5, 0.0)],
)
def test_what_makes_no_sense_is_refused(
    observed: list[float], threshold: float, level: float
) -> None:
    with pytest.raises(ConfigError, match="must be"):
        p_value(np.array(observed), threshold, level=level)
