import sys
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from packages.lab.tests.predictors.test_fitting_kinds import QUICK_GRAPH as QUICK
from packages.router.tests.fakes.planted_signal import states_of
from prefill_router.data import split
from prefill_router.errors import ConfigError, CorruptError, FitError, MissingExtraError
from prefill_router.fitting import FitConfig, learn, recipe_from_dict
from prefill_router.predictors import Examples, load_predictor
from prefill_router.predictors.base import Descriptions
from prefill_router.statistics import auc_by_target
from prefill_router.testing import make_routing_dataset
from prefill_router_lab.predictors.graph import (
    GraphConfig,
    GraphRouter,
    choose_temperature,
    find_centroids,
    number_tasks,
    share_of_tasks,
)
from prefill_router_lab.predictors.graph_network import GraphNetwork, Messages, build_graph

pytestmark = pytest.mark.slow

Array = NDArray[Any]


def by_task(queries: int, *, seed: int) -> Examples:
    """Each target is good at one task; a task is a place among the features, and no more."""
    random = np.random.default_rng(seed)
    task = random.integers(3, size=queries)
    features = random.normal(size=(queries, 5)).astype(np.float32)
    features[np.arange(queries), task] += 4
    chance = np.where(task[:, None] == np.arange(3), 0.9, 0.3)
    correct = (random.random((queries, 3)) < chance).astype(np.float64)
    groups = tuple(["biology", "history", "law"][i] for i in task)
    return Examples(features, correct, ("a", "b", "c"), groups)


def test_a_new_query_finds_its_task() -> None:
    train, unseen = by_task(300, seed=0), by_task(300, seed=1)
    fit = QUICK.fit(train)
    predictor = fit.predictor
    assert isinstance(predictor, GraphRouter)
    assert predictor.tasks == ("biology", "history", "law")
    auc = auc_by_target(predictor.correctness(unseen.features), unseen.correct)
    assert auc.min() > 0.75
    scaled = (unseen.features - predictor.arrays["mean"]) / predictor.arrays["deviation"]
    centroids = predictor.arrays["centroids"].astype(np.float64)
    shares = share_of_tasks(scaled.astype(np.float64), centroids, temperature=predictor.temperature)
    own = [predictor.tasks[i] for i in shares.argmax(axis=1)]
    assert np.mean([a == b for a, b in zip(own, unseen.groups, strict=True)]) > 0.9


def test_a_query_of_the_graph_is_predicted_without_its_own_labels() -> None:
    """With features that say nothing, a train row's own label can't be read back."""
    random = np.random.default_rng(0)
    features = random.normal(size=(200, 4)).astype(np.float32)
    correct = random.integers(2, size=(200, 2)).astype(np.float64)
    fit = QUICK.fit(Examples(features, correct, ("a", "b"), ("",) * 200))
    rates = fit.predictor.correctness(features)
    assert auc_by_target(rates, correct).max() < 0.8
    assert min(fit.training["networks"][0]["validation_loss"]) > 0.6


def test_best_epoch_is_restored() -> None:
    train = by_task(200, seed=2)
    for epochs in (1, 12):
        config = replace(QUICK, max_epochs=epochs, patience=12)
        network = config.fit(train).training["networks"][0]
        assert len(network["validation_loss"]) == epochs
        assert network["best_epoch"] == int(np.argmin(network["validation_loss"]))
    best = network["best_epoch"] + 1
    assert 1 < best < 12  # else the next line would say little
    until = replace(QUICK, max_epochs=best, patience=12).fit(train).predictor
    whole = replace(QUICK, max_epochs=12, patience=12).fit(train).predictor
    assert np.array_equal(until.correctness(train.features), whole.correctness(train.features))


def test_ensemble_is_the_mean_of_its_networks() -> None:
    train = by_task(120, seed=3)
    first = QUICK.fit(train).predictor.correctness(train.features)
    pair = replace(QUICK, networks=2).fit(train).predictor
    arrays = pair.tensors()
    shared = ("mean", "deviation", "centroids")
    each = []
    for n in range(2):
        part = {k: v if k in shared else v[n : n + 1] for k, v in arrays.items()}
        single = load_predictor(pair.to_dict() | {"networks": 1}, part)
        each.append(single.correctness(train.features))
    assert np.array_equal(each[0], first)
    assert not np.allclose(each[1], first)
    np.testing.assert_allclose(
        pair.correctness(train.features), (each[0] + each[1]) / 2, rtol=1e-12
    )


