"""Packed prompts: kernels, batches, and where they are refused. The GPU's kernel is a plain one."""

import sys
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch

from packages.router.tests.encoders.plain_attention import hidden, plain_kernel, varlen_attn
from packages.router.tests.fakes.tiny_encoder import save_tiny_encoder
from prefill_router.activations import POOLINGS, Site
from prefill_router.data import Query
from prefill_router.encoders import HubEncoder, load_encoder, packing
from prefill_router.encoders.batching import batches, packed_batches
from prefill_router.encoders.hub import DeviceBatches
from prefill_router.encoders.packing import flash_kernel, pack, torch_kernel
from prefill_router.encoders.prefix_encoder import PrefixCachingEncoder
from prefill_router.errors import ConfigError

CPU, CUDA = torch.device("cpu"), torch.device("cuda")
COUNTS = (5, 1, 70, 64, 3)
STARTS = torch.tensor([0, 5, 6, 76, 140, 143], dtype=torch.int32)


def without_groups(*rows: Any, return_aux: Any = None, **options: Any) -> Any:
    """The kernel of torch 2.10, which needs as many key heads as query heads."""
    return varlen_attn(*rows, return_aux=return_aux, **options)


def flash_attn_varlen_func(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    *places: Any,
    softmax_scale: float | None,
    causal: bool,
    window_size: tuple[int, int],
    return_attn_probs: bool,
) -> Any:
    """The function of flash-attn."""
    assert causal == (window_size[1] == 0)
    options: Any = {"scale": softmax_scale, "window_size": window_size, "enable_gqa": True}
    if return_attn_probs:
        output, sums = varlen_attn(query, key, value, *places, return_aux=True, **options)
        return output, sums, None
    return varlen_attn(query, key, value, *places, **options)


