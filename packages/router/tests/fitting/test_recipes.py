from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from packages.router.tests.fitting.recipe_fits import ANSWERS, PREFILL, SMALL, STATES, fit_recipe
from prefill_router.data import WITH_CALIBRATION, RoutingDataset, split
from prefill_router.errors import ConfigError, FormatError
from prefill_router.features.prefill import PrefillConfig
from prefill_router.fitting import (
    FitConfig,
    Recipe,
    fit_router,
    learn,
    read_recipe,
    read_recipes,
    recipe_from_dict,
)
from prefill_router.policy import Cascade, Threshold, Tolerance
from prefill_router.predictors import TrunkConfig
from prefill_router.router import Router

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("short_training")]


def test_the_default_is_the_papers_and_shrunk() -> None:
    assert recipe_from_dict({}) == Recipe(features=(PrefillConfig(),), predictor=TrunkConfig())


@pytest.mark.parametrize(
    "content",
    [
        {},
        {"features": "prefill", "predictor": "constant"},
        {"features": ["prefill", "complexity"], "predictor": {"kind": "knn_score", "k": 7}},
        {"calibration": "platt", "policy": {"kind": "threshold", "strong": "a", "weak": "b"}},
        {"soft_labels": {"file": "judge.csv", "weight": 0.25}, "policy": "argmax"},
        {"shrinkage": False, "predictor": "logistic"},
        {"features": {**PREFILL, "select": {"target-0": "mean.3"}, "poolings": ["last"]}},
        {"features": {**PREFILL, "select": "rest.3", "poolings": ["mean", "rest"]}},
        {"features": {"kind": "joint", "poolings": ["rest"]}},
    ],
)
def test_a_recipe_survives_being_written_down(content: dict[str, Any]) -> None:
    recipe = recipe_from_dict(content)
    assert recipe_from_dict(recipe.to_dict()) == recipe


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"feature": "prefill"}, r"no \['feature'\]; it has"),
        ({"routers": {"ours": {}}}, "a list of routers, which is for: prefill-router compare"),
        ({"features": []}, "needs features"),
        ({"features": "vibes"}, "no features of the kind 'vibes'"),
        ({"features": {"dim": 3}}, "needs a kind"),
        ({"features": [3]}, "must be a mapping"),
        ({"predictor": "oracle"}, "no predictor 'oracle'"),
        ({"predictor": {"kind": "knn_score", "neighbours": 3}}, r"no option \['neighbours'\]"),
        ({"predictor": {"kind": "knn_score", "k": "many"}}, r"k: .* got 'many'"),
        ({"predictor": {"kind": "shared_trunk", "seeds": 0}}, "seeds is 0"),
        ({"calibration": "prayer"}, "no calibrator 'prayer'"),
        ({"shrinkage": "much"}, "shrinkage is 'much'; it must be true or false"),
        ({"cost": "free"}, "cost is 'free'; it must be predicted or median"),
        ({"cost": ["median"]}, "must be predicted or median"),
        ({"policy": "whim"}, "whim"),
        ({"soft_labels": {"file": "x.csv", "weight": 2}}, "weight of soft labels is 2"),
        ({"features": {"kind": "prefill", "select": "nowhere"}}, "isn't a site"),
    ],
)
def test_what_makes_no_sense_is_refused(
    content: dict[str, Any], message: str, tmp_path: Path
) -> None:
    with pytest.raises(Exception, match=message) as error:
        recipe_from_dict(content)
    assert type(error.value).__module__ == "prefill_router.errors"
    path = tmp_path / "recipe.yaml"
    path.write_text(repr(content))
    with pytest.raises(FormatError, match=message):
        read_recipe(path)


@pytest.mark.parametrize("text", ["", "[1, 2]", "routers: {}", "routers: [a]", "a: b", "{", "\0"])
def test_a_file_without_routers_is_refused(text: str, tmp_path: Path) -> None:
    path = tmp_path / "routers.yaml"
    path.write_text(text)
    with pytest.raises(FormatError, match=path.name):
        read_recipes(path)
    with pytest.raises(FormatError, match="no such file"):
        read_recipes(tmp_path / "other.yaml")


