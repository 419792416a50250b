"""The reference, and features that are logits already."""

from typing import Any

import numpy as np
import pytest
from scipy.special import expit

from prefill_router.errors import ConfigError, CorruptError
from prefill_router.predictors import Examples, load_predictor
from prefill_router.predictors.constant import ConstantConfig
from prefill_router.predictors.given import GivenConfig


def examples(width: int = 3) -> Examples:
    random = np.random.default_rng(0)
    features = random.normal(size=(50, width)).astype(np.float32)
    correct = (random.random((50, 3)) < [0.2, 0.5, 0.8]).astype(np.float64)
    correct[::4, 1], correct[:, 2] = np.nan, np.nan
    return Examples(features, correct, ("a", "b", "c"), ("",) * 50)


def test_constant_is_each_targets_share_of_right_answers() -> None:
    train = examples(5)
    right, count = np.nansum(train.correct, axis=0), (~np.isnan(train.correct)).sum(axis=0)
    correctness = ConstantConfig().fit(train).predictor.correctness(train.features[:4])
    for i in (0, 1):
        np.testing.assert_allclose(correctness[:, i], (right[i] + 1) / (count[i] + 2), rtol=1e-6)
    np.testing.assert_allclose(correctness[:, 2], (right.sum() + 1) / (count.sum() + 2), rtol=1e-6)


def test_given_is_the_sigmoid_of_each_targets_column() -> None:
    train = examples()
    fit = GivenConfig().fit(train)
    correctness = fit.predictor.correctness(train.features)
    np.testing.assert_allclose(correctness[:, :2], expit(train.features[:, :2]), rtol=1e-6)
    # c has no labels, so nothing says that its column is a logit
    assert np.ptp(correctness[:, 2]) == 0
    assert "c can't be learned" in fit.notes[0]


def test_given_wants_one_feature_per_target() -> None:
    with pytest.raises(ConfigError, match=r"5 wide for 3 targets.*one logit per target"):
        GivenConfig().fit(examples(5))


@pytest.mark.parametrize("change", [{"width": 4}, {"targets": ["a", "a", "b"]}, {"kind": "stack"}])
def test_what_was_saved_must_agree(change: dict[str, Any]) -> None:
    predictor = GivenConfig().fit(examples()).predictor
    with pytest.raises(CorruptError):
        type(predictor).from_dict(predictor.to_dict() | change, predictor.tensors())


def test_rates_must_be_probabilities() -> None:
    predictor = ConstantConfig().fit(examples()).predictor
    for rate in (-0.1, 1.1):
        with pytest.raises(CorruptError, match=r"in \[0, 1\]"):
            load_predictor(predictor.to_dict(), {"rates": np.full(3, rate, np.float32)})