@pytest.fixture(params=["torch", "torch 2.10", "flash-attn"])
def kernel(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> packing.Kernel:
    if request.param == "flash-attn":
        package = ModuleType("flash_attn")
        package.flash_attn_varlen_func = flash_attn_varlen_func  # type: ignore[attr-defined]
        monkeypatch.setitem(sys.modules, "flash_attn", package)
        kernel = flash_kernel()
    else:
        way = varlen_attn if request.param == "torch" else without_groups
        monkeypatch.setattr("torch.nn.attention.varlen.varlen_attn", way)
        kernel = torch_kernel()
    assert kernel is not None
    return kernel


@pytest.mark.parametrize("window", [(-1, 0), (-1, -1), (3, 0), (2, 2)])
@pytest.mark.parametrize("with_sinks", [False, True])
def test_a_kernel_is_attention_within_each_prompt(
    kernel: packing.Kernel, window: tuple[int, int], *, with_sinks: bool
) -> None:
    torch.manual_seed(0)
    query = torch.randn(143, 4, 8)
    key, value = torch.randn(2, 143, 2, 8)
    sinks = torch.randn(4) if with_sinks else None
    outputs = kernel(query, key, value, STARTS, 70, scale=0.3, window=window, sinks=sinks)
    keys, values = (rows.repeat_interleave(2, 1) for rows in (key, value))
    for first, end in zip(STARTS[:-1].tolist(), STARTS[1:].tolist(), strict=True):
        scores = torch.einsum("qhw,khw->hqk", query[first:end], keys[first:end]) * 0.3
        scores = scores.masked_fill(hidden(end - first, window), -torch.inf)
        if sinks is not None:
            row = sinks[:, None, None].expand(-1, end - first, 1)
            scores = torch.cat([scores, row], -1)
        shares = scores.softmax(-1)[..., : end - first]
        expected = torch.einsum("hqk,khw->qhw", shares, values[first:end])
        torch.testing.assert_close(outputs[first:end], expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_states_are_pooled_by_prompt(dtype: torch.dtype) -> None:
    random = np.random.default_rng(0)
    states = torch.from_numpy(random.normal(size=(1, sum(COUNTS), 7))).to(dtype)
    states[0, STARTS[:-1].long(), 3] = 30_000
    batch = pack([np.arange(n, dtype=np.int32) for n in COUNTS], CPU, None)
    own = [rows.double() for rows in states[0].split(COUNTS)]
    last, mean, rest_states = (batch.pool(states, pooling) for pooling in POOLINGS)
    assert {rows.dtype for rows in (last, mean, rest_states)} == {torch.float32}
    assert torch.equal(last, torch.stack([rows[-1] for rows in own]).float())
    means = torch.stack([rows.mean(0) for rows in own])
    rests = torch.stack([(rows[1:] if len(rows) > 1 else rows).mean(0) for rows in own])
    torch.testing.assert_close(mean.double(), means, rtol=1e-6, atol=1e-3)
    torch.testing.assert_close(rest_states.double(), rests, rtol=1e-6, atol=1e-6)  # nothing lost


def test_states_of_another_shape_are_refused() -> None:
    batch = pack([np.arange(n, dtype=np.int32) for n in COUNTS], CPU, None)
    with pytest.raises(ConfigError, match=r"\(5, 70, 7\) instead of \[1, token, hidden\]"):
        batch.pool(torch.zeros(5, 70, 7), "last")


def draw_lengths(count: int) -> list[int]:
    return np.random.default_rng(1).lognormal(5, 0.9, count).astype(int).clip(1, 2048).tolist()


@pytest.mark.parametrize("budget", [1, 1024, 40_000])
def test_at_most_a_tenth_of_a_padded_batch_is_padding(budget: int) -> None:
    lengths = draw_lengths(500)
    groups = list(batches(lengths, budget))
    assert sorted(i for numbers in groups for i in numbers) == list(range(500))
    for numbers in groups:
        own = [lengths[i] for i in numbers]
        assert len(own) * max(own) <= max(budget, max(own))
        size = len(own) * max(own)
        assert size <= 128 or size - sum(own) <= 0.1 * size
    lengths = [40, 30, 20, 10]
    assert [len(part) for part in batches(lengths, 1000, small=160)] == [4]
    assert [len(part) for part in batches(lengths, 1000, small=100)] == [2, 2]
    assert [len(part) for part in batches(lengths, 1000, small=0)] == [1, 1, 1, 1]


def test_packed_batches_are_full() -> None:
    lengths = draw_lengths(500)
    groups = [[lengths[i] for i in numbers] for numbers in packed_batches(lengths, 4096)]
    assert sorted(n for own in groups for n in own) == sorted(lengths)
    for own, after in pairwise(groups):
        assert 4096 - after[0] < sum(own) <= 4096


def test_memory_that_runs_out_halves_a_packed_batch() -> None:
    sizes: list[int] = []
    lengths = [90, *[3] * 20]

    def launch(numbers: Sequence[int]) -> torch.Tensor:
        sizes.append(sum(lengths[i] for i in numbers))
        if sizes[-1] > 100:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return torch.tensor(numbers, dtype=torch.float32)[None, :, None]

    results = list(DeviceBatches(CPU, 400, is_packed=True).read(lengths, launch))
    assert sorted(i for numbers, _ in results for i in numbers) == list(range(21))
    assert sizes == [150, 90, 60]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny_encoder(tmp_path_factory.mktemp("tiny"))


def load(folder: Path, **options: Any) -> HubEncoder:
    encoder = load_encoder(folder, dtype="float32", device="cpu", **options)
    assert isinstance(encoder, HubEncoder)
    return encoder


def test_a_network_is_packed_unless_it_is_needed_itself(folder: Path) -> None:
    with plain_kernel():
        packed, plain = load(folder), load(folder, as_network=True)
    assert packed.packing == packing.Packing("plain", None)
    assert packed.made_by.packed_by == "plain"
    assert plain.packing is None
    assert plain.network.config._attn_implementation == "sdpa"
    prompts = packed.tokenize([Query(str(n), "x" * n) for n in (1, 9, 30, 4)])
    sites = [Site(2, pooling) for pooling in POOLINGS]
    states, expected = packed.states(prompts, sites), plain.states(prompts, sites)
    for site in sites:
        np.testing.assert_allclose(states[site], expected[site], rtol=1e-4, atol=1e-6)
    with pytest.raises(ConfigError, match="is run packed, without a cache"):
        PrefixCachingEncoder(packed)


def test_nothing_is_packed_where_there_is_no_kernel(folder: Path) -> None:
    assert load(folder).packing is None
    assert packing.find_kernel(CUDA, torch.float32) is None
    assert packing.find_kernel(CPU, torch.bfloat16) is None
    assert packing.find_kernel(CUDA, torch.bfloat16) is not None  # torch brings one


def test_a_kernel_that_fails_leaves_the_network_padded(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any, **__: Any) -> Any:
        raise RuntimeError("FlashAttention only supports Ampere GPUs or newer.")

    monkeypatch.setattr(packing, "find_kernel", lambda _device, _dtype: ("plain", fail))
    encoder = load(folder)
    assert encoder.packing is None
    assert encoder.network.config._attn_implementation == "sdpa"
    assert encoder.made_by.packed_by is None


@pytest.mark.parametrize(
    "change",
    [
        {"model_type": "qwen3_5_text"},
        {"rope_parameters": {"rope_type": "dynamic", "factor": 2.0}},
        {"attn_logit_softcapping": 50.0},
        {"head_dim": 320},
        {"head_dim": 20},
    ],
)
def test_what_may_mix_prompts_or_has_no_kernel_is_not_packed(
    folder: Path, change: dict[str, Any]
) -> None:
    network = load(folder).network
    assert packing.is_packable(network)
    config: Any = network.config
    for name, value in change.items():
        setattr(config, name, value)
    assert not packing.is_packable(network)


def test_code_from_elsewhere_is_not_packed(folder: Path) -> None:
    network: Any = load(folder).network
    other = type("Other", (type(network),), {"__module__": "custom"})
    assert not packing.is_packable(other(network.config))