def test_routers_by_name(tmp_path: Path) -> None:
    path = tmp_path / "routers.yaml"
    path.write_text("routers:\n  ours: {}\n  base: {predictor: constant, features: prefill}\n")
    assert list(read_recipes(path)) == ["ours", "base"]
    path.write_text("predictor: constant\n")
    with pytest.raises(FormatError, match="one recipe, which is for: prefill-router fit --recipe"):
        read_recipes(path)
    path.write_text("routers:\n  ours: {}\n  base: {predictor: nobody}\n")
    with pytest.raises(FormatError, match="router 'base': there is no predictor"):
        read_recipes(path)


@pytest.mark.parametrize(
    ("text", "line", "name"),
    [
        ("routers:\n  ours: {}\n  ours: {predictor: constant}\n", 3, "ours"),
        ("routers:\n  1: {}\n  '1': {predictor: constant}\n", 3, "1"),
        ("routers:\n  ours: {predictor: {kind: knn_score, k: 3, k: 5}}\n", 2, "k"),
        ("routers: {ours: {}}\nrouters: {base: {}}\n", 2, "routers"),
    ],
)
def test_a_name_that_is_there_twice_is_refused(
    text: str, line: int, name: str, tmp_path: Path
) -> None:
    path = tmp_path / "routers.yaml"
    path.write_text(text)
    with pytest.raises(FormatError, match=f"routers.yaml: line {line}: '{name}' is repeated"):
        read_recipes(path)


def test_a_recipe_may_start_from_another(tmp_path: Path) -> None:
    path = tmp_path / "routers.yaml"
    path.write_text("routers:\n  a: &a {predictor: constant}\n  b: {<<: *a, predictor: logistic}\n")
    kinds = [recipe.to_dict()["predictor"]["kind"] for recipe in read_recipes(path).values()]
    assert kinds == ["constant", "logistic"]


def test_predictions_are_shrunk_unless_the_recipe_says_otherwise(tmp_path: Path) -> None:
    query_split = split(ANSWERS)
    routers = [
        learn(
            ANSWERS,
            [STATES],
            query_split,
            config=FitConfig(
                recipe=recipe_from_dict({"features": PREFILL, "predictor": SMALL, **p})
            ),
        )
        for p in ({}, {"shrinkage": False})
    ]
    shrunk, plain = routers
    assert plain.shrinkage is None
    assert shrunk.shrinkage is not None
    test = ANSWERS.select(query_split["test"])
    raw, mixed = (router.predict(test, stores=[STATES]).correctness for router in (plain, shrunk))
    np.testing.assert_array_equal(shrunk.shrinkage.shrink(raw), mixed)
    assert not np.allclose(raw, mixed)  # control
    shrunk.save(tmp_path / "router")
    again = Router.load(tmp_path / "router")
    np.testing.assert_array_equal(again.predict(test, stores=[STATES]).correctness, mixed)
    assert shrunk.shrinkage.words in (tmp_path / "router" / "README.md").read_text()


