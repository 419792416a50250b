import sys
from typing import Any

import numpy as np
import pytest
import xgboost
from numpy.typing import NDArray
from scipy.special import expit, logit

from prefill_router.errors import ConfigError, CorruptError, MissingExtraError
from prefill_router.predictors import Examples, load_predictor
from prefill_router_lab.predictors.boosting import BoostingConfig, Forest

Array = NDArray[Any]
QUICK = BoostingConfig(rounds=40, learning_rate=0.2, columns=0.5, least_weight=1.0, patience=5)


def make_examples(rows: int = 300, *, seed: int = 0) -> Examples:
    random = np.random.default_rng(seed)
    features = random.normal(size=(rows, 5)).astype(np.float32)
    logits = 3 * np.stack([features[:, 0] * features[:, 1], features[:, 2] ** 2 - 1], axis=1)
    correct = (random.logistic(size=logits.shape) < logits).astype(np.float64)
    correct[::5, 1] = np.nan
    return Examples(features, correct, ("a", "b"), ("",) * rows)


def booster(features: Array, labels: Array, rate: float) -> Any:
    parameters = {"objective": "binary:logistic", "base_score": rate, "nthread": 1, "max_depth": 5}
    matrix = xgboost.DMatrix(features, label=labels, nthread=1)
    return xgboost.train(parameters, matrix, num_boost_round=12)


def test_trees_are_read_as_xgboost_reads_them() -> None:
    train, rows = make_examples(), make_examples(2000, seed=1).features
    rates = np.array([0.3, 0.5, 0.7])
    boosters = [booster(train.features, train.correct[:, 0], rate) for rate in rates[[0, 2]]]
    saved = [bytes(boosters[0].save_raw("json")), None, bytes(boosters[1].save_raw("json"))]
    forest = Forest.of(saved, logit(rates))
    probabilities = expit(forest.log_odds(rows))
    for i, trees in ((0, boosters[0]), (2, boosters[1])):
        np.testing.assert_allclose(probabilities[:, i], trees.inplace_predict(rows), atol=1e-6)
    np.testing.assert_allclose(probabilities[:, 1], 0.5)
    # At a threshold itself the way on is the same too.
    inner = forest.nodes[0] >= 0
    edges = np.tile(rows[:1], (int(inner.sum()), 1))
    edges[np.arange(len(edges)), forest.nodes[0][inner]] = forest.values[inner]
    probabilities = expit(forest.log_odds(edges))
    np.testing.assert_allclose(probabilities[:, 0], boosters[0].inplace_predict(edges), atol=1e-6)


def test_what_no_line_can_separate_is_learnt() -> None:
    train, unseen = make_examples(1500), make_examples(1000, seed=1)
    probabilities = QUICK.fit(train).predictor.correctness(unseen.features)
    for i in (0, 1):
        has_label = ~np.isnan(unseen.correct[:, i])
        error = ((probabilities[:, i] - unseen.correct[:, i])[has_label] ** 2).mean()
        assert error < 0.8 * np.nanvar(unseen.correct[:, i])


def test_trees_beyond_the_best_are_dropped() -> None:
    random = np.random.default_rng(0)
    train = make_examples(200)
    noise = Examples(
        train.features, random.integers(2, size=(200, 2)) * 1.0, ("a", "b"), ("",) * 200
    )
    long = BoostingConfig(rounds=400, learning_rate=0.3, least_weight=0.5, l2=0.0)
    [*counts] = long.fit(noise).training["trees"]
    assert all(1 <= count < 100 for count in counts)
    predictor = QUICK.fit(train).predictor
    assert predictor.to_dict()["trees"] == sum(QUICK.fit(train).training["trees"])


def test_another_seed_other_trees() -> None:
    first, second = (QUICK.fit(make_examples(), seed=seed).predictor for seed in (0, 1))
    rows = make_examples(50, seed=2).features
    assert not np.array_equal(first.correctness(rows), second.correctness(rows))


def test_more_queries_than_one_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    predictor = QUICK.fit(make_examples()).predictor
    rows = make_examples(100, seed=1).features
    whole = predictor.correctness(rows)
    monkeypatch.setattr("prefill_router_lab.predictors.boosting._CELLS", 300)
    assert np.array_equal(predictor.correctness(rows), whole)


@pytest.mark.parametrize(
    ("name", "place", "value"),
    [
        ("nodes", (0, 0), 99),  # asks for a feature that isn't there
        ("nodes", (0, 0), -2),
        ("nodes", (1, 0), 0),  # leads back to itself
        ("nodes", (2, 0), 10**6),
        ("roots", (0, 0), -1),
        ("roots", (0, 0), 10**6),
        ("roots", (1, 0), 2),
        ("values", (0,), np.nan),
    ],
)
def test_trees_that_lead_nowhere_are_refused(name: str, place: Any, value: float) -> None:
    predictor = QUICK.fit(make_examples()).predictor
    tensors = {key: array.copy() for key, array in predictor.tensors().items()}
    tensors[name][place] = value
    with pytest.raises(CorruptError):
        load_predictor(predictor.to_dict(), tensors)


@pytest.mark.parametrize(
    "wrong",
    [
        {"rounds": 0},
        {"patience": 0},
        {"depth": 0},
        {"bins": 1},
        {"learning_rate": 0.0},
        {"rows": 1.5},
        {"columns": float("nan")},
        {"least_weight": -1.0},
        {"l2": float("inf")},
        {"validation": 1.0},
    ],
)
def test_options_that_make_no_sense(wrong: dict[str, Any]) -> None:
    [name] = wrong
    with pytest.raises(ConfigError, match=f"{name} is .*must be"):
        BoostingConfig(**wrong)


def test_without_the_extra_it_routes_and_does_not_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    train = make_examples()
    predictor = QUICK.fit(train).predictor
    expected = predictor.correctness(train.features)
    monkeypatch.setitem(sys.modules, "xgboost", None)
    again = load_predictor(predictor.to_dict(), predictor.tensors())
    assert np.array_equal(again.correctness(train.features), expected)
    with pytest.raises(MissingExtraError, match=r"prefill-router-lab\[xgboost\]"):
        QUICK.fit(train)
