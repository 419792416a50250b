import dataclasses
import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from numpy.typing import NDArray
from sklearn.metrics import log_loss

from packages.router.tests.predictors.contract import check_predictor
from prefill_router.errors import ConfigError, FitError
from prefill_router.predictors import TrunkConfig, TrunkFit, fit_trunk
from prefill_router.predictors.training import hold_out

pytestmark = pytest.mark.slow

Array = NDArray[Any]
QUICK = TrunkConfig(hidden=(16, 8), seeds=3, keep=2, max_epochs=6, patience=3, batch_size=64)


def draw_examples(queries: int = 400, *, seed: int = 0, targets: int = 3) -> tuple[Array, Array]:
    """Features, and labels that follow from them."""
    random = np.random.default_rng(seed)
    features = random.normal(size=(queries, 6)).astype(np.float32)
    logits = 3 * features @ random.normal(size=(6, targets))
    return features, (random.logistic(size=logits.shape) < logits).astype(np.float64)


def fit(features: Array, correct: Array, config: TrunkConfig = QUICK) -> TrunkFit:
    return fit_trunk(features, correct, [f"t{i}" for i in range(correct.shape[1])], config=config)


def are_equal(first: TrunkFit, second: TrunkFit) -> bool:
    pairs = zip(
        first.predictor.tensors().values(), second.predictor.tensors().values(), strict=True
    )
    return all(np.array_equal(a, b) for a, b in pairs) and np.array_equal(
        first.curves.validation, second.curves.validation, equal_nan=True
    )


def test_learns_what_is_planted_and_nothing_from_shuffled_labels() -> None:
    features, correct = draw_examples(1500)
    config = dataclasses.replace(QUICK, max_epochs=30)
    order = np.random.default_rng(1).permutation(1000)
    base = ((correct[1000:] - correct[:1000].mean(axis=0)) ** 2).mean()
    for labels, low, high in ((correct[:1000], 0.0, 0.7), (correct[:1000][order], 0.97, 1.1)):
        probability = fit(features[:1000], labels, config).predictor.correctness(features[1000:])
        brier = ((correct[1000:] - probability) ** 2).mean()
        assert low <= brier / base <= high


def test_keeps_the_contract() -> None:
    features, correct = draw_examples(100)
    check_predictor(fit(features, correct).predictor, features[:9])


def test_same_seed_same_result_and_another_seed_another() -> None:
    features, correct = draw_examples(100)
    assert are_equal(fit(features, correct), fit(features, correct))
    other = dataclasses.replace(QUICK, seed=1)
    assert not are_equal(fit(features, correct), fit(features, correct, other))


def test_arguments_are_left_as_they_are() -> None:
    features, correct = draw_examples(100)
    correct[::7, 1] = np.nan
    before = features.copy(), correct.copy()
    fit(features, correct)
    assert np.array_equal(features, before[0])
    assert np.array_equal(correct, before[1], equal_nan=True)


def test_best_epoch_is_restored_and_the_best_seeds_are_kept() -> None:
    features, correct = draw_examples(300)
    config = dataclasses.replace(
        QUICK, seeds=5, keep=2, max_epochs=150, patience=4, learning_rate=0.02, dropout=(0.0, 0.0)
    )
    result = fit(features, correct, config)
    curves, net = result.curves, result.predictor
    epochs = (~np.isnan(curves.validation)).sum(axis=1)
    assert (epochs < 150).all()  # they overfit, so each stopped
    assert np.array_equal(epochs, curves.best_epoch + 1 + config.patience)
    assert np.array_equal(np.nanargmin(curves.validation, axis=1), curves.best_epoch)
    assert set(np.flatnonzero(curves.is_kept)) == set(np.argsort(curves.best)[:2])

    validation = hold_out(features, share=config.validation, seed=config.seed).validation
    for place, seed in enumerate(np.flatnonzero(curves.is_kept)):
        single = dataclasses.replace(
            net,
            weights=tuple(w[place : place + 1] for w in net.weights),
            biases=tuple(b[place : place + 1] for b in net.biases),
        )
        loss = log_loss(
            correct[validation].ravel(), single.correctness(features[validation]).ravel()
        )
        assert loss == pytest.approx(curves.best[seed], abs=1e-5)
        # Control: the weights of the last epoch would have had another loss.
        assert abs(loss - curves.validation[seed, epochs[seed] - 1]) > 1e-3


def test_missing_labels_have_no_effect() -> None:
    """Rows without any label and single missing labels have no effect."""
    features, correct = draw_examples(200)
    correct[np.random.default_rng(3).random(correct.shape) < 0.3] = np.nan
    correct[:10] = np.nan
    complete, without = fit(features, correct), fit(features[10:], correct[10:])
    assert are_equal(complete, without)
    assert complete.notes
    flipped = correct.copy()
    flipped[50, np.flatnonzero(~np.isnan(correct[50]))[0]] = 0.37
    assert not are_equal(complete, fit(features, flipped))  # control: a label that is there has one


