"""States against a one-by-one full forward, for every family."""

import dataclasses
from collections.abc import Callable
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoModel

from packages.router.tests.encoders.families import FAMILIES, read_plainly, save
from packages.router.tests.encoders.plain_attention import plain_kernel
from prefill_router.activations import POOLINGS, Site
from prefill_router.data import Message, Query
from prefill_router.encoders import Encoder, hub, load_encoder, packing
from prefill_router.encoders.hub import HubEncoder, TokenBatch, pad
from prefill_router.encoders.pretrained import CUT_BY_CONFIG, find_blocks

pytestmark = pytest.mark.slow

TEXTS = ["a", "Why is the sky blue?", "x" * 40, "Ünïcödé 世界 🙂", "one two three " * 6, "b" * 19]
QUERIES = [Query(f"q{i}", text) for i, text in enumerate(TEXTS)]
TOLERANCE = 2e-5
FolderOf = Callable[[str], Path]
States = dict[Site, np.ndarray]
Read = Callable[[str], tuple[HubEncoder, list[States]]]


@pytest.fixture(scope="module")
def folder_of(tmp_path_factory: pytest.TempPathFactory) -> FolderOf:
    @cache
    def folder(family: str) -> Path:
        return save(family, tmp_path_factory.mktemp(family))

    return folder


@pytest.fixture(scope="module")
def read_states(folder_of: FolderOf) -> Read:
    """A family's encoder, and the states of each prompt by itself."""

    @cache
    def read_family(family: str) -> tuple[HubEncoder, list[States]]:
        encoder = load(folder_of(family))
        assert isinstance(encoder, HubEncoder)
        return encoder, oracle(folder_of(family), encoder)

    return read_family


def load(folder: Path, *, layers: list[int] | None = None, batch_tokens: int = 64) -> Encoder:
    return load_encoder(
        folder, dtype="float32", device="cpu", layers=layers, batch_tokens=batch_tokens
    )


def oracle(folder: Path, encoder: Encoder) -> list[States]:
    network = AutoModel.from_pretrained(folder, dtype=torch.float32).eval()
    blocks = find_blocks(network, encoder.provenance.num_layers)
    return [read_plainly(network, prompt.ids, blocks) for prompt in encoder.tokenize(QUERIES)]


def worst_error(states: dict, expected: list[States]) -> float:
    return max(
        float(np.abs(rows[i] - truth[site]).max() / np.abs(truth[site]).max())
        for site, rows in states.items()
        for i, truth in enumerate(expected)
    )


@pytest.mark.parametrize("family", FAMILIES)
def test_every_site_equals_a_full_forward_one_by_one(family: str, read_states: Read) -> None:
    base, expected = read_states(family)
    depth = base.provenance.num_layers
    prompts = base.tokenize(QUERIES)
    sites = [Site(layer, p) for layer in range(depth + 1) for p in POOLINGS]
    for budget in (1, 64, 10_000):
        encoder = dataclasses.replace(base, batch_tokens=budget)
        assert worst_error(encoder.states(prompts, sites), expected) < TOLERANCE


