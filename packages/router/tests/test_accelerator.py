"""Array work on a device of torch, a processor or a GPU, gives what NumPy gives."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from packages.router.tests.predictors.network_cases import draw_examples
from prefill_router import accelerator as module
from prefill_router.accelerator import accelerator, compute_on, torch_device
from prefill_router.errors import ConfigError
from prefill_router.evaluation.metrics import Ranking, compute_aucs
from prefill_router.neighbours import NeighbourIndex, neighbours
from prefill_router.neighbours.accelerated_search import SearchedRows
from prefill_router.predictors import Examples, TrunkConfig
from prefill_router.predictors.networks import (
    CORRECTNESS,
    DIFFICULTY,
    Heads,
    Network,
    NetworkConfig,
    NetworkLabels,
    NetworkRows,
    NetworkRun,
    PerceptronConfig,
    Perceptrons,
    Schedule,
    UnifiedConfig,
    train_seeds,
)
from prefill_router.predictors.training import Draws, Holdout
from prefill_router.progress import SilentProgress

CPU = torch.device("cpu")
DEVICES = [
    CPU,
    pytest.param(
        torch.device("cuda"),
        marks=[
            pytest.mark.cuda,
            pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU with CUDA"),
        ],
    ),
]
OPTIONS: dict[str, Any] = {
    "max_epochs": 12,
    "patience": 5,
    "batch_size": 64,
    "dropout": 0.0,
    "input_dropout": 0.0,
    "seeds": 3,
}


class SideBySide(Perceptrons):
    """A network for each target."""

    kind = "side_by_side"
    shared = False


class SideBySideConfig(PerceptronConfig):
    """Its options."""

    predictor = SideBySide


NETWORKS: dict[str, NetworkConfig] = {
    "one for all": UnifiedConfig(**OPTIONS, hidden=(16, 8), difficulty_weight=0.3, pairs=0.5),
    "one for each": SideBySideConfig(**OPTIONS, hidden=(8,)),
}


def draw_normal(rows: int, width: int, seed: int = 0) -> NDArray[np.float32]:
    return np.random.default_rng(seed).normal(size=(rows, width)).astype(np.float32)


def hide_labels(examples: Examples) -> Examples:
    """Hide a tenth of the labels, and repeat one row."""
    correct, features = examples.correct.copy(), examples.features.copy()
    correct[np.random.default_rng(3).random(correct.shape) < 0.1] = np.nan
    features[7] = features[3]
    return replace(examples, correct=correct, features=features)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("scale", [1, 1e-25, 1e6, 1e20])
@pytest.mark.parametrize("centre", [0, 1000])
def test_neighbours_are_those_of_numpy(device: torch.device, scale: float, centre: float) -> None:
    vectors = (scale * (draw_normal(400, 20) + centre)).astype(np.float32)
    queries = (scale * (draw_normal(60, 20, 1) + centre)).astype(np.float32)
    vectors[100:150], vectors[3] = vectors[0], 10 * vectors[3]
    queries[:3] = vectors[[0, 3, 7]]
    keys = [f"k{row // 2}" for row in range(400)]
    index = NeighbourIndex.of(vectors, keys)
    expected = index.search(queries, 9, ["k0"] * 60)
    with compute_on(device):
        distances, rows = index.search(queries, 9, ["k0"] * 60)
    assert np.array_equal(rows, expected[1])
    np.testing.assert_allclose(distances, expected[0], rtol=1e-12)


@pytest.mark.parametrize("device", DEVICES)
def test_differences_are_computed_in_parts(
    device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes: list[int] = []
    compute = SearchedRows.compute_distances

    def record_size(rows: SearchedRows, queries: NDArray[Any], proposed: NDArray[Any]) -> Any:
        sizes.append(proposed.size * queries.shape[1])
        return compute(rows, queries, proposed)

    monkeypatch.setattr(SearchedRows, "compute_distances", record_size)
    monkeypatch.setattr(neighbours, "_NUMBERS_AT_ONCE_ON_DEVICE", 100)
    index = NeighbourIndex.of(np.ones((60, 5), dtype=np.float32))  # so all rows are proposed
    with compute_on(device):
        _, rows = index.search(np.ones((3, 5), dtype=np.float32), 2)
    assert np.array_equal(rows, [[0, 1]] * 3)
    assert max(sizes) == 100


@pytest.mark.parametrize("device", DEVICES)
def test_a_rounded_product_isn_t_used(device: torch.device) -> None:
    torch.set_float32_matmul_precision("medium")
    try:
        with compute_on(device):
            NeighbourIndex.of(draw_normal(50, 3)).search(draw_normal(2, 3), 2)
        assert torch.get_float32_matmul_precision() == "medium"
    finally:
        torch.set_float32_matmul_precision("highest")


@pytest.mark.parametrize("device", DEVICES)
def test_aucs_are_those_of_numpy(device: torch.device) -> None:
    random = np.random.default_rng(0)
    labels = (random.random((200, 3)) < 0.4).astype(np.float64)
    labels[random.random(labels.shape) < 0.2] = np.nan
    labels[:, 2] = 1  # no wrong answer, so no AUC
    scores = np.round(random.random((200, 3)), 1)  # with ties
    weight = random.random(200)
    rankings = [
        *(Ranking.of(scores[:, i], labels[:, i]) for i in range(3)),
        Ranking.of(scores[:, 0], np.nan_to_num(labels[:, 0]), weight),
    ]
    weights = random.integers(0, 3, (7, 200)).astype(np.float64)
    expected = compute_aucs(rankings, weights)
    with compute_on(device):
        np.testing.assert_allclose(compute_aucs(rankings, weights), expected, rtol=1e-12)
    assert np.isnan(expected[:, 2]).all()


@pytest.mark.slow
@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("kind", NETWORKS)
def test_without_dropout_networks_are_those_of_numpy(kind: str, device: torch.device) -> None:
    examples, config = hide_labels(draw_examples()[0]), NETWORKS[kind]
    expected = config.fit(examples, seed=1)
    with compute_on(device):
        on_device = config.fit(examples, seed=1)
    assert (
        on_device.training["seeds"][0]["best_epoch"] == expected.training["seeds"][0]["best_epoch"]
    )
    np.testing.assert_allclose(
        on_device.predictor.correctness(examples.features),
        expected.predictor.correctness(examples.features),
        atol=2e-4,
    )


@pytest.mark.parametrize("device", DEVICES)
def test_without_dropout_a_trunk_is_that_of_numpy(device: torch.device) -> None:
    examples = hide_labels(draw_examples()[0])
    config = TrunkConfig(
        hidden=(16, 8), dropout=(0.0, 0.0), seeds=3, keep=2, max_epochs=12, batch_size=64
    )
    expected = config.fit(examples)
    with compute_on(device):
        on_device = config.fit(examples)
    for ours, theirs in zip(on_device.training["seeds"], expected.training["seeds"], strict=True):
        assert (ours["best_epoch"], ours["kept"]) == (theirs["best_epoch"], theirs["kept"])
        np.testing.assert_allclose(ours["train_loss"], theirs["train_loss"], atol=1e-5)
        np.testing.assert_allclose(ours["validation_loss"], theirs["validation_loss"], atol=1e-5)


def train_unevenly(device: torch.device | str) -> list[NetworkRun]:
    """Two seeds with other numbers of rows; the first target has no label that is held out."""
    random = np.random.default_rng(0)
    labels, weights = random.random((2, 2, 120, 1))
    weights[0, :40] = 0
    rows = NetworkRows(
        random.normal(size=(120, 6)), NetworkLabels(labels, weights, *random.random((2, 120)))
    )
    heads = {CORRECTNESS: 1, DIFFICULTY: 1}
    architecture = Heads(Network((6, 5), heads, side_by_side=2), np.full((2, 1), 0.4), 0.3)
    schedule = Schedule(
        batch_size=32,
        patience=3,
        dropout=(0.0, 0.0),
        learning_rate=0.02,
        weight_decay=0.05,
        decoupled=True,
    )
    draws = [Draws(0, seed) for seed in range(2)]
    initial = [architecture.initial(each) for each in draws]
    with compute_on(device):
        return train_seeds(
            rows,
            [Holdout(np.arange(count, 120), np.arange(count)) for count in (40, 30)],
            architecture,
            schedule,
            [{name: value.astype(np.float64) for name, value in each.items()} for each in initial],
            draws,
            max_epochs=15,
            seed=0,
            progress=SilentProgress(),
        )


@pytest.mark.parametrize("device", DEVICES)
def test_seeds_that_hold_out_other_rows_are_those_of_numpy(device: torch.device) -> None:
    for ours, theirs in zip(train_unevenly(device), train_unevenly("cpu"), strict=True):
        for mine, expected in zip(ours.networks, theirs.networks, strict=True):
            np.testing.assert_allclose(mine.train, expected.train, rtol=1e-9)
            np.testing.assert_allclose(mine.validation, expected.validation, rtol=1e-9)
        assert ours.parameters.keys() == theirs.parameters.keys()
        for name, values in theirs.parameters.items():
            np.testing.assert_allclose(ours.parameters[name], values, rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("device", DEVICES)
def test_dropout_leaves_so_many_and_repeats(device: torch.device) -> None:
    examples = draw_examples()[0]
    config = TrunkConfig(hidden=(64, 32), seeds=2, keep=2, max_epochs=12, batch_size=64)
    with compute_on(device):
        first, again = (config.fit(examples).predictor for _ in range(2))
    in_numpy = config.fit(examples).predictor
    features = examples.features
    assert np.array_equal(first.correctness(features), again.correctness(features))
    apart = first.correctness(features) - in_numpy.correctness(features)
    assert 0 < np.abs(apart).mean() < 0.05  # other units are dropped, as many


@pytest.mark.parametrize("device", ["mps", "meta", "cpu:0"])
def test_other_kinds_of_devices_are_refused(device: str) -> None:
    with pytest.raises(ConfigError, match=f"'{device}'; use cpu, cuda"), compute_on(device):
        pass


def test_a_processor_is_numpy_unless_a_gpu_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    with compute_on("cpu"):
        assert accelerator(1e30) is None
        assert torch_device(None) == CPU
    monkeypatch.setattr(module, "_DRIVERS", (__file__,))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert accelerator(1e30) == torch.device("cuda")
    assert accelerator(1e3) is None  # small work isn't worth the start
    with compute_on("cuda:1"):
        assert accelerator(1e3) == torch_device(None) == torch.device("cuda:1")
        with compute_on("auto"):
            assert accelerator(1e3) is None
    with pytest.raises(ConfigError, match="last is cuda:1"), compute_on("cuda:2"):
        pass
    monkeypatch.setattr(module, "_DRIVERS", ())
    assert accelerator(1e30) is None


def test_a_gpu_that_is_too_small_is_an_error_that_names_the_processor(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def run_out(*_: object, **__: object) -> None:
        raise torch.OutOfMemoryError

    monkeypatch.setattr(torch, "as_tensor", run_out)
    index, examples = NeighbourIndex.of(draw_normal(50, 3)), draw_examples()[0]
    ranking = Ranking.of(np.arange(4.0), np.array([0.0, 1.0, 0.0, 1.0]))
    for work in (
        lambda: index.search(draw_normal(2, 3), 2),
        lambda: compute_aucs([ranking], np.ones((1, 4))),
        lambda: TrunkConfig(max_epochs=1).fit(examples),
    ):
        with compute_on(CPU), pytest.raises(ConfigError, match=r"too little free memory.*cpu"):
            work()
