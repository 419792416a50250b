import dataclasses
from pathlib import Path

import numpy as np
import pytest

from packages.router.tests.router.fixtures import SMALL, prefill
from prefill_router.activations import MemoryActivations, Site
from prefill_router.cost import CostEstimator
from prefill_router.data import RoutingDataset, split
from prefill_router.errors import ConfigError, DataError, FitError, StoreError
from prefill_router.features.base import FeatureSet
from prefill_router.features.prefill import PrefillConfig
from prefill_router.fitting import Recipe, RouterFit, fit_router
from prefill_router.policy import choose
from prefill_router.predictors import TrunkConfig
from prefill_router.router import Router
from prefill_router.testing import FakeEncoder, make_routing_dataset

pytestmark = pytest.mark.slow

BRIEF = dataclasses.replace(
    SMALL,
    recipe=dataclasses.replace(SMALL.recipe, predictor=TrunkConfig(seeds=1, keep=1, max_epochs=2)),
)


def test_planted_signal_is_found_and_shuffled_labels_are_not(
    answers: RoutingDataset, states: MemoryActivations, router_fit: RouterFit
) -> None:
    assert router_fit.evaluation.headline["auc_mean"].value > 0.85
    assert {b.site.layer for b in prefill(router_fit.router).blocks} == {3}
    order = np.random.default_rng(1).permutation(len(answers))
    shuffled = dataclasses.replace(answers, correct=answers.correct[order])
    control = fit_router(shuffled, [states], config=SMALL)
    assert control.evaluation.headline["auc_mean"].value < 0.65


def test_changing_the_test_rows_changes_nothing_that_was_fitted(
    answers: RoutingDataset, states: MemoryActivations, router: Router
) -> None:
    query_split = split(answers)
    correct, output = answers.correct.copy(), answers.output_tokens.copy()
    rows = answers.rows(query_split["test"])
    correct[rows], output[rows] = 1 - correct[rows], output[rows] * 7
    other = dataclasses.replace(answers, correct=correct, output_tokens=output)
    again = fit_router(other, [states], config=SMALL, split=query_split).router
    assert router.reference is not None
    assert again.reference is not None
    assert router.reference.to_dict() == again.reference.to_dict()
    for mine, theirs in (
        (router.features.tensors(), again.features.tensors()),
        (router.predictor.tensors(), again.predictor.tensors()),
        (router.reference.tensors(), again.reference.tensors()),
    ):
        assert mine.keys() == theirs.keys()
        for name, value in mine.items():
            np.testing.assert_array_equal(value, theirs[name])
    np.testing.assert_array_equal(router.costs.median_output, again.costs.median_output)
    assert router.costs.scale == again.costs.scale


def test_order_of_the_rows_changes_no_decision(
    answers: RoutingDataset, states: MemoryActivations, router: Router
) -> None:
    ids = list(reversed(answers.query_ids))
    backwards = fit_router(answers.select(ids), [states], config=SMALL, split=split(answers)).router
    mine, theirs = (
        router.predict(answers, stores=[states]),
        backwards.predict(answers, stores=[states]),
    )
    np.testing.assert_allclose(mine.correctness, theirs.correctness, atol=1e-6)
    assert mine.scale == theirs.scale


def test_states_come_from_the_store_the_cache_or_the_encoder_alike(
    router: Router, answers: RoutingDataset, states: MemoryActivations, tmp_path: Path
) -> None:
    stored = router.predict(answers, stores=[states])
    cached = router.predict(answers, cache=tmp_path)
    shards = list(tmp_path.rglob("*.safetensors"))
    again = router.predict(answers, cache=tmp_path)
    live = router.predict(answers)
    for other in (cached, again, live):
        np.testing.assert_array_equal(stored.correctness, other.correctness)
    assert shards
    assert list(tmp_path.rglob("*.safetensors")) == shards


def test_prediction_equals_the_routed_decision(router: Router, answers: RoutingDataset) -> None:
    part = answers.select(answers.query_ids[:20])
    unknown = np.full_like(part.input_tokens, np.nan)
    predicted = router.predict(dataclasses.replace(part, input_tokens=unknown))
    routed = router.route_many([q.prompt for q in part.queries], lam=0.6)
    chosen = choose(predicted.correctness, predicted.normalised_cost, 0.6)
    assert [router.pool.names[k] for k in chosen] == [d.target for d in routed]


def test_prices_can_be_changed_without_fitting_again(
    router: Router, answers: RoutingDataset, states: MemoryActivations, tmp_path: Path
) -> None:
    dear = router.pool.with_prices({"target-0": (500.0, 900.0)}, date="2026-11-20")
    repriced = router.with_pool(dear)
    request = "Question 5 of difficulty 0.02: why?"
    assert router.route(request, lam=0).target == "target-0"
    assert repriced.route(request, lam=0).target == "target-1"
    train = answers.with_pool(dear).select(router.split["train"])
    fresh = CostEstimator.fit(train, states.tokens(train.prompt_keys))
    assert fresh.scale == repriced.costs.scale
    repriced.save(tmp_path / "router")
    assert Router.load(tmp_path / "router").pool == dear
    with pytest.raises(ConfigError, match="the router needs"):
        router.with_pool(dear.select(["target-0"]))


