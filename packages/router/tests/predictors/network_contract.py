"""What every predictor with networks of its own must hold to, whatever they are."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from threadpoolctl import threadpool_limits

from packages.router.tests.predictors.network_cases import QUICK, conflict, draw_examples
from prefill_router.errors import ConfigError
from prefill_router.predictors.networks import DifficultyNetworks
from prefill_router.progress import SilentProgress

OPTIONS_WITHOUT_SENSE: tuple[dict[str, Any], ...] = (
    {"seeds": 0},
    {"batch_size": 0},
    {"max_epochs": 0},
    {"patience": 0},
    {"dropout": 1.0},
    {"input_dropout": -0.1},
    {"learning_rate": 0.0},
    {"learning_rate": np.nan},
    {"weight_decay": -1.0},
    {"validation": 1.0},
    {"disagreement_weight": 0.0},
    {"disagreement_weight": np.inf},
)


def check_difficulty(config: Any) -> None:
    """The difficulty is learned where it has a weight."""
    train, _ = draw_examples()
    unseen, _ = draw_examples(seed=1)
    actual = 1 - unseen.correct.mean(axis=1)
    errors = []
    for weight, seeds in ((1.0, 1), (0.0, 8)):  # a single random head may be right by chance
        trained = replace(config, difficulty_weight=weight, seeds=seeds)
        predictor = trained.fit(train).predictor
        assert isinstance(predictor, DifficultyNetworks)
        difficulty = predictor.difficulty(unseen.features)
        assert difficulty.shape == (len(unseen.features),)
        assert ((difficulty >= 0) & (difficulty <= 1)).all()
        errors.append(np.abs(difficulty - actual).mean())
    constant = np.abs(actual - actual.mean()).mean()
    assert errors[0] < 0.7 * constant
    assert errors[1] > 0.9 * constant  # control: what isn't trained knows nothing


def check_threads_and_units(config: Any) -> None:
    """Threads and units of the features change nothing."""
    train, _ = draw_examples(150)
    config = replace(config, seeds=3)
    with threadpool_limits(1, user_api="blas"):
        expected = config.fit(train).predictor
    with threadpool_limits(2, user_api="blas"):
        other = config.fit(train, progress=SilentProgress()).predictor
    for name, array in expected.tensors().items():
        assert np.array_equal(array, other.tensors()[name])
    moved = replace(train, features=64 * train.features)
    again = config.fit(moved).predictor.correctness(moved.features)
    np.testing.assert_allclose(again, expected.correctness(train.features), atol=1e-5)


def check_dropout(config: type[Any]) -> None:
    """What is dropped in training isn't when it is used, and the probabilities stay calibrated."""
    train, _ = draw_examples(800)
    options = QUICK | {"dropout": 0.5, "input_dropout": 0.2, "max_epochs": 40}
    fit = config(**options, hidden=(32,)).fit(train)
    probability = fit.predictor.correctness(train.features)
    np.testing.assert_allclose(probability.mean(axis=0), train.correct.mean(axis=0), atol=0.06)
    assert probability.std() > 0.15


def check_disagreement(config: Any) -> None:
    """In three of ten queries the targets disagree, and the first answers against the feature."""
    train = conflict()
    rows = np.zeros((2, 4), np.float32)
    rows[:, 0] = 1, -1
    gaps = []
    for weight in (0.1, 1.0, 20.0):
        weighted = replace(config, disagreement_weight=weight)
        probability = weighted.fit(train).predictor.correctness(rows)
        gaps.append(probability[0, 0] - probability[1, 0])
    # Of the weight of all queries the others have 0.96, 0.7 and 0.1.
    assert gaps[0] > gaps[1] > 0.1
    assert gaps[2] < 0 < gaps[1] < gaps[0]


def check_weight_of_one(config: Any) -> None:
    """A weight of 1 changes nothing, and none does where no targets disagree."""
    train = conflict(100)
    always = replace(train, correct=train.correct[:, 1:], targets=("t1",))
    for data, weight in ((train, 1.0), (always, 5.0)):  # a single target never disagrees
        weighted = replace(config, disagreement_weight=weight)
        expected = config.fit(data).predictor.tensors()
        tensors = weighted.fit(data).predictor.tensors()
        assert all(np.array_equal(expected[name], tensors[name]) for name in expected)


def check_options(config: Any, wrong: dict[str, Any]) -> None:
    """An option that makes no sense is refused by its name."""
    with pytest.raises(ConfigError, match=f"{next(iter(wrong))} is .*must be"):
        type(config)(**wrong)