@pytest.mark.parametrize("family", FAMILIES)
def test_a_network_cut_to_any_depth_gives_the_same_states(
    family: str, folder_of: FolderOf, read_states: Read
) -> None:
    base, expected = read_states(family)
    depth = base.provenance.num_layers
    for last in sorted({0, depth // 2, depth - 1}):
        encoder = load(folder_of(family), layers=[last])
        assert isinstance(encoder, HubEncoder)
        assert encoder.layers[-1] == last
        assert encoder.provenance == base.provenance
        blocks = [b for b in encoder.blocks if not isinstance(b, torch.nn.Identity)]
        assert len(blocks) == min(max(last, 2), depth)
        sites = [Site(last, "last"), Site(last, "mean"), Site(0, "mean")]
        states = encoder.states(encoder.tokenize(QUERIES), sites)
        assert worst_error(states, expected) < TOLERANCE


NOT_PACKED = {"qwen3_5", "qwen3_5_moe", "nemotron_h", "deberta", "deberta_conv"}


@pytest.mark.parametrize("family", FAMILIES)
def test_packed_prompts_have_the_states_of_each_by_itself(
    family: str, folder_of: FolderOf, read_states: Read
) -> None:
    padded, expected = read_states(family)
    with plain_kernel():
        packed = load(folder_of(family))
    assert isinstance(packed, HubEncoder)
    assert (packed.packing is None) == (family in NOT_PACKED)
    assert packed.provenance.packed_by == (None if family in NOT_PACKED else "plain")
    assert packed.provenance == padded.provenance  # only the rounding differs
    prompts = packed.tokenize(QUERIES)
    layers = range(packed.provenance.num_layers + 1)
    sites = [Site(layer, p) for layer in layers for p in POOLINGS]
    for budget in (1, 64, 10_000):
        encoder = dataclasses.replace(packed, batch_tokens=budget)
        assert worst_error(encoder.states(prompts, sites), expected) < TOLERANCE


@pytest.mark.parametrize("family", FAMILIES)
def test_the_order_of_the_prompts_changes_no_row(family: str, read_states: Read) -> None:
    encoder, _ = read_states(family)
    prompts = encoder.tokenize(QUERIES)
    site = Site(encoder.provenance.num_layers, "mean")
    forward = encoder.states(prompts, [site])[site]
    backward = encoder.states(prompts[::-1], [site])[site][::-1]
    np.testing.assert_allclose(forward, backward, rtol=0, atol=TOLERANCE * np.abs(forward).max())


def test_every_family_that_is_cut_by_its_configuration_or_packed_is_among_these() -> None:
    types = {family().model_type for family in FAMILIES.values()}
    assert types >= CUT_BY_CONFIG | packing.PACKED_FAMILIES


@pytest.mark.parametrize("family", ["bert", "gpt2"])
def test_the_comparison_notices_left_padding(family: str, folder_of: FolderOf) -> None:
    encoder = load(folder_of(family))
    assert isinstance(encoder, HubEncoder)
    rows = [prompt.ids for prompt in encoder.tokenize(QUERIES[:2])]
    batch = pad(rows, encoder.padding, torch.device("cpu"))
    shift = len(rows[1]) - len(rows[0])
    ids, mask = batch.ids.clone(), batch.mask.clone()
    ids[0], mask[0] = batch.ids[0].roll(shift), batch.mask[0].roll(shift)
    with torch.no_grad():
        padded_left = encoder.network(input_ids=ids, attention_mask=mask).last_hidden_state[0, -1]
        alone = encoder.network(input_ids=batch.ids[:1, : len(rows[0])]).last_hidden_state[0, -1]
        right = encoder.network(input_ids=batch.ids, attention_mask=batch.mask).last_hidden_state
    assert (right[0, len(rows[0]) - 1] - alone).abs().max() < TOLERANCE * alone.abs().max()
    assert (padded_left - alone).abs().max() > 100 * TOLERANCE * alone.abs().max()


def _pad_without_mask(rows: list, padding: int, device: torch.device) -> TokenBatch:
    batch = pad(rows, padding, device)
    return dataclasses.replace(batch, mask=torch.ones_like(batch.mask))


def test_the_comparison_notices_a_missing_mask(
    folder_of: FolderOf, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = folder_of("bert")
    encoder = load(folder, batch_tokens=10_000)
    sites = [Site(2, "last"), Site(2, "mean")]
    monkeypatch.setattr(hub, "pad", _pad_without_mask)
    states = encoder.states(encoder.tokenize(QUERIES), sites)
    assert worst_error(states, oracle(folder, encoder)) > 100 * TOLERANCE


def test_the_comparison_notices_the_final_norm_and_another_layer(folder_of: FolderOf) -> None:
    folder = folder_of("qwen3")
    encoder = load(folder)
    expected = oracle(folder, encoder)
    network = AutoModel.from_pretrained(folder, dtype=torch.float32).eval()
    prompt = encoder.tokenize(QUERIES)[1]
    with torch.no_grad():
        states = network(torch.from_numpy(prompt.ids).long()[None], output_hidden_states=True)
    depth = encoder.provenance.num_layers
    normed = states.hidden_states[-1][0, -1].numpy()
    truth = expected[1]
    assert np.abs(normed - truth[Site(depth, "last")]).max() > 0.1
    assert np.abs(truth[Site(depth - 1, "last")] - truth[Site(depth, "last")]).max() > 0.1


def test_a_chat_is_read_with_the_generation_prompt(folder_of: FolderOf) -> None:
    encoder = load(folder_of("qwen3"))
    assert isinstance(encoder, HubEncoder)
    assert encoder.provenance.template == "chat"
    chat = Query("chat", (Message("system", "Be brief."), Message("user", "Hi")))
    text, plain = (
        encoder.tokenizer.decode(prompt.ids)
        for prompt in encoder.tokenize([chat, Query("plain", "Hi")])
    )
    assert text == "<|system|>Be brief.<|end|><|user|>Hi<|end|><|assistant|>"
    assert plain == "<|user|>Hi<|end|><|assistant|>"


def test_a_chat_is_joined_where_there_is_no_template(folder_of: FolderOf) -> None:
    encoder = load(folder_of("gpt2"))
    assert isinstance(encoder, HubEncoder)
    chat = Query("chat", (Message("system", "Be brief."), Message("user", "Hi")))
    (prompt,) = encoder.tokenize([chat])
    assert encoder.provenance.template == "plain"
    assert encoder.tokenizer.decode(prompt.ids) == "Be brief.\n\nHi"
