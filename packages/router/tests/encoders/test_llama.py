"""Blocks in fewer operations: states as exact as those of `transformers`; other blocks stay."""

import weakref
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers as tf
from torch import nn

from packages.router.tests.encoders.families import (
    COMMON,
    FAMILIES,
    GROUPED,
    build,
    read_plainly,
    save_tokenizer,
)
from prefill_router.activations import POOLINGS, Site
from prefill_router.data import Query
from prefill_router.encoders import load_encoder
from prefill_router.encoders.hub import HubEncoder, is_causal
from prefill_router.encoders.llama import FusedBlock, fuse_blocks
from prefill_router.encoders.load import Dtype
from prefill_router.encoders.prefix_encoder import BLOCK, PrefixCachingEncoder

pytestmark = pytest.mark.slow

SUPPORTED = bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())
"""Elsewhere every block stays as it is, which the same tests then show."""
TEXTS = ["a", "Why is the sky blue?", "x" * 40, "Ünïcödé 世界 🙂", "one two three " * 6, "b" * 19]
QUERIES = [Query(f"q{i}", text) for i, text in enumerate(TEXTS)]
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 1000.0,
    "factor": 4.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
CONFIGS: dict[str, Callable[[], Any]] = {
    "llama": FAMILIES["llama"],
    "grouped": lambda: tf.LlamaConfig(**COMMON, num_key_value_heads=1, num_hidden_layers=3),
    "biased": lambda: tf.LlamaConfig(
        **COMMON, attention_bias=True, mlp_bias=True, num_hidden_layers=3
    ),
    "scaled": lambda: tf.LlamaConfig(**COMMON, rope_parameters=LLAMA3, num_hidden_layers=3),
    "qwen2": FAMILIES["qwen2"],
    "qwen3": FAMILIES["qwen3"],
}
FolderOf = Callable[[str], Path]


@pytest.fixture(scope="module")
def folder_of(tmp_path_factory: pytest.TempPathFactory) -> FolderOf:
    """Networks whose weights are exact in bfloat16, so that only the arithmetic differs."""

    @cache
    def folder(name: str) -> Path:
        place = tmp_path_factory.mktemp(name)
        network: Any = build(name, CONFIGS[name]())
        if name == "biased":
            with torch.no_grad():
                for block in network.layers:
                    block.self_attn.k_proj.bias *= 100  # large scores, as in Qwen 2
        network.bfloat16().save_pretrained(place)
        save_tokenizer(place, chat=False)
        return place

    return folder


def load(folder: Path, dtype: Dtype = "bfloat16", batch_tokens: int = 10_000) -> HubEncoder:
    encoder = load_encoder(folder, dtype=dtype, device="cpu", batch_tokens=batch_tokens)
    assert isinstance(encoder, HubEncoder)
    return encoder


def load_plain(folder: Path, monkeypatch: pytest.MonkeyPatch) -> HubEncoder:
    with monkeypatch.context() as patch:
        patch.setattr(torch.backends.mkldnn, "is_available", lambda: False)
        encoder = load(folder)
    assert not list_fused(encoder.blocks)
    return encoder


def list_fused(blocks: nn.ModuleList) -> list[int]:
    return [i for i, block in enumerate(blocks) if isinstance(block, FusedBlock)]


def states(encoder: Any, queries: list[Query] = QUERIES) -> np.ndarray:
    sites = [Site(layer, pooling) for layer in encoder.layers for pooling in POOLINGS]
    by_site = encoder.states(encoder.tokenize(queries), sites)
    return np.stack([by_site[site] for site in sites])


def read_exactly(folder: Path, encoder: HubEncoder) -> np.ndarray:
    network = tf.AutoModel.from_pretrained(folder, dtype=torch.float32).eval()
    rows = [
        read_plainly(network, prompt.ids, network.layers) for prompt in encoder.tokenize(QUERIES)
    ]
    sites = [Site(layer, pooling) for layer in encoder.layers for pooling in POOLINGS]
    return np.stack([[row[site] for row in rows] for site in sites])


def measure_errors(actual: np.ndarray, truth: np.ndarray) -> np.ndarray:
    """The errors relative to the states' norm, per site."""
    return np.linalg.norm(actual - truth, axis=(1, 2)) / np.linalg.norm(truth, axis=(1, 2))


