"""Shrinkage removes noise and keeps signal; one factor alone decides the choices."""

import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from numpy.typing import NDArray

from packages.router.tests.fakes.planted_signal import without_checks
from prefill_router.calibration import Shrinkage
from prefill_router.calibration.shrinkage import common_rates
from prefill_router.errors import ConfigError, CorruptError
from prefill_router.policy import lambda_path

Array = NDArray[np.float64]
NAMES = ("a", "b", "c", "d")
LEVEL = np.array([0.3, 0.45, 0.6, 0.7])


def folds(rows: int) -> NDArray[np.int64]:
    return np.arange(rows, dtype=np.int64) % 5


def draw_labels(rows: int, *, hard: float, own: float, seed: int = 0) -> tuple[Array, Array, Array]:
    """Labels, and two parts of their probabilities: that of all targets, and each target's."""
    random = np.random.default_rng(seed)
    shared = hard * random.uniform(-1, 1, (rows, 1))
    apart = own * random.uniform(-1, 1, (rows, 4))
    correct = (random.random((rows, 4)) < LEVEL + shared + apart).astype(np.float64)
    return correct, shared, apart


def noise(rows: int, seed: int = 0) -> Array:
    return np.random.default_rng(seed).normal(0, 0.08, (rows, 4))


def fit(predicted: Array, correct: Array) -> Shrinkage:
    return Shrinkage.fit(np.clip(predicted, 0, 1), correct, folds(len(correct)), NAMES)


def test_noise_is_taken_away() -> None:
    shrinkages = []
    for seed in range(40):
        correct, _, _ = draw_labels(200, hard=0.2, own=0.0, seed=seed)
        shrinkages.append(fit(LEVEL + noise(200, seed + 1000), correct))
    assert np.mean([shrinkage.choice for shrinkage in shrinkages]) < 0.05
    # one standard error: 84 % by chance
    assert np.mean([shrinkage.choice == 0 for shrinkage in shrinkages]) > 0.7


def test_what_is_known_stays() -> None:
    correct, shared, apart = draw_labels(4000, hard=0.1, own=0.15)
    exact = fit(LEVEL + shared + apart, correct)
    assert exact.choice > 0.9
    assert exact.difficulty > 0.9
    half = fit(LEVEL + 2 * (shared + apart), correct)
    assert half.choice == pytest.approx(0.5, abs=0.07)
    contrary = fit(LEVEL - shared - apart, correct)
    assert (contrary.choice, contrary.difficulty) == (0, 0)


def test_difficulty_and_choice_are_learned_apart() -> None:
    correct, shared, _ = draw_labels(4000, hard=0.25, own=0.0)
    shrinkage = fit(LEVEL + shared + noise(4000), correct)
    assert shrinkage.difficulty > 0.8
    assert shrinkage.choice < 0.1


def test_rates_of_folds_are_no_signal_against_the_predictions() -> None:
    """The others' rates are low where a fold's are high; the slope through all would be -4."""
    correct, _, apart = draw_labels(100, hard=0.0, own=0.25)
    place = folds(100)
    rates = np.stack([correct[place != fold].mean(axis=0) for fold in range(5)])[place]
    assert fit(rates, correct).choice == 0  # nothing varies within a fold
    assert fit(rates + apart, correct).choice > 0.4


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10_000), st.floats(0, 1), st.floats(0, 1))
def test_only_one_factor_parts_the_targets(seed: int, difficulty: float, choice: float) -> None:
    random = np.random.default_rng(seed)
    p, base = random.random((20, 4)), random.random(4)
    after = Shrinkage(NAMES, base, difficulty, choice).shrink(p)
    assert ((after >= 0) & (after <= 1)).all()
    mixed = base + choice * (p - base)
    np.testing.assert_allclose(after - after[:, :1], mixed - mixed[:, :1], atol=1e-12)
    alone = np.concatenate([Shrinkage(NAMES, base, difficulty, choice).shrink(r[None]) for r in p])
    np.testing.assert_array_equal(alone, after)


def test_without_choice_the_base_rates_choose_whatever_the_difficulty() -> None:
    random = np.random.default_rng(3)
    p, cost = random.random((200, 4)), np.tile([0.0, 0.1, 0.4, 1.0], (200, 1))
    after = Shrinkage(NAMES, LEVEL, 1.0, 0.0).shrink(p)
    assert after.std(axis=0).min() > 0.02  # control: the difficulty is there
    for lam in np.linspace(0.031, 0.957, 19):
        expected = lambda_path(LEVEL[None], cost[:1]).at(lam)[0]
        assert (lambda_path(after, cost).at(lam) == expected).all()


