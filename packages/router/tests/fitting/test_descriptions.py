"""What is said of targets and tasks is read by an encoder, and only while a router is fitted."""

import numpy as np
import pytest

from packages.router.tests.fakes.planted_signal import states_of
from prefill_router.data import split
from prefill_router.errors import MissingExtraError
from prefill_router.fitting import FitConfig, learn, recipe_from_dict
from prefill_router.fitting.inputs import describe, group_text, target_text
from prefill_router.targets import Pool, Target
from prefill_router.testing import make_routing_dataset
from prefill_router_lab.predictors.graph import GraphRouter

pytestmark = pytest.mark.slow

POOL = Pool(
    (
        Target(name="math-large", input_price=2, output_price=8),
        Target(name="math-larger", input_price=2, output_price=8),
        Target(name="poet"),
    )
)


def test_texts() -> None:
    assert target_text(POOL["poet"]) == "The language model poet."
    assert "costs 2 dollars per million" in target_text(POOL["math-large"])
    assert group_text("law") == "Questions of law."
    assert group_text("") == "Questions of any kind."


def test_like_texts_have_like_vectors() -> None:
    try:
        found = describe(POOL, ("algebra", "poetry", "algebra", ""), "minilm")
    except MissingExtraError as error:
        pytest.skip(str(error))
    assert list(found.groups) == ["algebra", "poetry", ""]
    unit = found.targets / np.linalg.norm(found.targets, axis=1, keepdims=True)
    near = unit @ unit.T
    assert near[0, 1] > max(near[0, 2], near[1, 2]) + 0.1


def test_a_graph_is_fitted_with_costs_and_texts() -> None:
    answers = make_routing_dataset(queries=120, seed=3)
    states = [states_of(answers)]
    quick = {"kind": "graph", "networks": 1, "max_epochs": 2, "hidden": 8}
    found = []
    for text in (None, "minilm"):
        predictor = {**quick, "text": text}
        recipe = recipe_from_dict(
            {"features": {"kind": "prefill", "dim": 6}, "predictor": predictor}
        )
        assert recipe_from_dict(recipe.to_dict()) == recipe
        try:
            router = learn(answers, states, split(answers), config=FitConfig(recipe=recipe))
        except MissingExtraError as error:
            pytest.skip(str(error))
        assert isinstance(router.predictor, GraphRouter)
        found.append(
            router.predictor.correctness(np.zeros((1, router.predictor.width), np.float32))
        )
    assert not np.allclose(*found)
