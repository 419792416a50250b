"""What each kind of network learns of what is planted for it."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from threadpoolctl import threadpool_limits

from packages.router.tests.predictors.network_cases import CASES, QUICK
from prefill_router.errors import CorruptError, FitError
from prefill_router.predictors import Examples, load_predictor
from prefill_router.predictors.networks.latent import (
    Factorisation,
    FactorisationConfig,
    IRTConfig,
    ItemResponse,
)
from prefill_router.predictors.networks.perceptrons import (
    MLPConfig,
    MultiTaskNetworks,
    TargetMultiTaskConfig,
    TargetNetworks,
    UnifiedConfig,
    UnifiedNetwork,
)
from prefill_router.progress import SilentProgress

pytestmark = pytest.mark.slow

Array = NDArray[Any]
MULTITASK = TargetMultiTaskConfig(**QUICK, hidden=(8,))
UNIFIED = UnifiedConfig(**QUICK, hidden=(16,))


def planted(rows: int = 500, targets: int = 4, *, seed: int = 0) -> tuple[Examples, Array]:
    """Targets of rising ability on queries whose difficulty is one of the features."""
    random = np.random.default_rng(seed)
    features = random.normal(size=(rows, 5)).astype(np.float32)
    hard = 2 * features[:, 0].astype(np.float64)
    logits = np.linspace(-1.5, 1.5, targets) - hard[:, None]
    correct = (random.logistic(size=logits.shape) < logits).astype(np.float64)
    names = tuple(f"t{i}" for i in range(targets))
    return Examples(features, correct, names, ("",) * rows), hard


@pytest.mark.parametrize("config", [MULTITASK, UNIFIED])
def test_difficulty_is_learnt_where_it_has_a_weight(config: Any) -> None:
    train, _ = planted()
    unseen, _ = planted(seed=1)
    actual = 1 - unseen.correct.mean(axis=1)
    found = []
    for weight, seeds in ((1.0, 1), (0.0, 8)):  # a single random head may be right by chance
        trained = replace(config, difficulty_weight=weight, seeds=seeds)
        predictor = trained.fit(train).predictor
        assert isinstance(predictor, MultiTaskNetworks | UnifiedNetwork)
        difficulty = predictor.difficulty(unseen.features)
        assert difficulty.shape == (len(unseen.features),)
        assert ((difficulty >= 0) & (difficulty <= 1)).all()
        found.append(np.abs(difficulty - actual).mean())
    constant = np.abs(actual - actual.mean()).mean()
    assert found[0] < 0.7 * constant
    assert found[1] > 0.9 * constant  # control: what isn't trained knows nothing


def test_difficulty_is_of_the_measured_targets() -> None:
    """Where the wrong answers were not measured, no query is difficult."""
    train, _ = planted()
    measured = np.where(train.correct == 1, 1, np.nan)
    measured[:20] = 0
    right = replace(train, correct=measured)
    predictor = replace(UNIFIED, difficulty_weight=5.0).fit(right).predictor
    assert isinstance(predictor, UnifiedNetwork)
    assert predictor.difficulty(train.features).mean() < 0.2
    other = UNIFIED.fit(train).predictor
    assert isinstance(other, UnifiedNetwork)
    assert other.difficulty(train.features).mean() > 0.4


def test_without_weight_the_difficulty_head_is_as_if_it_weren_t_there() -> None:
    train, _ = planted(200)
    plain = MLPConfig(**QUICK, hidden=(8,)).fit(train).predictor
    without = replace(MULTITASK, difficulty_weight=0.0).fit(train).predictor
    weighted = replace(MULTITASK, difficulty_weight=1.0).fit(train).predictor
    expected = plain.correctness(train.features)
    assert np.array_equal(without.correctness(train.features), expected)
    assert np.abs(weighted.correctness(train.features) - expected).max() > 1e-3  # control


def test_item_response_finds_the_order_of_abilities() -> None:
    train, hard = planted(400, targets=6)
    order = np.array([3, 0, 5, 1, 4, 2])
    mixed = replace(train, correct=train.correct[:, order])
    predictor = IRTConfig(**QUICK | {"max_epochs": 40}, hidden=()).fit(mixed).predictor
    assert isinstance(predictor, ItemResponse)
    assert predictor.abilities.shape == (6, 1)
    assert np.array_equal(np.argsort(predictor.abilities[:, 0]), np.argsort(order))
    mean = predictor.correctness(train.features).mean(axis=1)
    assert np.corrcoef(mean, hard)[0, 1] < -0.9


def test_item_response_of_one_dimension_never_reverses_the_targets() -> None:
    """Discriminations are positive, so the abler target is likelier right on every query."""
    train, _ = planted(300)
    unseen, _ = planted(300, seed=1)
    one = IRTConfig(**QUICK, hidden=()).fit(train).predictor
    assert isinstance(one, ItemResponse)
    ranked = one.correctness(10 * unseen.features)[:, np.argsort(one.abilities[:, 0])]
    assert (np.diff(ranked, axis=1) >= 0).all()
    correct, names = np.c_[train.correct, 1 - train.correct], tuple("abcdefgh")
    turned = replace(train, correct=correct, targets=names)
    several = IRTConfig(**QUICK, dimensions=3, hidden=()).fit(turned).predictor
    reversed_ = several.correctness(unseen.features)
    assert np.corrcoef(reversed_[:, 0], reversed_[:, 4])[0, 1] < -0.9  # several dimensions can


@pytest.mark.parametrize("dimensions", [1, 2, 3])
def test_factorisation_has_as_many_dimensions_as_it_is_given(dimensions: int) -> None:
    random = np.random.default_rng(0)
    features = random.normal(size=(300, 6)).astype(np.float32)
    correct = (random.logistic(size=(300, 6)) < 3 * features).astype(np.float64)
    names = tuple("abcdef")
    config = FactorisationConfig(**QUICK, dimensions=dimensions)
    predictor = config.fit(Examples(features, correct, names, ("",) * 300)).predictor
    assert isinstance(predictor, Factorisation)
    probability = predictor.correctness(features)
    sizes = np.linalg.svd(np.log(probability / (1 - probability)), compute_uv=False)
    assert (sizes[:dimensions] > 1).all()
    assert (sizes[dimensions:] < 1e-4).all()


def test_networks_of_targets_know_nothing_of_each_other() -> None:
    train, _ = planted(200)
    other = replace(train, correct=train.correct.copy())
    other.correct[:, 1:] = 1 - other.correct[:, 1:]
    config = MLPConfig(**QUICK, hidden=(8,))
    probability = [config.fit(t).predictor.correctness(train.features) for t in (train, other)]
    assert np.allclose(probability[0][:, 0], probability[1][:, 0], atol=1e-5)
    assert np.abs(probability[0][:, 1] - probability[1][:, 1]).mean() > 0.2


@pytest.mark.parametrize("kind", CASES)
def test_threads_and_units_of_the_features_change_nothing(kind: str) -> None:
    train, _ = planted(150)
    config: Any = replace(CASES[kind].config, seeds=3)  # type: ignore[type-var]
    with threadpool_limits(1, user_api="blas"):
        expected = config.fit(train).predictor
    with threadpool_limits(2, user_api="blas"):
        other = config.fit(train, progress=SilentProgress()).predictor
    for name, array in expected.tensors().items():
        assert np.array_equal(array, other.tensors()[name])
    moved = replace(train, features=64 * train.features)
    again = config.fit(moved).predictor.correctness(moved.features)
    np.testing.assert_allclose(again, expected.correctness(train.features), atol=1e-5)


@pytest.mark.parametrize(
    ("share", "features", "found"), [(None, 64, 0.5), (None, 63, 0), (0.2, 5, 0.2)]
)
def test_share_of_features_that_is_dropped(
    share: float | None, features: int, found: float
) -> None:
    assert MLPConfig(input_dropout=share).share_of(features) == found


def test_dropped_features_and_units_leave_the_rest_at_their_size() -> None:
    """What is dropped in training isn't when it is used, and the probabilities stay calibrated."""
    train, _ = planted(800)
    options = QUICK | {"dropout": 0.5, "input_dropout": 0.2, "max_epochs": 40}
    for config in (UnifiedConfig(**options, hidden=(32,)), IRTConfig(**options, hidden=(32,))):
        probability = config.fit(train).predictor.correctness(train.features)
        np.testing.assert_allclose(probability.mean(axis=0), train.correct.mean(axis=0), atol=0.06)
        assert probability.std() > 0.15


def test_seeds_are_averaged_and_recorded() -> None:
    train, _ = planted(150)
    fit = MLPConfig(**QUICK | {"seeds": 3}, hidden=(8,)).fit(train)
    predictor = fit.predictor
    assert isinstance(predictor, TargetNetworks)
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
    train, _ = planted(150)
    constant = np.full((150, 1), 1e5, np.float32)
    features = np.concatenate([train.features, constant], axis=1)
    predictor = UNIFIED.fit(replace(train, features=features)).predictor
    moved = features.copy()
    moved[:, -1] = -7
    assert np.array_equal(predictor.correctness(features), predictor.correctness(moved))


def test_losses_without_bound_are_refused() -> None:
    train, _ = planted(100)
    with pytest.raises(FitError, match="aren't finite"):
        UnifiedConfig(**QUICK | {"learning_rate": 1e30}, hidden=(8,)).fit(train)


def test_saved_ensembles_that_contradict_themselves_are_refused() -> None:
    train, _ = planted(60)
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
        {"kind": "mlp"},
        {"kind": "unknown"},
    )
    for wrong in cases:
        with pytest.raises(CorruptError):
            load_predictor(config | wrong, tensors)