@pytest.mark.parametrize("name", CONFIGS)
def test_states_are_as_exact_as_those_of_transformers(
    name: str, folder_of: FolderOf, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = folder_of(name)
    plain = load_plain(folder, monkeypatch)
    truth = read_exactly(folder, plain)
    allowed = 1.5 * measure_errors(states(plain), truth) + 1e-6
    for budget in (1, 64, 10_000):
        encoder = load(folder, batch_tokens=budget)
        assert list_fused(encoder.blocks) == (list(range(len(encoder.blocks))) if SUPPORTED else [])
        assert is_causal(encoder.network)
        assert (measure_errors(states(encoder), truth) <= allowed).all()


def test_a_network_cut_to_a_layer_has_the_same_states(folder_of: FolderOf) -> None:
    folder = folder_of("llama")
    encoder = load(folder)
    site = Site(2, "mean")
    part = load_encoder(folder, dtype="bfloat16", device="cpu", layers=[2])
    prompts = encoder.tokenize(QUERIES)
    np.testing.assert_array_equal(
        part.states(prompts, [site])[site], encoder.states(prompts, [site])[site]
    )


@pytest.mark.parametrize("name", ["grouped", "qwen3"])
def test_states_continue_from_a_cached_prefix(name: str, folder_of: FolderOf) -> None:
    encoder = load(folder_of(name))
    reusing = PrefixCachingEncoder(encoder)
    prefix = "x" * (2 * BLOCK)
    for end in ("Why?", "And then?"):
        queries = [Query("q", prefix + end)]
        assert (measure_errors(states(reusing, queries), states(encoder, queries)) < 1e-5).all()
    assert reusing.reused_tokens == 2 * BLOCK


def test_replaced_weights_are_released(folder_of: FolderOf) -> None:
    network = tf.AutoModel.from_pretrained(folder_of("llama"), dtype=torch.bfloat16)
    weights = [weakref.ref(block.mlp.up_proj.weight) for block in network.layers]
    fuse_blocks(network, network.layers)
    assert [weight() is None for weight in weights] == [SUPPORTED] * len(weights)


def list_plain(config: Any, *, dtype: torch.dtype = torch.bfloat16, **options: Any) -> list[int]:
    """The blocks of a network that stay as they are."""
    network: Any = build("llama", config).to(dtype)
    for name, value in options.items():
        setattr(network.config, name, value)
    fuse_blocks(network, network.layers)
    return [i for i in range(len(network.layers)) if i not in list_fused(network.layers)]


def test_blocks_of_another_kind_stay() -> None:
    windowed = {"use_sliding_window": True, "sliding_window": 8, "max_window_layers": 2}
    first = [] if SUPPORTED else [0, 1]
    assert list_plain(tf.Qwen3Config(**COMMON, **GROUPED, **windowed, num_hidden_layers=3)) == [
        *first,
        2,
    ]
    options = {**COMMON, "num_hidden_layers": 2}
    assert list_plain(tf.LlamaConfig(**options)) == first
    assert list_plain(tf.LlamaConfig(**options, hidden_act="gelu")) == [0, 1]
    assert list_plain(tf.MistralConfig(**options, sliding_window=None)) == [0, 1]
    assert list_plain(tf.LlamaConfig(**options), dtype=torch.float32) == [0, 1]
    assert list_plain(tf.LlamaConfig(**options), _attn_implementation="eager") == [0, 1]


def test_blocks_with_other_modules_or_other_results_stay() -> None:
    network: Any = build("llama", tf.LlamaConfig(**COMMON, num_hidden_layers=5)).bfloat16()
    network.layers[0].mlp.up_proj = nn.Sequential(network.layers[0].mlp.up_proj)
    network.layers[1].self_attn.scaling = 1.0
    network.layers[2].mlp.act_fn = nn.GELU()
    query = network.layers[4].self_attn.q_proj
    query.bias = nn.Parameter(query.weight[:, 0].clone())  # without one of keys and values
    fuse_blocks(network, network.layers)
    assert list_fused(network.layers) == ([3] if SUPPORTED else [])


def test_blocks_stay_where_the_operators_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(weight: torch.Tensor, tokens: int) -> None:
        del weight, tokens
        raise RuntimeError("not on this processor")

    monkeypatch.setattr(torch.ops.mkldnn, "_reorder_linear_weight", refuse)
    assert list_plain(tf.LlamaConfig(**COMMON, num_hidden_layers=2)) == [0, 1]