def test_features_that_the_predictor_does_not_take_are_refused(router: Router) -> None:
    blocks = tuple(
        dataclasses.replace(block, reducer=block.reducer.first(2))
        for block in prefill(router).blocks
    )
    features = dataclasses.replace(prefill(router), blocks=blocks)
    with pytest.raises(ConfigError, match="the predictor takes 16"):
        dataclasses.replace(router, features=FeatureSet((features,)))


def test_a_name_that_two_stores_share_can_not_be_assigned(
    answers: RoutingDataset, states: MemoryActivations
) -> None:
    other = FakeEncoder(max_tokens=20).encode(answers.queries, states.sites)
    encoder_names = dict.fromkeys(answers.pool.names, "fake")
    recipe = Recipe(features=(PrefillConfig(dim=8, mode="per_model", assignments=encoder_names),))
    config = dataclasses.replace(SMALL, recipe=recipe)
    with pytest.raises(ConfigError, match=r"several stores have the encoders \['fake'\]"):
        fit_router(answers, [states, other], config=config)


def test_dataset_without_a_target_of_the_router_is_refused(
    router: Router, answers: RoutingDataset
) -> None:
    with pytest.raises(DataError, match="lacks the router's targets"):
        router.predict(answers.select(targets=["target-0"]))


def test_more_targets_in_another_order_are_no_hindrance(
    router: Router, answers: RoutingDataset
) -> None:
    backwards = answers.select(targets=reversed(answers.pool.names))
    mine, theirs = router.predict(answers), router.predict(backwards)
    np.testing.assert_array_equal(mine.correctness, theirs.correctness)
    np.testing.assert_array_equal(mine.estimated_cost, theirs.estimated_cost)


def test_unfinished_store_is_refused_by_fit(
    answers: RoutingDataset, states: MemoryActivations, encoder: FakeEncoder
) -> None:
    part = encoder.encode(answers.queries[:100], states.sites)
    with pytest.raises(StoreError, match="lacks the states of"):
        fit_router(answers, [part], config=SMALL)


def test_nothing_to_learn_from_is_an_error(
    answers: RoutingDataset, states: MemoryActivations
) -> None:
    empty = dataclasses.replace(answers, correct=np.full_like(answers.correct, np.nan))
    with pytest.raises(FitError, match="no train row has a label"):
        fit_router(empty, [states], config=SMALL)


def test_one_target_alone_is_nothing_to_route(
    answers: RoutingDataset, states: MemoryActivations
) -> None:
    with pytest.raises(FitError, match="there is nothing to route"):
        fit_router(answers.select(targets=["target-1"]), [states], config=SMALL)


def test_target_of_one_class_gets_its_base_rate_and_a_note(
    answers: RoutingDataset, states: MemoryActivations
) -> None:
    correct = answers.correct.copy()
    correct[:, 2] = 1.0
    router_fit = fit_router(dataclasses.replace(answers, correct=correct), [states], config=BRIEF)
    predicted = router_fit.router.predict(answers, stores=[states]).correctness[:, 2]
    assert predicted.min() > 0.98
    assert any("target-2" in note for note in router_fit.router.record.notes)


def test_no_prices_at_all_routes_by_probability_alone(
    answers: RoutingDataset, states: MemoryActivations
) -> None:
    pool = dataclasses.replace(
        answers.pool,
        targets=tuple(
            dataclasses.replace(t, input_price=None, output_price=None) for t in answers.pool
        ),
    )
    router_fit = fit_router(answers.with_pool(pool), [states], config=BRIEF)
    predicted = router_fit.router.predict(answers, stores=[states])
    assert not predicted.estimated_cost.any()
    assert "no costs are known" in router_fit.router.record.notes[0]
    chosen = choose(predicted.correctness, predicted.normalised_cost, 0.5)
    np.testing.assert_array_equal(chosen, predicted.correctness.argmax(axis=1))


def test_tiny_dataset_can_be_fitted_or_says_why_not(encoder: FakeEncoder) -> None:
    few = make_routing_dataset(queries=30, targets=2)
    states = encoder.encode(few.queries, [Site(3, "last"), Site(4, "last")])
    assert fit_router(few, [states], config=BRIEF).router.pool.names == few.pool.names
    single = few.select(few.query_ids[:1])
    with pytest.raises(DataError, match="distinct prompts can't fill"):
        fit_router(single, [states], config=BRIEF)