def test_costs_are_predicted_unless_the_recipe_says_otherwise(tmp_path: Path) -> None:
    query_split = split(ANSWERS)
    long = np.exp(5 + 2 * np.nanmean(ANSWERS.correct, axis=1, keepdims=True))  # the states know it
    answers = replace(ANSWERS, output_tokens=ANSWERS.output_tokens * 0 + long)
    noisy = answers.output_tokens.copy()
    noisy[answers.rows(query_split["test"])] *= 100  # of no train row
    parts = {"features": PREFILL, "predictor": "knn_score"}
    predicted, median, other = (
        learn(
            data,
            [STATES],
            query_split,
            config=FitConfig(recipe=recipe_from_dict({**parts, **cost_parts})),
        )
        for data, cost_parts in (
            (answers, {}),
            (answers, {"cost": "median"}),
            (replace(answers, output_tokens=noisy), {"cost": "predicted"}),
        )
    )
    assert median.output is None
    assert predicted.output is not None
    assert other.output is not None
    assert predicted.output.to_dict() == other.output.to_dict()
    assert (predicted.output.r2 > 0.2).all()
    test = answers.select(query_split["test"])
    median_costs = replace(predicted, output=None).predict(test, stores=[STATES]).estimated_cost
    costs = [router.predict(test, stores=[STATES]).estimated_cost for router in (predicted, median)]
    np.testing.assert_array_equal(costs[1], median_costs)
    is_known = ~np.isnan(test.observed_cost)
    errors = [
        np.square(np.log(cost[is_known] / test.observed_cost[is_known])).mean() for cost in costs
    ]
    assert errors[0] < 0.9 * errors[1]
    for router, words in ((predicted, predicted.output.words), (median, "Equation 1")):
        router.save(tmp_path / "router")
        assert words in (tmp_path / "router" / "README.md").read_text()
    assert recipe_from_dict(Recipe(cost="median").to_dict()).cost == "median"


def test_only_train_labels_reach_the_shrinkage() -> None:
    query_split = split(ANSWERS)
    recipe = recipe_from_dict({"features": PREFILL, "predictor": "knn_score"})
    shrinkage, same, other = (
        learn(answers, [STATES], query_split, config=FitConfig(recipe=recipe)).shrinkage
        for answers in (ANSWERS, relabel("test", query_split), relabel("train", query_split))
    )
    assert shrinkage is not None
    assert same is not None
    assert other is not None
    assert shrinkage.to_dict() == same.to_dict()
    assert shrinkage.to_dict() != other.to_dict()  # control


def test_where_nothing_is_learned_the_base_rates_choose_and_a_note_says_so() -> None:
    query_split, recipe = (
        split(ANSWERS),
        recipe_from_dict({"features": PREFILL, "predictor": "knn_score"}),
    )
    order = np.random.default_rng(0).permutation(len(ANSWERS))
    nonsense = RoutingDataset.of(
        ANSWERS.queries,
        ANSWERS.pool,
        ANSWERS.correct[order],
        input_tokens=ANSWERS.input_tokens,
        output_tokens=ANSWERS.output_tokens,
    )
    router = learn(nonsense, [STATES], query_split, config=FitConfig(recipe=recipe))
    assert router.shrinkage is not None
    assert router.shrinkage.choice == 0
    assert any("the base rates decide" in note for note in router.record.notes)
    apart = np.diff(router.predict(ANSWERS, stores=[STATES]).correctness, axis=1)
    assert apart.std(axis=0).max() < 1e-12
    learned = learn(ANSWERS, [STATES], query_split, config=FitConfig(recipe=recipe))
    assert not any("the base rates decide" in note for note in learned.record.notes)  # control


def test_a_calibrated_router_is_saved_with_its_calibrator(tmp_path: Path) -> None:
    router = fit_recipe(predictor=SMALL, calibration="isotonic")
    assert set(router.split.parts) == {"train", "calibration", "test"}
    router.save(tmp_path / "router")
    again = Router.load(tmp_path / "router")
    assert again.calibrator is not None
    test = ANSWERS.select(router.split["test"])
    before, after = (
        version.predict(test, stores=[STATES]).correctness for version in (router, again)
    )
    assert np.array_equal(before, after)
    raw = fit_router(
        ANSWERS,
        [STATES],
        config=FitConfig(recipe=recipe_from_dict({"features": PREFILL, "predictor": SMALL})),
        split=router.split,
    ).router.predict(test, stores=[STATES])
    assert not np.allclose(raw.correctness, before)  # control: the calibrator does something
    assert "| calibration | isotonic |" in (tmp_path / "router" / "README.md").read_text()


