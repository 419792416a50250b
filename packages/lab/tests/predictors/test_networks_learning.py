"""What each kind of network of the lab learns of what is planted for it."""

from dataclasses import replace

import numpy as np
import pytest

from packages.lab.tests.predictors.network_cases import CASES
from packages.router.tests.predictors.network_cases import QUICK, draw_examples
from packages.router.tests.predictors.network_contract import (
    check_difficulty,
    check_dropout,
    check_threads_and_units,
)
from prefill_router.errors import CorruptError
from prefill_router.predictors import Examples, load_predictor
from prefill_router_lab.predictors.latent import (
    Factorisation,
    FactorisationConfig,
    IRTConfig,
    ItemResponse,
)
from prefill_router_lab.predictors.perceptrons import (
    MLPConfig,
    TargetMultiTaskConfig,
    TargetNetworks,
)

pytestmark = pytest.mark.slow

MLP = MLPConfig(**QUICK, hidden=(8,))
MULTITASK = TargetMultiTaskConfig(**QUICK, hidden=(8,))


def test_difficulty_is_learned_where_it_has_a_weight() -> None:
    check_difficulty(MULTITASK)


def test_without_weight_the_difficulty_head_is_as_if_it_weren_t_there() -> None:
    train, _ = draw_examples(200)
    plain = MLP.fit(train).predictor
    without = replace(MULTITASK, difficulty_weight=0.0).fit(train).predictor
    weighted = replace(MULTITASK, difficulty_weight=1.0).fit(train).predictor
    expected = plain.correctness(train.features)
    assert np.array_equal(without.correctness(train.features), expected)
    assert np.abs(weighted.correctness(train.features) - expected).max() > 1e-3  # control


def test_item_response_finds_the_order_of_abilities() -> None:
    train, hard = draw_examples(400, targets=6)
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
    train, _ = draw_examples(300)
    unseen, _ = draw_examples(300, seed=1)
    single = IRTConfig(**QUICK, hidden=()).fit(train).predictor
    assert isinstance(single, ItemResponse)
    ranked = single.correctness(10 * unseen.features)[:, np.argsort(single.abilities[:, 0])]
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
    train, _ = draw_examples(200)
    other = replace(train, correct=train.correct.copy())
    other.correct[:, 1:] = 1 - other.correct[:, 1:]
    probability = [MLP.fit(t).predictor.correctness(train.features) for t in (train, other)]
    assert np.allclose(probability[0][:, 0], probability[1][:, 0], atol=1e-5)
    assert np.abs(probability[0][:, 1] - probability[1][:, 1]).mean() > 0.2


@pytest.mark.parametrize("kind", CASES)
def test_threads_and_units_of_the_features_change_nothing(kind: str) -> None:
    check_threads_and_units(CASES[kind].config)


def test_dropped_features_and_units_leave_the_rest_at_their_size() -> None:
    check_dropout(IRTConfig)


def test_seeds_are_averaged() -> None:
    train, _ = draw_examples(150)
    predictor = replace(MLP, seeds=3).fit(train).predictor
    assert isinstance(predictor, TargetNetworks)
    singles = [
        replace(predictor, arrays={k: v[i : i + 1] for k, v in predictor.arrays.items()})
        for i in range(predictor.networks)
    ]
    each = [single.correctness(train.features) for single in singles]
    assert len(each) == 3
    np.testing.assert_allclose(predictor.correctness(train.features), np.mean(each, axis=0))
    assert np.abs(each[0] - each[1]).max() > 1e-3


def test_saved_networks_of_another_kind_are_refused() -> None:
    train, _ = draw_examples(60)
    predictor = MLP.fit(train).predictor
    config, tensors = predictor.to_dict(), predictor.tensors()
    assert load_predictor(config, tensors).targets == train.targets
    for kind in ("multitask", "unified_multitask", "irt"):
        with pytest.raises(CorruptError):
            load_predictor(config | {"kind": kind}, tensors)