def test_numpy_and_torch_agree() -> None:
    random = torch.Generator().manual_seed(5)
    rows = torch.empty(30, 4).normal_(generator=random)
    task = torch.arange(30) % 3
    labels = (torch.empty(30, 2).uniform_(generator=random) < 0.5).float()
    graph = build_graph(rows, task, rows[:3], labels, torch.ones(30, 2))
    network = GraphNetwork(4, torch.tensor([0.5, -1.0]), replace(QUICK, layers=3), random)
    shares = torch.empty(30, 3).uniform_(generator=random).softmax(1)
    with torch.no_grad():
        frozen = network.freeze(graph)
        logits = network.logits(rows, shares, frozen).numpy()
    values = {name: value.detach().double().numpy() for name, value in network.parameters.items()}
    states = np.maximum(rows.numpy() @ values["enter"] + values["enter.bias"], 0)
    for layer in range(3):
        own = states @ values[f"query.{layer}"] + values[f"query.{layer}.bias"]
        heard = shares.numpy() @ frozen.from_tasks[layer].numpy()
        states = states + np.maximum(own + heard, 0)
    expected = states @ frozen.vectors.numpy().T + frozen.biases.numpy()
    np.testing.assert_allclose(logits, expected, atol=1e-4)


def test_messages_are_weighted_means() -> None:
    rows = torch.tensor([[1.0, 0.0], [0.0, 1.0], [5.0, 5.0]])
    labels = torch.tensor([[1.0, 0.25], [0.0, 0.75], [1.0, 9.0]])
    present = torch.tensor([[1.0, 1.0], [1.0, 1.0], [1.0, 0.0]])
    graph = build_graph(rows, torch.tensor([1, 1, 0]), rows[:2], labels, present)
    messages = Messages()
    right = messages.along(graph.right, rows, nodes=2)
    wrong = messages.along(graph.wrong, rows, nodes=2)
    np.testing.assert_allclose(right, [[2, 5 / 3], [0.125, 0.375]], rtol=1e-6)
    np.testing.assert_allclose(wrong, [[0, 1 / 3], [0.375, 0.125]], rtol=1e-6)
    np.testing.assert_allclose(
        messages.along(graph.of_task, rows, nodes=2), [[5, 5], [0.5, 0.5]], rtol=1e-6
    )
    np.testing.assert_allclose(messages.from_task(graph, rows[:2]), [[0, 1], [0, 1], [1, 0]])
    targets = torch.tensor([[1.0], [10.0]])
    back = messages.along(graph.right_back, targets, nodes=3)
    np.testing.assert_allclose(back, [[1.75], [3.75], [1]], rtol=1e-6)


def test_temperature_follows_how_far_the_tasks_are_apart() -> None:
    random = np.random.default_rng(4)
    names, task = number_tasks(["b", "a"] * 200)
    assert names == ("a", "b")
    shares = {}
    for distance in (0.0, 1.0, 8.0):
        rows = random.normal(size=(400, 3))
        rows[:, 0] += distance * task
        temperature = choose_temperature(rows, task)
        centroids = find_centroids(rows, task)
        share = share_of_tasks(rows, centroids, temperature=temperature)
        shares[distance] = float(share[np.arange(400), task].mean())
        np.testing.assert_allclose(share.sum(axis=1), 1)
    assert shares[0.0] == pytest.approx(0.5, abs=0.03)
    assert 0.52 < shares[1.0] < 0.75
    assert shares[8.0] > 0.98


def test_tasks_of_one_row_and_one_task() -> None:
    rows = np.random.default_rng(0).normal(size=(4, 2))
    for groups in ("abcd", "aaaa"):
        _, task = number_tasks(list(groups))
        share = share_of_tasks(
            rows, find_centroids(rows, task), temperature=choose_temperature(rows, task)
        )
        assert np.isfinite(share).all()
    alone = Examples(
        np.random.default_rng(1).normal(size=(12, 3)).astype(np.float32),
        np.arange(24).reshape(12, 2) % 5 % 2.0,
        ("a", "b"),
        tuple(map(str, range(12))),
    )
    assert np.isfinite(QUICK.fit(alone).predictor.correctness(alone.features)).all()


def test_a_constant_feature_is_not_blown_up() -> None:
    train = by_task(150, seed=6)
    features = np.concatenate([train.features, np.full((150, 1), 0.1, np.float32)], axis=1)
    predictor = QUICK.fit(replace(train, features=features)).predictor
    assert isinstance(predictor, GraphRouter)
    assert predictor.arrays["deviation"][-1] == 1
    assert (predictor.arrays["deviation"][:-1] != 1).all()