def test_a_calibration_needs_queries_of_its_own() -> None:
    recipe = recipe_from_dict(
        {"features": PREFILL, "predictor": "constant", "calibration": "platt"}
    )
    with pytest.raises(ConfigError, match="no calibration part"):
        fit_router(ANSWERS, [STATES], config=FitConfig(recipe=recipe), split=split(ANSWERS))


def relabel(part: str, query_split: Any) -> RoutingDataset:
    correct = ANSWERS.correct.copy()
    rows = ANSWERS.rows(query_split[part])
    correct[rows] = 1 - correct[rows]
    return RoutingDataset.of(
        ANSWERS.queries,
        ANSWERS.pool,
        correct,
        input_tokens=ANSWERS.input_tokens,
        output_tokens=ANSWERS.output_tokens,
    )


def test_each_part_reaches_what_it_may() -> None:
    query_split = split(ANSWERS, fractions=WITH_CALIBRATION)
    recipe = recipe_from_dict({"features": PREFILL, "predictor": SMALL, "calibration": "platt"})
    config = FitConfig(recipe=recipe)
    router = learn(ANSWERS, [STATES], query_split, config=config)
    without_test = learn(relabel("test", query_split), [STATES], query_split, config=config)
    other = learn(relabel("calibration", query_split), [STATES], query_split, config=config)
    for name, tensor in router.predictor.tensors().items():
        assert np.array_equal(tensor, without_test.predictor.tensors()[name])
        assert np.array_equal(tensor, other.predictor.tensors()[name])
    for other_router, same in ((without_test, True), (other, False)):
        assert router.calibrator is not None
        assert other_router.calibrator is not None
        assert same == all(
            np.array_equal(tensor, other_router.calibrator.tensors()[name])
            for name, tensor in router.calibrator.tensors().items()
        )


def test_a_policy_decides_and_is_saved(tmp_path: Path) -> None:
    router = fit_recipe(policy={"kind": "tolerance"}, predictor=SMALL)
    assert router.policy == Tolerance()
    router.save(tmp_path / "router")
    assert Router.load(tmp_path / "router").policy == Tolerance()


def test_a_policy_of_unknown_targets_is_refused() -> None:
    with pytest.raises(ConfigError, match="nobody"):
        fit_recipe(policy=Threshold(strong="nobody", weak="target-0").to_dict())


FRUGAL: dict[str, Any] = {"kind": "frugal_cascade", "depth": 2, "folds": 3}


def test_a_cascade_is_learned_from_train_rows_alone() -> None:
    """Other labels and costs of the test part teach the same cascade."""
    recipe = recipe_from_dict({"features": PREFILL, "predictor": "knn_score", "policy": FRUGAL})
    assert recipe_from_dict(recipe.to_dict()) == recipe
    config, query_split = FitConfig(recipe=recipe), split(ANSWERS)
    policy = learn(ANSWERS, [STATES], query_split, config=config).policy
    assert isinstance(policy, Cascade)
    assert 1 <= len(policy.targets) <= 2
    test = np.isin(ANSWERS.query_ids, query_split["test"])[:, None]
    other = replace(
        ANSWERS,
        correct=np.where(test, 1 - ANSWERS.correct, ANSWERS.correct),
        output_tokens=np.where(test, 9999, ANSWERS.output_tokens),
    )
    assert learn(other, [STATES], query_split, config=config).policy == policy
    turned = replace(ANSWERS, correct=np.where(test, ANSWERS.correct, 1 - ANSWERS.correct))
    assert learn(turned, [STATES], query_split, config=config).policy != policy  # control


def test_a_policy_that_is_learned_is_none_yet() -> None:
    recipe = recipe_from_dict({"policy": FRUGAL})
    with pytest.raises(ConfigError, match="is learned with each router"):
        _ = recipe.fixed_policy
    assert recipe_from_dict({"policy": "tolerance"}).fixed_policy == Tolerance()
