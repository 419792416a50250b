"""Real training of tiny networks: DeBERTa-v2's architecture, and others."""

import json
import shutil
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from packages.lab.tests.features.text_networks import (
    deberta_v2,
    equal,
    fit,
    none_of,
    quick,
    read,
    relabel,
    save_tiny,
    texts,
)
from packages.router.tests.features.family_contract import check_family
from packages.router.tests.part_cases import check_cases
from prefill_router.data import Message, Query, RoutingDataset
from prefill_router.encoders import load_encoder
from prefill_router.encoders.hub import HubEncoder
from prefill_router.encoders.provenance import folder_revision
from prefill_router.errors import (
    ConfigError,
    CorruptError,
    FitError,
    MissingExtraError,
    PromptError,
    ProvenanceError,
)
from prefill_router.features import PromptStates
from prefill_router.features.base import load_family
from prefill_router.plugins import names_of
from prefill_router.statistics import auc_by_target
from prefill_router_lab.features.text_network import TextNetwork, TextNetworkConfig
from prefill_router_lab.features.text_network_training import AdaptedNetwork, find_modules

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def deberta(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny(tmp_path_factory.mktemp("deberta"), deberta_v2())


@pytest.fixture(scope="module")
def train() -> RoutingDataset:
    return texts(200, seed=0)


@pytest.fixture(scope="module")
def unseen() -> RoutingDataset:
    return texts(120, seed=1)


@pytest.fixture(scope="module")
def shared(deberta: Path, train: RoutingDataset) -> TextNetwork:
    return fit(quick(deberta), train)


def test_learns_what_is_planted_in_the_words(
    shared: TextNetwork, unseen: RoutingDataset, train: RoutingDataset, deberta: Path
) -> None:
    assert shared.width == 3
    assert shared.sources == ()
    assert auc_by_target(read(shared, unseen).astype(np.float64), unseen.correct).min() > 0.85
    losses = shared.report["networks"][0]
    assert losses["best_epoch"] == int(np.argmin(losses["validation_loss"]))
    order = np.random.default_rng(2).permutation(len(train))
    control = fit(quick(deberta, epochs=3), relabel(train, train.correct[order]))
    auc = auc_by_target(read(control, unseen).astype(np.float64), unseen.correct)
    assert 0.3 < auc.mean() < 0.7


def test_one_network_for_each_target(
    deberta: Path, train: RoutingDataset, unseen: RoutingDataset
) -> None:
    config = quick(deberta, mode="per_target", epochs=4)
    examples = relabel(train, np.where([True, True, False], train.correct, 1.0))
    family = fit(config, examples)
    scores = read(family, unseen).astype(np.float64)
    assert auc_by_target(scores, unseen.correct)[:2].min() > 0.8
    # What one network learns doesn't depend on the others' labels.
    correct = examples.correct.copy()
    correct[:, 1] = correct[::-1, 1]
    short = replace(config, epochs=1)
    one, other = (read(fit(short, rows), unseen) for rows in (examples, relabel(train, correct)))
    assert np.array_equal(other[:, 0], one[:, 0])
    assert not np.array_equal(other[:, 1], one[:, 1])
    rate = (len(train) + 1) / (len(train) + 2)
    np.testing.assert_allclose(1 / (1 + np.exp(-scores[:, 2])), rate, rtol=1e-5)
    assert "c can't be learned" in family.report["notes"][0]


def test_keeps_the_contract_of_families(
    shared: TextNetwork, unseen: RoutingDataset, deberta: Path, train: RoutingDataset
) -> None:
    def load(config: Any, tensors: Any) -> TextNetwork:
        family = load_family(config, tensors)
        assert isinstance(family, TextNetwork)
        return family.at(deberta)

    reading = PromptStates.of_dataset(unseen.select(unseen.query_ids[:7]), ())
    check_family(shared, reading, load=load)
    pair = fit(quick(deberta, mode="per_target", epochs=1), train)
    check_family(pair, reading, load=load)


def test_the_lab_has_no_other_family() -> None:
    kinds = names_of("prefill-router-lab", "prefill_router.features")
    add, to = "a test of check_family", "packages/lab/tests/features"
    check_cases(kinds, {"text_network"}, add=add, to=to, guide="features.md")


def test_the_base_stays_as_it_is(deberta: Path, train: RoutingDataset) -> None:
    before = folder_revision(deberta)
    encoder = load_encoder(deberta, dtype="float32")
    assert isinstance(encoder, HubEncoder)
    weights = {name: w.clone() for name, w in encoder.network.named_parameters()}
    network = AdaptedNetwork(
        encoder, outputs=3, pool="mean", modules=None, rank=2, alpha=4, dropout=0.0
    )
    prompts = encoder.tokenize(train.queries[:4])
    network.begin(np.zeros(3, np.float32), 0)
    arrays = network.arrays()
    assert not network.read(prompts, [arrays]).any()  # nothing is added yet
    family = fit(quick(deberta, epochs=1), train)
    read(family, train)
    assert folder_revision(deberta) == before
    assert not set(family.arrays) & set(weights)
    for name, weight in network.encoder.network.named_parameters():
        if "lora_" not in name:
            assert torch.equal(weight, weights[name.replace(".base_layer.", ".")])
            assert not weight.requires_grad


def test_adaptions_are_what_peft_computes(deberta: Path, train: RoutingDataset) -> None:
    """Adding alpha / rank times B A to the base's own weights gives the same logits."""
    encoders = [load_encoder(deberta, dtype="float32") for _ in range(2)]
    assert isinstance(encoders[0], HubEncoder)
    assert isinstance(encoders[1], HubEncoder)
    options: dict[str, Any] = {"outputs": 2, "pool": "mean", "rank": 2, "alpha": 6, "dropout": 0.0}
    network = AdaptedNetwork(encoders[0], modules=None, **options)
    random = np.random.default_rng(0)
    arrays = {
        name: random.normal(size=array.shape, scale=0.3).astype(np.float32)
        for name, array in network.arrays().items()
    }
    plain = dict(encoders[1].network.named_modules())
    names = find_modules(encoders[1].network, None)
    assert len(names) == 4
    assert {name.rpartition(".")[2] for name in names} == {"query_proj", "value_proj"}
    with torch.no_grad():
        for i, name in enumerate(names):
            change = arrays[f"lora_b.{i}"] @ arrays[f"lora_a.{i}"] * 6 / 2
            weight: Any = plain[name].weight
            weight.add_(torch.from_numpy(change))
    merged = AdaptedNetwork(encoders[1], modules=["key_proj"], **options)
    none = {k: np.zeros_like(v) for k, v in merged.arrays().items()}
    none |= {name: arrays[name] for name in ("head.weight", "head.bias")}
    prompts = encoders[0].tokenize(train.queries[:9])
    one, two = network.read(prompts, [arrays]), merged.read(prompts, [none])
    np.testing.assert_allclose(one, two, atol=1e-4)
    assert np.abs(one - network.read(prompts, [none_of(arrays)])).max() > 1e-2  # control


def test_same_seed_same_bits_whatever_the_order(deberta: Path, train: RoutingDataset) -> None:
    config = quick(deberta, epochs=1, dropout=0.2)
    state = torch.random.get_rng_state()
    family = fit(config, train, seed=3)
    assert torch.equal(torch.random.get_rng_state(), state)
    order = np.random.default_rng(0).permutation(len(train))
    permuted = train.select([train.query_ids[i] for i in order])
    assert equal(family, fit(config, train, seed=3))
    assert equal(family, fit(config, permuted, seed=3))
    assert not equal(family, fit(config, train, seed=4))
    assert not equal(family, fit(replace(config, dropout=0.0), train, seed=3))


def test_missing_labels_are_masked(
    deberta: Path, train: RoutingDataset, unseen: RoutingDataset
) -> None:
    correct = train.correct.copy()
    correct[(correct[:, 0] == 1) & (np.arange(len(train)) % 3 > 0), 0] = np.nan
    correct[:, 1] = np.nan
    part = relabel(train, correct)
    family = fit(quick(deberta, epochs=4), part)
    scores = read(family, unseen).astype(np.float64)
    assert auc_by_target(scores[:, :1], unseen.correct[:, :1])[0] > 0.8
    counts, total = (~np.isnan(correct)).sum(), np.nansum(correct)
    rate = (total + 1) / (counts + 2)
    np.testing.assert_allclose(1 / (1 + np.exp(-scores[:, 1])), rate, rtol=1e-5)
    # A row without any label might as well not be there.
    correct[:5] = np.nan
    short = part.select(part.query_ids[5:])
    config = quick(deberta, epochs=1)
    assert equal(fit(config, relabel(train, correct)), fit(config, short))


def test_soft_labels_train_as_they_are(deberta: Path, train: RoutingDataset) -> None:
    soft = np.where(train.correct == 1, 0.7, 0.3)
    family = fit(quick(deberta, epochs=6), relabel(train, soft))
    probability = 1 / (1 + np.exp(-read(family, train)))
    assert 0.55 < probability[train.correct == 1].mean() < 0.75


def test_nothing_to_learn_is_refused(deberta: Path, train: RoutingDataset) -> None:
    for value in (np.nan, 1.0):
        with pytest.raises(FitError, match="nothing to learn"):
            fit(quick(deberta), relabel(train, np.full_like(train.correct, value)))


def test_two_equal_prompts_are_enough(deberta: Path) -> None:
    pool = texts(1, seed=0, targets=1).pool
    rows = [Query("a", "sum w1"), Query("b", "sum w1")]
    for mode in ("shared", "per_target"):
        config = quick(deberta, mode=mode, epochs=1)
        family = fit(config, RoutingDataset.of(rows, pool, np.array([[1.0], [0.0]])))
        assert np.isfinite(family.read(PromptStates.of(["sum", "w2 " * 100], ()))).all()


def test_losses_that_are_not_finite_are_refused(deberta: Path, train: RoutingDataset) -> None:
    with pytest.raises(FitError, match="lower learning_rate"):
        fit(quick(deberta, learning_rate=1e30, epochs=2), train)


def test_another_base_is_refused(
    shared: TextNetwork, deberta: Path, tmp_path: Path, unseen: RoutingDataset
) -> None:
    other = save_tiny(tmp_path / deberta.name, deberta_v2(), seed=1)
    with pytest.raises(ProvenanceError, match="revision"):
        read(shared.at(other), unseen)
    with pytest.raises(ConfigError, match="isn't a folder"):
        read(shared.at(tmp_path / "nothing"), unseen)


def test_a_loaded_one_finds_its_base_in_the_working_folder(
    shared: TextNetwork, deberta: Path, unseen: RoutingDataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = json.loads(json.dumps(shared.to_dict()))
    assert str(deberta.parent) not in json.dumps(config)  # no path of this machine is kept
    loaded = TextNetwork.from_dict(config, shared.tensors())
    with pytest.raises(ConfigError, match="give its path"):
        read(loaded, unseen)
    monkeypatch.chdir(deberta.parent)
    assert np.array_equal(read(loaded, unseen), read(shared, unseen))


def test_a_base_of_the_hub_is_found_by_its_commit(
    deberta: Path, tmp_path: Path, unseen: RoutingDataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of what the hub's client keeps on the disk, which is all that it asks while offline."""
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    place = tmp_path / "models--somebody--tiny-deberta"
    commits = ["a" * 40, "b" * 40]
    shutil.copytree(deberta, place / "snapshots" / commits[0])
    save_tiny(place / "snapshots" / commits[1], deberta_v2(), seed=1)
    (place / "refs").mkdir()
    (place / "refs" / "main").write_text(commits[0])
    family = fit(quick("somebody/tiny-deberta", epochs=1), texts(12, seed=4))
    assert (family.made_by.encoder, family.made_by.revision) == (
        "somebody/tiny-deberta",
        commits[0],
    )
    before = read(family, unseen)
    (place / "refs" / "main").write_text(commits[1])
    again = load_family(family.to_dict(), family.tensors())
    assert np.array_equal(again.read(PromptStates.of_dataset(unseen, ())), before)


@pytest.mark.parametrize("pool", ["first", "mean", "last"])
def test_pools_read_other_states(deberta: Path, pool: Any) -> None:
    train = texts(12, seed=4)
    found = read(fit(quick(deberta, pool=pool, epochs=1), train), train)
    assert np.isfinite(found).all()
    encoder = load_encoder(deberta, dtype="float32")
    assert isinstance(encoder, HubEncoder)
    network = AdaptedNetwork(
        encoder, outputs=32, pool=pool, modules=None, rank=1, alpha=1, dropout=0.0
    )
    arrays = none_of(network.arrays())
    arrays |= {"head.weight": np.eye(32, dtype=np.float32), "head.bias": np.zeros(32, np.float32)}
    prompt = encoder.tokenize(train.queries[:1])[0]
    with torch.no_grad():
        row = torch.from_numpy(prompt.ids).long()[None]
        states = encoder.network(input_ids=row).last_hidden_state[0].numpy()
    expected = {"first": states[0], "mean": states.mean(axis=0), "last": states[-1]}[pool]
    padded = encoder.tokenize([train.queries[0], Query("long", "w1 " * 30)])
    np.testing.assert_allclose(network.read(padded, [arrays])[0, 0], expected, atol=1e-4)


def test_chats_are_read_and_bad_prompts_named_by_their_key(shared: TextNetwork) -> None:
    chat = (Message("user", "sum w1"), Message("assistant", "w2"))
    reading = PromptStates.of([chat, "sum w1"], ())
    assert shared.read(reading).shape == (2, 3)
    broken = PromptStates.of(["sum \ud800"], ())
    with pytest.raises(PromptError, match=broken.keys[0]):
        shared.read(broken)


def test_modules_may_be_named(deberta: Path, train: RoutingDataset) -> None:
    tuned = fit(quick(deberta, modules=("key_proj",), epochs=1), train)
    assert {name.rpartition(".")[2] for name, _, _ in tuned.adaption.layers} == {"key_proj"}
    with pytest.raises(ConfigError, match=r"no linear layer called \['q_proj'\].*query_proj"):
        fit(quick(deberta, modules=("q_proj",)), train)
    with pytest.raises(ConfigError, match="no known names; name the layers"):
        find_modules(torch.nn.Sequential(torch.nn.Linear(2, 2)), None)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"rank": 0}, "rank is 0; it must be at least 1"),
        ({"alpha": 0}, "alpha is 0"),
        ({"epochs": 0}, "epochs is 0"),
        ({"learning_rate": 0.0}, "learning_rate is 0.0; it must be positive"),
        ({"dropout": 1.0}, r"dropout is 1.0; it must be in \[0, 1\)"),
        ({"warmup": 1.0}, "warmup is 1.0"),
        ({"weight_decay": -1.0}, "weight_decay is -1.0"),
        ({"validation": 0.0}, "validation is 0.0"),
        ({"modules": ()}, "modules is empty"),
        ({"layer": 0}, "layer is 0; it must be at least 1"),
    ],
)
def test_options_are_checked(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        TextNetworkConfig(**options)


def test_a_network_that_reads_fewer_tokens(deberta: Path, train: RoutingDataset) -> None:
    with pytest.raises(ConfigError, match="supports 1 to 64 tokens"):
        fit(quick(deberta, max_tokens=65), train)


def test_without_the_package_the_extra_is_named(
    shared: TextNetwork, deberta: Path, train: RoutingDataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "peft", None)
    with pytest.raises(MissingExtraError, match=r"prefill-router-lab\[lora\]"):
        fit(quick(deberta), train)
    with pytest.raises(MissingExtraError, match=r"prefill-router-lab\[lora\]"):
        read(shared.at(deberta), train)


def test_what_was_changed_on_disk_is_refused(shared: TextNetwork) -> None:
    config, tensors = shared.to_dict(), shared.tensors()
    for wrong in (
        {"targets": ["a", "a", "b"]},
        {"targets": ["a"]},
        {"mode": "per_target"},
        {"rank": 5},
        {"layers": config["layers"][1:]},
        {"base": config["base"] | {"dtype": "bfloat16"}},
    ):
        with pytest.raises(CorruptError):
            load_family(config | wrong, tensors)
