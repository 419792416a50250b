"""What networks for all targets learn of what is planted for them."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from packages.router.tests.predictors.network_cases import CASES, QUICK, draw_examples
from packages.router.tests.predictors.network_contract import (
    check_difficulty,
    check_dropout,
    check_threads_and_units,
)
from prefill_router.errors import CorruptError, FitError
from prefill_router.predictors import load_predictor
from prefill_router.predictors.networks import UnifiedConfig
from prefill_router.predictors.networks.unified import UnifiedNetwork

pytestmark = pytest.mark.slow

UNIFIED = UnifiedConfig(**QUICK, hidden=(16,))


def test_difficulty_is_learned_where_it_has_a_weight() -> None:
    check_difficulty(UNIFIED)


def test_difficulty_is_of_the_measured_targets() -> None:
    """Where the wrong answers were not measured, no query is difficult."""
    train, _ = draw_examples()
    measured = np.where(train.correct == 1, 1, np.nan)
    measured[:20] = 0
    right = replace(train, correct=measured)
    predictor = replace(UNIFIED, difficulty_weight=5.0).fit(right).predictor
    assert isinstance(predictor, UnifiedNetwork)
    assert predictor.difficulty(train.features).mean() < 0.2
    other = UNIFIED.fit(train).predictor
    assert isinstance(other, UnifiedNetwork)
    assert other.difficulty(train.features).mean() > 0.4


@pytest.mark.parametrize("kind", CASES)
def test_threads_and_units_of_the_features_change_nothing(kind: str) -> None:
    check_threads_and_units(CASES[kind].config)


@pytest.mark.parametrize(
    ("share", "features", "expected"), [(None, 64, 0.5), (None, 63, 0), (0.2, 5, 0.2)]
)
def test_share_of_features_that_is_dropped(
    share: float | None, features: int, expected: float
) -> None:
    assert UnifiedConfig(input_dropout=share).share_of(features) == expected


def test_dropped_features_and_units_leave_the_rest_at_their_size() -> None:
    check_dropout(UnifiedConfig)


def test_seeds_are_averaged_and_recorded() -> None:
    train, _ = draw_examples(150)
    fit = replace(UNIFIED, seeds=3).fit(train)
    predictor = fit.predictor
    assert isinstance(predictor, UnifiedNetwork)
    assert predictor.networks == 3
    singles = [
        replace(predictor, arrays={k: v[i : i + 1] for k, v in predictor.arrays.items()})
        for i in range(3)
    ]
    each = [single.correctness(train.features) for single in singles]
    np.testing.assert_allclose(predictor.correctness(train.features), np.mean(each, axis=0))
    assert np.abs(each[0] - each[1]).max() > 1e-3
    curves = fit.training["seeds"]
    assert [len(seed["validation_loss"]) <= 12 for seed in curves] == [True] * 3
    assert all(seed["kept"] for seed in curves)


def test_features_that_never_vary_are_left_out() -> None:
    train, _ = draw_examples(150)
    constant = np.full((150, 1), 1e5, np.float32)
    features = np.concatenate([train.features, constant], axis=1)
    predictor = UNIFIED.fit(replace(train, features=features)).predictor
    moved = features.copy()
    moved[:, -1] = -7
    assert np.array_equal(predictor.correctness(features), predictor.correctness(moved))


def test_losses_without_bound_are_refused() -> None:
    train, _ = draw_examples(100)
    with pytest.raises(FitError, match="aren't finite"):
        UnifiedConfig(**QUICK | {"learning_rate": 1e30}, hidden=(8,)).fit(train)


def test_saved_ensembles_that_contradict_themselves_are_refused() -> None:
    train, _ = draw_examples(60)
    correct = train.correct.copy()
    correct[:, 0] = 1
    predictor = UNIFIED.fit(replace(train, correct=correct)).predictor
    config, tensors = predictor.to_dict(), predictor.tensors()
    assert set(config["fixed"]) == {"t0"}
    assert load_predictor(config, tensors).targets == train.targets
    cases: tuple[dict[str, Any], ...] = (
        {"fixed": {"another": 0.5}},
        {"fixed": {"t0": 1.5}},
        {"fixed": {}},
        {"fixed": dict.fromkeys(train.targets, 0.5)},
        {"targets": ["t0", "t1", "t2", "t2"]},
        {"widths": [5]},
        {"widths": [5, 0]},
        {"widths": [5, 17]},
        {"networks": 2},
        {"kind": "shared_trunk"},
        {"kind": "unknown"},
    )
    for wrong in cases:
        with pytest.raises(CorruptError):
            load_predictor(config | wrong, tensors)
