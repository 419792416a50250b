"""A stack weights each member by its predictions out of fold."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.special import expit

from prefill_router.errors import ConfigError, CorruptError
from prefill_router.predictors import Examples, load_predictor
from prefill_router.predictors.stack import Stack, StackConfig, _fit_weights

Array = NDArray[Any]
ROWS = 4000


def draw_parts(seed: int = 0) -> tuple[Array, Array, Array]:
    """The level of each query, the differences between its targets, and the labels."""
    random = np.random.default_rng(seed)
    level, apart = random.normal(size=(ROWS, 1)), random.normal(size=(ROWS, 3))
    apart -= apart.mean(axis=1, keepdims=True)
    correct = (random.random((ROWS, 3)) < expit(level + apart)).astype(np.float64)
    return level, apart, correct


def test_level_and_choice_are_weighted_apart() -> None:
    level, apart, correct = draw_parts()
    noise = np.random.default_rng(1).normal(size=(ROWS, 3))
    noise -= noise.mean(axis=1, keepdims=True)
    knows_level, knows_choice = expit(level + noise), expit(np.zeros((ROWS, 1)) + apart)
    levels, choices = _fit_weights(np.stack([knows_level, knows_choice]), correct)
    assert levels[0] == pytest.approx(1, abs=0.1)
    np.testing.assert_allclose(choices, [0, 1], atol=0.1)


def test_missing_labels_and_predictions_have_no_weight() -> None:
    level, apart, correct = draw_parts()
    good, constant = expit(level + apart), np.full((ROWS, 3), 0.5)
    expected = _fit_weights(np.stack([good, constant])[:, :2000], correct[:2000])
    holes, gaps = correct.copy(), np.stack([good, constant])
    holes[2000:3000], gaps[0, 3000:] = np.nan, np.nan
    for got, weight in zip(_fit_weights(gaps, holes), expected, strict=True):
        np.testing.assert_allclose(got, weight, atol=1e-6)


def test_without_folds_that_can_be_predicted_members_weigh_the_same() -> None:
    levels, choices = _fit_weights(np.full((2, 5, 3), np.nan), np.ones((5, 3)))
    assert levels.tolist() == choices.tolist() == [0.5, 0.5]


@pytest.mark.slow
def test_a_row_moves_its_own_prediction_out_of_fold_by_the_weights_alone() -> None:
    level, apart, correct = (part[:300] for part in draw_parts())
    rows = Examples((level + apart).astype(np.float32), correct, ("a", "b", "c"), ("",) * 300)
    config = StackConfig(members=({"kind": "knn_score", "k": 5}, {"kind": "logistic", "c": 0.1}))
    folded, changed = replace(rows, folds=np.arange(300) % 3), correct.copy()
    changed[7] = 1 - changed[7]
    before, after = (
        config.fit(examples).unseen for examples in (folded, replace(folded, correct=changed))
    )
    assert before is not None
    assert after is not None
    moved = np.abs(after - before).max(axis=1)
    assert moved[7] < 0.02
    assert moved.max() > 0.1  # its neighbours in other folds
    assert config.fit(rows).unseen is None


def test_options_and_saved_parts_that_make_no_sense_are_refused() -> None:
    for members in ((), ({"kind": "stack"},)):
        with pytest.raises(ConfigError, match="a stack needs members"):
            StackConfig(members=members)
    with pytest.raises(ConfigError, match="no option"):
        StackConfig(members=({"kind": "logistic", "depth": 3},))
    level, apart, correct = (part[:100] for part in draw_parts())
    rows = Examples((level + apart).astype(np.float32), correct, ("a", "b", "c"), ("",) * 100)
    stack = StackConfig(members=({"kind": "logistic", "c": 0.1},)).fit(rows).predictor
    assert isinstance(stack, Stack)
    saved, arrays = stack.to_dict(), stack.tensors()
    for wrong in ({"level": [-1.0]}, {"choice": [1.0, 1.0]}, {"targets": ["a", "b", "d"]}):
        with pytest.raises(CorruptError):
            load_predictor(saved | wrong, arrays)
    with pytest.raises(CorruptError, match="unknown arrays"):
        load_predictor(saved, arrays | {"7.weight": np.zeros(1, dtype=np.float32)})