def test_soft_labels_train_as_they_are() -> None:
    features, _ = draw_examples(600)
    share = 1 / (1 + np.exp(-features[:, :2].astype(np.float64)))
    config = dataclasses.replace(QUICK, max_epochs=60, dropout=(0.0, 0.0))
    soft = fit(features, share, config).predictor.correctness(features)
    hard = fit(features, np.round(share), config).predictor.correctness(features)
    assert np.abs(soft - share).mean() < 0.05
    assert np.abs(hard - share).mean() > 0.15  # control: cut labels give other probabilities


@pytest.mark.parametrize(("value", "rate"), [(1.0, 101 / 102), (0.0, 1 / 102), (0.7, 71 / 102)])
def test_target_of_one_class_gets_its_base_rate(value: float, rate: float) -> None:
    features, correct = draw_examples(100)
    correct[:, 1] = value
    result = fit(features, correct)
    np.testing.assert_allclose(result.predictor.correctness(features)[:, 1], rate, rtol=1e-5)
    [note] = result.notes
    assert note.startswith("t1 can't be learned: all its 100 train labels are the same")
    assert np.ptp(result.predictor.correctness(features)[:, 0]) > 0.01


def test_target_without_labels_gets_the_base_rate_of_all() -> None:
    features, correct = draw_examples(100)
    correct[:, 2] = np.nan
    result = fit(features, correct)
    rate = (correct[:, :2].sum() + 1) / (200 + 2)
    np.testing.assert_allclose(result.predictor.correctness(features)[:, 2], rate, rtol=1e-5)
    assert result.notes == (
        f"t2 can't be learned: it has no labels; its predictions are {rate:.3f}",
    )


@pytest.mark.parametrize("queries", [2, 3, 5, 65])
def test_few_queries(queries: int) -> None:
    features, _ = draw_examples(queries)
    correct = (np.arange(queries) % 2).astype(np.float64)[:, None]
    probability = fit(features, correct).predictor.correctness(features)
    assert np.isfinite(probability).all()


def test_queries_that_are_all_alike() -> None:
    features = np.ones((8, 4), np.float32)
    correct = (np.arange(8) % 4 == 0).astype(np.float64)[:, None]
    result = fit(features, correct)
    assert np.isfinite(result.predictor.correctness(features)).all()
    assert "same features" in result.notes[0]


def check_refused(message: str, features: Array, correct: Array) -> None:
    with pytest.raises(FitError, match=message):
        fit(features, correct)


def test_bad_input_is_refused() -> None:
    features, correct = draw_examples(20)
    for value in (np.nan, np.inf, -np.inf):
        broken = features.copy()
        broken[4, 2] = value
        check_refused("1 rows of features aren't finite, the first is row 4", broken, correct)
    for value in (1.5, -0.1, np.inf):
        wrong = correct.copy()
        wrong[3, 1] = value
        check_refused(f"'t1' in row 3 is {value}", features, wrong)
    check_refused("nothing to learn", features, np.ones_like(correct))
    check_refused("nothing to learn", features, np.full_like(correct, np.nan))
    check_refused("nothing to learn", features[:0], correct[:0])
    check_refused("no columns", features[:, :0], correct)
    with pytest.raises(FitError, match="20 rows of features and 2 targets"):
        fit_trunk(features, correct, ["a", "b"], config=QUICK)
    check_refused("name at least one", features, correct[:, :0])
    with pytest.raises(FitError, match="each once"):
        fit_trunk(features, correct, ["a", "a", "b"], config=QUICK)


def test_losses_without_bound_are_refused() -> None:
    features, correct = draw_examples(50)
    check_refused("aren't finite", np.sign(features) * np.float32(3e38), correct)


@pytest.mark.parametrize(
    "wrong",
    [
        {"seeds": 0, "keep": 0},
        {"keep": 11},
        {"batch_size": 0},
        {"max_epochs": 0},
        {"patience": 0},
        {"hidden": (0, 8)},
        {"dropout": (0.3, 1.0)},
        {"learning_rate": 0.0},
        {"learning_rate": math.nan},
        {"weight_decay": -1.0},
        {"validation": 1.0},
        {"seed": -1},
    ],
)
def test_options_that_make_no_sense(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="must be"):
        TrunkConfig(**wrong)


@given(st.integers(1, 60), st.integers(1, 12), st.floats(0.01, 0.99), st.integers(0, 5))
@settings(max_examples=60, deadline=None)
def test_hold_out(rows: int, distinct: int, share: float, seed: int) -> None:
    features = (np.arange(rows) % distinct).astype(np.float32)[:, None]
    parts = hold_out(features, share=share, seed=seed)
    values = set(features[parts.fit, 0]), set(features[parts.validation, 0])
    if min(rows, distinct) == 1:
        assert parts.shared
        assert len(parts.fit) == len(parts.validation) == rows
    else:
        assert not parts.shared
        assert sorted([*parts.fit, *parts.validation]) == list(range(rows))
        assert not values[0] & values[1]
        assert values[0]
        assert values[1]
        most = rows / min(rows, distinct) + 1
        assert abs(len(parts.validation) - share * rows) <= 2 * most
