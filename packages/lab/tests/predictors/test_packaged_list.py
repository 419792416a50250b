"""The lab's predictors in the packaged list of `compare all`."""

import sys

import pytest

from packages.lab.tests.predictors.test_fitting_kinds import KINDS
from prefill_router.comparison import ALL, ComparisonPlan, list_left_out, recipes_of, run_plan
from prefill_router.data import split
from prefill_router.fitting import recipe_from_dict
from prefill_router.predictors import PREDICTORS
from prefill_router.testing import make_routing_dataset

ANSWERS = make_routing_dataset(queries=300, seed=5)


def test_the_packaged_list_has_every_kind_that_needs_no_download() -> None:
    recipes = recipes_of(ALL)
    kinds = {recipe.to_dict()["predictor"]["kind"] for recipe in recipes.recipes.values()}
    expected = {*PREDICTORS.own, *KINDS} - {"constant", "given", "stack"}
    assert kinds == expected, f"comparison/all.yaml has no router of {expected - kinds}"
    assert next(iter(recipes.recipes)) == "SharedTrunkNet"
    assert recipes.left_out == ()


@pytest.mark.slow
def test_boosted_trees_are_left_out_without_xgboost(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "xgboost", None)
    recipes = {
        name: recipe_from_dict({"features": "complexity", "predictor": name})
        for name in ("constant", "xgboost")
    }
    plan = ComparisonPlan(recipes, "constant", split(ANSWERS), resamples=10)
    result = run_plan(plan, ANSWERS, [])
    assert [router.name for router in result.routers] == ["constant"]
    [line] = list_left_out(result.left_out)
    assert line == ("left out, not installed: xgboost (pip install 'prefill-router-lab[xgboost]')")