def test_losses_that_are_not_finite_are_refused() -> None:
    with pytest.raises(FitError, match="aren't finite"):
        replace(QUICK, learning_rate=1e30).fit(by_task(100, seed=7))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"hidden": 0}, "hidden is 0; it must be at least 1"),
        ({"layers": 0}, "layers is 0"),
        ({"context": 0}, "context is 0"),
        ({"dropout": 1.0}, r"dropout is 1.0; it must be in \[0, 1\)"),
        ({"learning_rate": 0.0}, "learning_rate is 0.0; it must be positive"),
        ({"weight_decay": -1.0}, "weight_decay is -1.0"),
        ({"validation": 1.0}, r"validation is 1.0; it must be in \(0, 1\)"),
    ],
)
def test_options_are_checked(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        GraphConfig(**options)


def test_without_the_package_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [n for n in sys.modules if n.partition(".")[0] == "torch_geometric"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "torch_geometric", None)
    with pytest.raises(MissingExtraError, match=r"prefill-router-lab\[graph\]"):
        QUICK.fit(by_task(50, seed=8))


def test_what_was_changed_on_disk_is_refused() -> None:
    predictor = QUICK.fit(by_task(60, seed=9)).predictor
    config, tensors = predictor.to_dict(), predictor.tensors()
    for change in (
        {"deviation": np.zeros_like(tensors["deviation"])},
        {"biases": np.full_like(tensors["biases"], np.nan)},
    ):
        with pytest.raises(CorruptError):
            load_predictor(config, tensors | change)
    for wrong in (
        {"temperature": 0.0},
        {"temperature": np.inf},
        {"tasks": ["law", "law", "biology"]},
        {"layers": 1},
        {"networks": 2},
    ):
        with pytest.raises(CorruptError):
            load_predictor(config | wrong, tensors)


def siblings(*, seed: int, rows: int = 400) -> tuple[Examples, Array]:
    """Twelve targets, each good at one of two tasks; half of them have hardly a label.

    An answer to a question of the other task is expensive. Returns the costs too.
    """
    random = np.random.default_rng(seed)
    task, good_at = random.integers(2, size=rows), np.arange(12) % 2
    features = random.normal(size=(rows, 3)).astype(np.float32)
    features[:, 0] += 4 * task
    suits = task[:, None] == good_at
    correct = (random.random((rows, 12)) < np.where(suits, 0.9, 0.1)).astype(np.float64)
    costs = np.where(suits, 1.0, 8.0) * random.lognormal(0, 0.3, (rows, 12))
    return Examples(features, correct, tuple("abcdefghijkl"), ("",) * rows), costs


def rare_auc(train: Examples, unseen: Examples) -> float:
    """The AUC of the targets that have hardly a label."""
    found = replace(QUICK, max_epochs=30, patience=30, hidden=24).fit(train).predictor
    return float(auc_by_target(found.correctness(unseen.features), unseen.correct)[6:].mean())


def few_labels() -> tuple[Examples, Array, Examples]:
    examples, costs = siblings(seed=0)
    correct = examples.correct.copy()
    correct[:, 6:] = np.nan
    correct[:2, 6:] = [[0], [1]]  # one of each, whatever the query
    return replace(examples, correct=correct), costs, siblings(seed=1)[0]


def test_costs_on_the_edges_tell_what_labels_do_not() -> None:
    train, costs, unseen = few_labels()
    shuffled = np.random.default_rng(2).permutation(len(costs))
    auc = rare_auc(replace(train, costs=costs), unseen)
    assert auc > 0.7
    assert rare_auc(train, unseen) < auc - 0.1
    assert rare_auc(replace(train, costs=costs[shuffled]), unseen) < auc - 0.1  # control


def test_what_is_said_of_a_target_tells_what_labels_do_not() -> None:
    train, _, unseen = few_labels()
    kinds = np.eye(2)[np.arange(12) % 2]
    descriptions = Descriptions(kinds, {"": np.zeros(2)})
    assert rare_auc(replace(train, descriptions=descriptions), unseen) > 0.85
    silent = Descriptions(np.zeros((12, 2)), {"": np.zeros(2)})
    assert rare_auc(replace(train, descriptions=silent), unseen) < 0.75


def test_a_cost_is_told_where_it_is_known() -> None:
    rows = torch.tensor([[1.0, 0.0], [0.0, 1.0], [5.0, 5.0]])
    nothing = torch.zeros(3, 2)
    costs = torch.tensor([[1.0, torch.nan], [-2.0, 0.5], [torch.nan, torch.nan]])
    graph = build_graph(rows, torch.tensor([0, 0, 0]), rows[:1], nothing, nothing, costs=costs)
    assert graph.cost is not None
    assert graph.cost_back is not None
    messages = Messages()
    heard = messages.along(graph.cost, rows, nodes=2)
    np.testing.assert_allclose(heard, [[0.5, -1.0], [0, 0.5]])
    back = messages.along(graph.cost_back, torch.tensor([[1.0], [10.0]]), nodes=3)
    np.testing.assert_allclose(back, [[1.0], [1.5], [0]])


def test_costs_that_tell_nothing_change_nothing() -> None:
    train = by_task(120, seed=4)
    expected = QUICK.fit(train).predictor.correctness(train.features)
    for costs in (np.full((120, 3), np.nan), np.zeros((120, 3)), np.ones((120, 3))):
        found = QUICK.fit(replace(train, costs=costs)).predictor
        assert np.array_equal(found.correctness(train.features), expected)
    with pytest.raises(FitError, match="give one cost per label"):
        replace(train, costs=np.ones((120, 3))[:, :2])


def test_a_graph_is_fitted_with_costs_and_texts() -> None:
    answers = make_routing_dataset(queries=120, seed=3)
    states = [states_of(answers)]
    quick = {"kind": "graph", "networks": 1, "max_epochs": 2, "hidden": 8}
    results = []
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
        results.append(
            router.predictor.correctness(np.zeros((1, router.predictor.width), np.float32))
        )
    assert not np.allclose(*results)