def test_equal_factors_never_fall_in_a_targets_own_prediction() -> None:
    rising = np.repeat(np.linspace(0, 1, 500)[:, None], 4, axis=1)
    after = Shrinkage(NAMES, LEVEL, 0.6, 0.6).shrink(rising)
    assert (np.diff(after, axis=0) > 0).all()
    np.testing.assert_allclose(Shrinkage(NAMES, LEVEL, 1, 1).shrink(rising), rising, atol=1e-12)


def test_rates_are_plain_where_nothing_is_missing() -> None:
    correct, _, _ = draw_labels(300, hard=0.2, own=0.1)
    np.testing.assert_allclose(common_rates(correct), (correct.sum(axis=0) + 1) / 302)


def test_a_label_that_is_missing_helps_nobody() -> None:
    """Target d lacks its labels on hard queries; this doesn't raise its rate."""
    correct, shared, _ = draw_labels(4000, hard=0.3, own=0.0)
    hidden = correct.copy()
    hidden[(shared[:, 0] < 0) & (np.arange(4000) % 10 > 0), 3] = np.nan
    complete, lacking = common_rates(correct), common_rates(hidden)
    plain = np.nanmean(hidden[:, 3])
    assert plain - complete[3] > 0.1  # control: its own rows flatter it
    assert abs(lacking[3] - complete[3]) < 0.04
    np.testing.assert_allclose(lacking[:3], complete[:3], atol=0.03)


def test_rates_where_targets_share_no_query_or_have_no_label() -> None:
    correct = np.full((40, 3), np.nan)
    correct[:20, 0], correct[20:, 1] = np.arange(20) % 2, np.arange(20) % 4 == 0
    rates = common_rates(correct)
    np.testing.assert_allclose(rates[:2], [11 / 22, 6 / 22], atol=0.08)
    assert rates[0] > rates[1]
    assert rates[2] == pytest.approx((10 + 5 + 1) / 42)


def test_missing_labels_and_predictions_are_left_out() -> None:
    correct, shared, apart = draw_labels(500, hard=0.1, own=0.2)
    predicted = np.clip(LEVEL + shared + apart, 0, 1)
    more = np.concatenate([correct, np.full((50, 4), np.nan), correct[:50]])
    none = np.concatenate([predicted, predicted[:50], np.full((50, 4), np.nan)])
    place = np.concatenate([folds(500), folds(50), np.full(50, 9)])
    before = fit(predicted, correct)
    after = Shrinkage.fit(none, more, place, NAMES)
    assert after.choice == pytest.approx(before.choice, abs=0.01)
    nothing = Shrinkage.fit(np.full((50, 4), np.nan), correct[:50], folds(50), NAMES)
    assert (nothing.choice, nothing.difficulty) == (0, 0)


def test_saved_and_loaded_it_is_the_same() -> None:
    correct, shared, apart = draw_labels(300, hard=0.1, own=0.2)
    shrinkage = fit(LEVEL + shared + apart, correct)
    again = Shrinkage.from_dict(json.loads(json.dumps(shrinkage.to_dict())))
    assert again.to_dict() == shrinkage.to_dict()
    p = np.random.default_rng(0).random((9, 4))
    np.testing.assert_array_equal(again.shrink(p), shrinkage.shrink(p))


@pytest.mark.parametrize(
    "change",
    [
        {"choice": 1.1},
        {"choice": -0.1},
        {"difficulty": float("nan")},
        {"difficulty": "1"},
        {"base": [0.5, 0.5, 0.5]},
        {"base": [0.5, 0.5, 0.5, 1.5]},
        {"targets": []},
        {"targets": ["a", "a", "c", "d"]},
        {"more": 1},
    ],
)
def test_what_makes_no_sense_is_corrupt(change: dict[str, Any]) -> None:
    good = Shrinkage(NAMES, LEVEL, 0.5, 0.5).to_dict()
    assert Shrinkage.from_dict(good).choice == 0.5
    with pytest.raises(CorruptError, match="the shrinkage"):
        Shrinkage.from_dict(good | change)
    for name in good:
        with pytest.raises(CorruptError, match="the shrinkage"):
            Shrinkage.from_dict({key: value for key, value in good.items() if key != name})


def test_other_targets_are_refused() -> None:
    with without_checks(), pytest.raises(ConfigError, match="3 columns"):
        Shrinkage(NAMES, LEVEL, 0.5, 0.5).shrink(np.full((2, 3), 0.5))
