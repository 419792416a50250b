"""Out-of-fold predictions: no row's own label reaches its prediction."""

from dataclasses import fields, replace
from typing import Any

import numpy as np
import pytest

from prefill_router.fitting.out_of_fold import FOLDS, out_of_fold
from prefill_router.predictors import PREDICTORS, Examples
from prefill_router.predictors.knn import KnnScoreConfig
from prefill_router.testing import make_routing_dataset

ANSWERS = make_routing_dataset(queries=120, seed=4)
EXAMPLES = Examples(
    np.random.default_rng(0).normal(size=(120, 4)).astype(np.float32),
    ANSWERS.correct,
    ANSWERS.pool.names,
    ("",) * 120,
)
KNN = KnnScoreConfig(k=5)


def test_a_fold_does_not_see_its_own_labels() -> None:
    before = out_of_fold(KNN, EXAMPLES, ANSWERS, seed=0)
    assert np.isfinite(before.correctness).all()
    assert sorted(set(before.folds.tolist())) == list(range(FOLDS))
    own = before.folds == 2
    changed = np.where(own[:, None], 1 - ANSWERS.correct, ANSWERS.correct)
    after = out_of_fold(KNN, replace(EXAMPLES, correct=changed), ANSWERS, seed=0)
    np.testing.assert_array_equal(after.correctness[own], before.correctness[own])
    assert (after.correctness[~own] != before.correctness[~own]).any()  # control


def test_without_what_can_be_fitted_there_is_no_prediction() -> None:
    folds = out_of_fold(KNN, EXAMPLES, ANSWERS, seed=0).folds
    alike = np.where((folds == 1)[:, None], ANSWERS.correct, 1.0)
    found = out_of_fold(KNN, replace(EXAMPLES, correct=alike), ANSWERS, seed=0)
    assert np.isnan(found.correctness[folds == 1]).all()
    assert np.isfinite(found.correctness[folds != 1]).all()
    few = ANSWERS.select(ANSWERS.query_ids[:3])
    three = Examples(EXAMPLES.features[:3], few.correct, EXAMPLES.targets, ("",) * 3)
    assert np.isnan(out_of_fold(KNN, three, few, seed=0).correctness).all()


@pytest.mark.parametrize("kind", PREDICTORS.names)
def test_lighter_options_differ_in_how_many_networks_there_are_alone(kind: str) -> None:
    config: Any = PREDICTORS.find(kind).config()
    light = config.lighter()
    assert type(light) is type(config)
    for one in fields(config):
        mine, other = getattr(config, one.name), getattr(light, one.name)
        assert mine == other or (one.name in ("seeds", "keep", "networks") and 1 <= other < mine)
