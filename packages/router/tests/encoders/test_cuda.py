"""On a GPU: packed prompts, compiled blocks and recorded passes against passes one by one.

Their errors in bfloat16 are compared with those of the same arithmetic on one prompt at a time.
"""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoModel

from packages.router.tests.encoders.families import FAMILIES, read_plainly, save
from prefill_router.activations import POOLINGS, ActivationStore, Site
from prefill_router.data import Query
from prefill_router.encoders import (
    HubEncoder,
    TokenizedPrompt,
    encode_dataset,
    load_encoder,
    packing,
)
from prefill_router.encoders.compiling import BlockCompiler
from prefill_router.encoders.pretrained import find_blocks

pytestmark = [
    pytest.mark.slow,
    pytest.mark.cuda,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU with CUDA"),
]

TEXTS = [Query(str(n), "abc"[n % 3] * n) for n in (1, 9, 30, 4, 17, 40)]
ROUNDING = 3  # prompts that see each other are off by far more
Rows = dict[Site, np.ndarray]


def load(folder: Path, dtype: str, *, compile_blocks: bool = False) -> HubEncoder:
    encoder = load_encoder(folder, dtype=dtype, device="cuda", compile_blocks=compile_blocks)
    assert isinstance(encoder, HubEncoder)
    return encoder


def every_site(encoder: HubEncoder) -> list[Site]:
    return [Site(layer, pooling) for layer in encoder.layers for pooling in POOLINGS]


def worst_error(encoder: HubEncoder, prompts: Sequence[TokenizedPrompt], folder: Path) -> float:
    """The largest error of all states, against the whole network in float32 on the processor."""
    network = AutoModel.from_pretrained(folder, dtype=torch.float32).eval()
    blocks = find_blocks(network, encoder.provenance.num_layers)
    states = encoder.states(prompts, every_site(encoder))
    expected = [read_plainly(network, prompt.ids, blocks) for prompt in prompts]
    return max(
        float(np.abs(rows[i] - truth[site]).max() / np.abs(truth[site]).max())
        for site, rows in states.items()
        for i, truth in enumerate(expected)
    )


@pytest.mark.parametrize("family", FAMILIES)
def test_padded_prompts_are_exact_in_float32(family: str, tmp_path: Path) -> None:
    encoder = load(save(family, tmp_path / family), "float32")
    assert encoder.packing is None
    assert worst_error(encoder, encoder.tokenize(TEXTS), tmp_path / family) < 2e-5


@pytest.mark.parametrize("family", FAMILIES)
def test_packed_prompts_have_the_rounding_of_single_ones(family: str, tmp_path: Path) -> None:
    encoder = load(save(family, tmp_path / family), "bfloat16")
    is_packed = FAMILIES[family]().model_type in packing.PACKED_FAMILIES
    assert (encoder.packing is not None) == is_packed
    prompts = encoder.tokenize(TEXTS)
    one_by_one = worst_error(replace(encoder, batch_tokens=1), prompts, tmp_path / family)
    assert worst_error(encoder, prompts, tmp_path / family) < ROUNDING * one_by_one


@pytest.mark.parametrize("family", ["qwen3", "gemma3", "gpt_oss", "qwen3_moe", "bert"])
def test_compiled_blocks_and_recorded_passes_have_no_larger_error(
    family: str, tmp_path: Path
) -> None:
    encoder = load(save(family, tmp_path / family), "bfloat16", compile_blocks=True)
    assert encoder.passes is not None
    prompts = encoder.tokenize(TEXTS)
    plain = worst_error(replace(encoder, passes=None), prompts, tmp_path / family)
    assert worst_error(encoder, prompts[:1], tmp_path / family) < ROUNDING * plain
    assert worst_error(encoder, prompts, tmp_path / family) < ROUNDING * plain
    assert encoder.passes.is_possible
    compiler = BlockCompiler(encoder.blocks, least_tokens=1)
    fused = replace(encoder, compiler=compiler, passes=None)
    assert worst_error(fused, prompts, tmp_path / family) < ROUNDING * plain
    assert "forward" in vars(encoder.blocks[0])  # there was a compiler


def test_a_store_of_two_processes_is_that_of_one(tmp_path: Path) -> None:
    encoder = load(save("qwen3", tmp_path / "qwen3"), "bfloat16")
    sites = [Site(5, "last"), Site(5, "mean")]
    options = {"sites": sites, "chunk_tokens": 64}
    store = encode_dataset(TEXTS, encoder, tmp_path / "whole", **options)  # type: ignore[arg-type]
    for part in (0, 1):
        encode_dataset(TEXTS, encoder, tmp_path / "parts", shard=(part, 2), **options)  # type: ignore[arg-type]
    parts = ActivationStore.open(tmp_path / "parts")
    for site in sites:
        assert np.array_equal(store.read(site, store.keys), parts.read(site, store.keys))
