"""Out-of-fold predictions: no row's own label reaches its prediction."""

from dataclasses import fields, replace
from typing import Any

import numpy as np
import pytest

from prefill_router.fitting import folds_of
from prefill_router.fitting.inputs import FOLDS
from prefill_router.predictors import PREDICTORS, Examples, out_of_fold
from prefill_router.predictors.knn import KnnScoreConfig
from prefill_router.testing import make_routing_dataset

ANSWERS = make_routing_dataset(queries=120, seed=4)
EXAMPLES = Examples(
    np.random.default_rng(0).normal(size=(120, 4)).astype(np.float32),
    ANSWERS.correct,
    ANSWERS.pool.names,
    ("",) * 120,
    folds=folds_of(ANSWERS, seed=0),
)
KNN = KnnScoreConfig(k=5)


def test_a_fold_does_not_see_its_own_labels() -> None:
    before, folds = out_of_fold(KNN, EXAMPLES, seed=0), EXAMPLES.folds
    assert np.isfinite(before).all()
    assert folds is not None
    assert sorted(set(folds.tolist())) == list(range(FOLDS))
    own = folds == 2
    changed = np.where(own[:, None], 1 - ANSWERS.correct, ANSWERS.correct)
    after = out_of_fold(KNN, replace(EXAMPLES, correct=changed), seed=0)
    np.testing.assert_array_equal(after[own], before[own])
    assert (after[~own] != before[~own]).any()  # control


def test_without_what_can_be_fitted_there_is_no_prediction() -> None:
    folds = folds_of(ANSWERS, seed=0)
    alike = np.where((folds == 1)[:, None], ANSWERS.correct, 1.0)
    predictions = out_of_fold(KNN, replace(EXAMPLES, correct=alike), seed=0)
    assert np.isnan(predictions[folds == 1]).all()
    assert np.isfinite(predictions[folds != 1]).all()
    few = ANSWERS.select(ANSWERS.query_ids[:3])
    three_rows = replace(EXAMPLES[np.arange(3)], folds=folds_of(few, seed=0))
    assert np.isnan(out_of_fold(KNN, three_rows, seed=0)).all()


def check_lighter(kind: str) -> None:
    """Lighter options differ in the number of networks alone."""
    config: Any = PREDICTORS.find(kind).config()
    light = config.lighter()
    assert type(light) is type(config)
    for option in fields(config):
        mine, other = getattr(config, option.name), getattr(light, option.name)
        fewer = option.name in ("seeds", "keep", "networks") and 1 <= other < mine
        assert mine == other or fewer


@pytest.mark.parametrize("kind", [kind for kind in PREDICTORS.own if kind != "stack"])
def test_lighter_options_differ_in_how_many_networks_there_are_alone(kind: str) -> None:
    check_lighter(kind)


def test_a_lighter_stack_has_lighter_members() -> None:
    config: Any = PREDICTORS.find("stack").config()
    light = config.lighter()
    assert type(light) is type(config)
    assert [member["kind"] for member in light.members] == [m["kind"] for m in config.members]
    assert light.configs == tuple(member.lighter() for member in config.configs)
