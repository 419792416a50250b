from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.special import expit
from sklearn.linear_model import LogisticRegression

from packages.router.tests.fakes.planted_signal import without_checks
from prefill_router.errors import ConfigError, CorruptError
from prefill_router.predictors import Examples, load_predictor
from prefill_router.predictors.logistic import Logistic, LogisticConfig, cross_validate

Array = NDArray[Any]


def draw_examples(
    rows: int = 300, *, seed: int = 0, spreads: Any = 1.0, weights: Any = 1.0
) -> Examples:
    random = np.random.default_rng(seed)
    features = random.normal(size=(rows, 12)) * spreads + 5
    logits = ((features - 5) / spreads) @ (np.ones(12)[:, None] * weights).repeat(2, axis=1)
    correct = (random.logistic(size=logits.shape) < logits + np.array([0.5, -0.5])).astype(
        np.float64
    )
    correct[random.random(correct.shape) < 0.2] = np.nan
    return Examples(features.astype(np.float32), correct, ("a", "b"), ("",) * rows)


def fit_logistic(train: Examples, **options: Any) -> Logistic:
    predictor = LogisticConfig(**options).fit(train).predictor
    assert isinstance(predictor, Logistic)
    return predictor


def fit_sklearn(train: Examples, rows: Array, *, c: float, common: bool) -> Array:
    features = train.features.astype(np.float64)
    labelled = features[~np.isnan(train.correct).all(axis=1)]
    mean, spread = labelled.mean(axis=0), labelled.std(axis=0)
    scale = np.sqrt((spread**2).mean()) if common else spread
    columns = []
    for i in range(2):
        is_known = ~np.isnan(train.correct[:, i])
        model = LogisticRegression(C=c, tol=1e-12, max_iter=9000, solver="newton-cg")
        model.fit((features[is_known] - mean) / scale, train.correct[is_known, i])
        columns.append(model.predict_proba((rows - mean) / scale)[:, 1])
    return np.stack(columns, axis=1)


@pytest.mark.parametrize("common", [False, True])
@pytest.mark.parametrize("c", [0.003, 1.0])
def test_equals_scikit_learns(c: float, common: bool) -> None:
    train = draw_examples(spreads=np.linspace(0.1, 3, 12))
    predictor = fit_logistic(train, c=c, scaling="common" if common else "each")
    rows = train.features[:50]
    expected = fit_sklearn(train, rows, c=c, common=common)
    np.testing.assert_allclose(predictor.correctness(rows), expected, atol=2e-6)


def test_a_soft_label_counts_as_that_share_of_right_answers() -> None:
    train = draw_examples()
    share = expit(train.features[:, :2].astype(np.float64) - 5).round(1)
    soft = fit_logistic(
        Examples(train.features, share, ("a", "b"), train.groups), c=0.1, scaling="each"
    )
    tenths = (np.arange(10)[:, None, None] < 10 * share).astype(np.float64).reshape(-1, 2)
    ten = Examples(np.tile(train.features, (10, 1)), tenths, ("a", "b"), ("",) * 3000)
    hard = fit_logistic(ten, c=0.01, scaling="each")
    np.testing.assert_allclose(
        soft.correctness(train.features), hard.correctness(train.features), atol=1e-3
    )


def test_the_strength_of_least_loss_is_chosen() -> None:
    grid = (1e-4, 1e-3, 1e-2, 1e-1, 1.0, 10.0)
    chosen = []
    for weights in (0.05, 2.0):
        train = draw_examples(400, weights=weights)
        fit = LogisticConfig(grid=grid, scaling="each").fit(train)
        trials = fit.training["cross_validation"]
        assert fit.training["c"] == min(trials, key=lambda t: t["loss"])["c"]
        chosen.append(fit.training["c"])
    assert chosen[0] < chosen[1]


def test_scaling_is_chosen_by_what_is_planted() -> None:
    """One factor is better if wide columns carry the signal; one each if narrow ones do."""
    spreads = np.geomspace(0.02, 2, 12)
    for weights, scaling in ((spreads / 2, "common"), (1 / spreads / 20, "each")):
        train = draw_examples(150, spreads=spreads, weights=weights[:, None])
        assert LogisticConfig().fit(train).training["scaling"] == scaling


def test_rows_held_out_are_not_fitted_to() -> None:
    """A column that holds only the row's own label doesn't help in another fold."""
    random = np.random.default_rng(0)
    features = np.eye(60, dtype=np.float32)
    correct = random.integers(2, size=(60, 1)).astype(np.float64)
    rows = Examples(features, correct, ("a",), ("",) * 60)
    trials = cross_validate(rows, scalings=["each"], grid=(1e-4, 1.0), folds=5, seed=0)
    assert all(trial.loss > 0.66 for trial in trials)
    twice = Examples(np.tile(features, (2, 1)), np.tile(correct, (2, 1)), ("a",), ("",) * 120)
    trials = cross_validate(twice, scalings=["each"], grid=(1e-4, 1.0), folds=5, seed=0)
    assert all(trial.loss > 0.66 for trial in trials)  # equal rows are held out together


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"c": 0.0}, "c is 0"),
        ({"c": float("nan")}, "c is nan"),
        ({"grid": ()}, "at least one value"),
        ({"grid": (1.0, 0.1)}, "ascending order"),
        ({"scaling": "none"}, "scaling is 'none'"),
        ({"folds": 1}, "folds is 1"),
    ],
)
def test_options_that_make_no_sense(options: dict[str, Any], message: str) -> None:
    with without_checks(), pytest.raises(ConfigError, match=message):
        LogisticConfig(**options)


def test_saved_scales_must_be_positive() -> None:
    predictor = fit_logistic(draw_examples(), c=0.1, scaling="each")
    tensors = {name: array.copy() for name, array in predictor.tensors().items()}
    tensors["scale"][2] = 0
    with pytest.raises(CorruptError, match="scales"):
        load_predictor(predictor.to_dict(), tensors)
