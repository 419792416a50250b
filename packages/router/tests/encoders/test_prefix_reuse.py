"""Shared beginnings are read once, and give the states of a whole reading; others are refused."""

import dataclasses
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from packages.router.tests.encoders.families import FAMILIES, save
from prefill_router.activations import POOLINGS, Site
from prefill_router.data import Query
from prefill_router.encoders import Encoder, load_encoder
from prefill_router.encoders.hub import HubEncoder
from prefill_router.encoders.load import Dtype
from prefill_router.encoders.prefix_encoder import (
    BLOCK,
    PrefixBlock,
    PrefixCachingEncoder,
    PrefixStore,
    reason_against_prefix_cache,
)
from prefill_router.errors import ConfigError, StoreError
from prefill_router.testing import FakeEncoder

pytestmark = pytest.mark.slow

FolderOf = Callable[[str], Path]
CAUSAL = ["gpt2", "llama", "olmo2", "opt", "phi3", "qwen2", "qwen3", "qwen3_moe"]
WINDOWED = ["gemma3", "gpt_oss", "mistral"]  # of 8 tokens
SYSTEM = "You answer in few words, in the language of the question, and name your sources. " * 2
TALK = [SYSTEM + "".join(f"[{i}] and then? " for i in range(n)) for n in (0, 1, 3)]


@pytest.fixture(scope="module")
def folder_of(tmp_path_factory: pytest.TempPathFactory) -> FolderOf:
    @cache
    def folder(family: str) -> Path:
        return save(family, tmp_path_factory.mktemp(family))

    return folder


def load(folder: Path, *, dtype: Dtype = "float32", **options: Any) -> HubEncoder:
    encoder = load_encoder(
        folder, dtype=dtype, device="cpu", template="plain", batch_tokens=1024, **options
    )
    assert isinstance(encoder, HubEncoder)
    return encoder


def every_site(encoder: Encoder) -> list[Site]:
    return [Site(layer, pooling) for layer in encoder.layers for pooling in POOLINGS]


def texts(*prompts: str) -> list[Query]:
    return [Query(f"q{i}", text) for i, text in enumerate(prompts)]


def worst_error(encoder: Encoder, other: Encoder, queries: list[Query]) -> float:
    prompts, sites = encoder.tokenize(queries), every_site(encoder)
    mine, theirs = encoder.states(prompts, sites), other.states(prompts, sites)
    return max(
        float((np.abs(mine[s] - theirs[s]).max(axis=1) / np.abs(theirs[s]).max(axis=1)).max())
        for s in sites
    )


@pytest.mark.parametrize("family", [*CAUSAL, *WINDOWED])
def test_states_are_those_of_a_whole_reading(family: str, folder_of: FolderOf) -> None:
    encoder = load(folder_of(family))
    reusing = PrefixCachingEncoder(encoder)
    queries = texts(*TALK, SYSTEM + "Why?", "Why?", TALK[0], "x" * (2 * BLOCK), "x" * (3 * BLOCK))
    for query in queries:
        assert worst_error(reusing, encoder, [query]) < 1e-5
    assert worst_error(reusing, encoder, queries) < 1e-5
    assert reusing.reused_tokens > reusing.read_tokens


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("family", sorted(set(FAMILIES) - {*CAUSAL, *WINDOWED}))
def test_what_does_not_keep_every_token_or_looks_ahead_is_refused(
    family: str, dtype: Dtype, folder_of: FolderOf
) -> None:
    encoder = load(folder_of(family), dtype=dtype)
    with pytest.raises(ConfigError, match="use the encoder as it is"):
        PrefixCachingEncoder(encoder)
    assert encoder.with_prefix_cache(most_bytes=1 << 20) is encoder


def test_half_the_digits_are_no_hindrance(folder_of: FolderOf) -> None:
    encoder = load(folder_of("qwen3"), dtype="bfloat16")
    reusing = PrefixCachingEncoder(encoder)
    for query in texts(*TALK):
        assert worst_error(reusing, encoder, [query]) < 0.02
    assert reusing.reused_tokens > 0


def test_what_is_read_at_no_block_is_refused() -> None:
    with pytest.raises(ConfigError, match="fake"):
        PrefixCachingEncoder(FakeEncoder())


def test_only_what_was_not_read_before_is_read(folder_of: FolderOf) -> None:
    reusing = PrefixCachingEncoder(load(folder_of("qwen3")))
    sites = [Site(3, "mean")]
    prompts = reusing.tokenize(texts(*TALK))
    for i, prompt in enumerate(prompts):
        before = reusing.read_tokens, reusing.reused_tokens
        reusing.states([prompt], sites)
        shared = 0 if i == 0 else len(prompts[i - 1].ids) // BLOCK * BLOCK
        assert reusing.reused_tokens - before[1] == shared
        assert reusing.read_tokens - before[0] == len(prompt.ids) - shared
    before_last = reusing.reused_tokens
    reusing.states([prompts[-1]], sites)
    assert reusing.reused_tokens - before_last == (len(prompts[-1].ids) - 1) // BLOCK * BLOCK


def test_no_prompt_finds_what_another_beginning_gave(folder_of: FolderOf) -> None:
    """The second blocks are the same, the first ones differ in one token."""
    encoder = load(folder_of("llama"))
    reusing = PrefixCachingEncoder(encoder)
    first, second = "a" * BLOCK + TALK[0], "a" * (BLOCK - 1) + "b" + TALK[0]
    assert worst_error(reusing, encoder, texts(first)) < 1e-5
    assert worst_error(reusing, encoder, texts(second)) < 1e-5
    assert reusing.reused_tokens == 0
    apart = encoder.encode(texts(first, second), [Site(4, "last")], rounding="float32")
    rows = apart.states[Site(4, "last")]
    assert np.abs(rows[0] - rows[1]).max() > 1e-3 * np.abs(rows).max()  # it does matter


def test_prompts_that_are_read_at_once_have_their_own_states(folder_of: FolderOf) -> None:
    encoder = load(folder_of("llama"))
    reusing = PrefixCachingEncoder(encoder).with_workers(2)
    assert isinstance(reusing, PrefixCachingEncoder)
    assert reusing.workers == 2
    queries = texts(*TALK, SYSTEM + "Why?", "Why?", TALK[0], "x" * (2 * BLOCK), "x" * (3 * BLOCK))
    assert worst_error(reusing, encoder, queries) < 1e-5
    before = reusing.read_tokens
    assert worst_error(reusing, encoder, queries) < 1e-5
    assert reusing.read_tokens - before < before
    assert reusing.reused_tokens > reusing.read_tokens - before


def test_another_choice_of_sites_begins_anew(folder_of: FolderOf) -> None:
    encoder = load(folder_of("qwen3"))
    reusing = PrefixCachingEncoder(encoder)
    [prompt] = encoder.tokenize(texts(TALK[1]))
    for sites in ([Site(1, "last")], [Site(4, "mean"), Site(2, "last")], [Site(0, "mean")]):
        states, expected = reusing.states([prompt], sites), encoder.states([prompt], sites)
        for site in sites:
            np.testing.assert_allclose(states[site], expected[site], rtol=1e-4, atol=1e-5)
    assert reusing.reused_tokens == 0
    with pytest.raises(ConfigError, match="can't be read at"):
        reusing.states([prompt], [Site(9, "last")])


def test_prompts_that_lose_their_middle_are_read_as_ever(folder_of: FolderOf) -> None:
    encoder = load(folder_of("gpt2"), max_tokens=150)
    reusing = PrefixCachingEncoder(encoder)
    queries = texts(TALK[2], TALK[2] + "more")
    assert all(prompt.truncated for prompt in encoder.tokenize(queries))
    assert worst_error(reusing, encoder, queries) == 0
    assert reusing.cache_bytes == 0


def test_no_prompt_at_all(folder_of: FolderOf) -> None:
    reusing = PrefixCachingEncoder(load(folder_of("gpt2")))
    assert reusing.states([], [Site(2, "last")])[Site(2, "last")].shape == (0, 32)


def test_memory_stays_below_its_limit_and_the_latest_are_kept(folder_of: FolderOf) -> None:
    encoder = load(folder_of("llama"))
    wide = PrefixCachingEncoder(encoder)
    worst_error(wide, encoder, texts(TALK[0]))
    most = wide.cache_bytes * 3
    reusing = PrefixCachingEncoder(encoder, most_bytes=most)
    for letter in "abcdefgh":
        assert worst_error(reusing, encoder, texts(letter + TALK[0])) < 1e-5
        assert 0 < reusing.cache_bytes <= most
    before = reusing.reused_tokens
    worst_error(reusing, encoder, texts("a" + TALK[0]))
    assert reusing.reused_tokens == before
    worst_error(reusing, encoder, texts("a" + TALK[0], "h" + TALK[0]))
    assert reusing.reused_tokens > before
    none = PrefixCachingEncoder(encoder, most_bytes=0)
    for _ in range(2):
        assert worst_error(none, encoder, texts(TALK[0])) < 1e-5
    assert (none.cache_bytes, none.reused_tokens) == (0, 0)


def test_a_state_that_is_not_finite_is_told(folder_of: FolderOf) -> None:
    encoder = load(folder_of("qwen2"))
    reusing = PrefixCachingEncoder(encoder)
    with torch.no_grad():
        encoder.network.get_parameter("norm.weight").fill_(float("nan"))
        encoder.blocks[2].get_parameter("mlp.down_proj.weight").fill_(float("inf"))
    with pytest.raises(StoreError, match="finite"):
        reusing.states(reusing.tokenize(texts(TALK[0])), [Site(4, "mean")])


def block() -> PrefixBlock:
    states = (torch.zeros(1, 1, BLOCK, 4),)
    return PrefixBlock(states, states, torch.ones(1), torch.ones(1))


def ids(*letters: int) -> np.ndarray:
    return np.repeat(np.array(letters, np.int32), BLOCK)


def test_a_block_never_outlives_the_one_before_it() -> None:
    size = block().nbytes
    store = PrefixStore(most_bytes=3 * size)
    store.keep(ids(1, 2, 3), [block() for _ in range(3)])
    store.keep(ids(1, 9), [*store.longest(ids(1, 0)), block()])
    assert len(store) == 3
    assert [len(store.longest(ids(*letters, 0))) for letters in ((1, 9), (1, 2, 3))] == [2, 2]
    store.keep(ids(7, 8), [block(), block()])
    assert store.nbytes == 3 * size
    assert [len(store.longest(ids(*letters, 0))) for letters in ((7, 8), (1, 2), (1, 9))] == [
        2,
        1,
        1,
    ]


def test_one_token_is_always_left_to_read() -> None:
    store = PrefixStore(most_bytes=1 << 20)
    store.keep(ids(1, 2), [block(), block()])
    assert len(store.longest(ids(1, 2))) == 1
    assert len(store.longest(ids(1, 2, 3)[: 2 * BLOCK + 1])) == 2
    assert store.longest(ids(2, 1)) == []


class Blind(torch.nn.Module):
    """Takes a cache as others do, and doesn't look at it."""

    def __init__(self, inside: torch.nn.Module) -> None:
        super().__init__()
        self.inside, self.config = inside, inside.config

    def forward(self, input_ids: Any, attention_mask: Any = None, **_: Any) -> Any:
        mask = attention_mask[:, -input_ids.shape[1] :]
        return self.inside(input_ids=input_ids, attention_mask=mask, use_cache=False)


class Elsewhere(Blind):
    """The same, of an unknown module."""


Blind.__module__ = "transformers.models.blind"


def test_a_network_that_ignores_what_it_was_given_is_found_out(folder_of: FolderOf) -> None:
    encoder = load(folder_of("llama"))
    blind = dataclasses.replace(encoder, network=Blind(encoder.network))
    assert "can't continue" in str(reason_against_prefix_cache(blind))
    encoder.network.get_submodule("layers.2.self_attn").forward = _look_back(encoder.network)
    assert "other states" in str(reason_against_prefix_cache(encoder))


def _look_back(network: torch.nn.Module) -> Any:
    """Attention that counts positions from where it begins to read."""
    inside = network.get_submodule("layers.2.self_attn")
    forward = inside.forward

    def wrong(hidden_states: torch.Tensor, **options: Any) -> Any:
        positions = torch.arange(hidden_states.shape[1])[None]
        again = network.get_submodule("rotary_emb")(hidden_states, positions)
        return forward(hidden_states, **{**options, "position_embeddings": again})

    return wrong


def test_a_network_that_looks_ahead_is_found_out_though_it_says_otherwise(
    folder_of: FolderOf,
) -> None:
    encoder = load(folder_of("bert"))
    for module in encoder.network.modules():
        if hasattr(module, "is_causal"):
            module.is_causal = True
    assert "other states" in str(reason_against_prefix_cache(encoder))


def test_windows_of_a_family_that_is_not_tested_are_refused(folder_of: FolderOf) -> None:
    encoder = load(folder_of("mistral"))
    assert reason_against_prefix_cache(encoder) is None
    encoder.network.config.model_type = "of-tomorrow"
    assert "DynamicSlidingWindowLayer" in str(reason_against_prefix_cache(encoder))


@pytest.mark.parametrize("kind", ["dynamic", "longrope", "of-tomorrow"])
def test_positions_that_may_depend_on_the_length_are_refused(
    kind: str, folder_of: FolderOf
) -> None:
    encoder = load(folder_of("qwen3"))
    for parameters in ({"rope_type": kind}, {"full_attention": {"rope_type": kind}}):
        encoder.network.config.rope_parameters = parameters
        assert kind in str(reason_against_prefix_cache(encoder))


def test_networks_of_unknown_making_and_short_limits_are_refused(folder_of: FolderOf) -> None:
    encoder = load(folder_of("qwen3"))
    odd = dataclasses.replace(encoder, network=Elsewhere(encoder.network))
    assert "isn't part of transformers" in str(reason_against_prefix_cache(odd))
    assert "too small a limit" in str(
        reason_against_prefix_cache(load(folder_of("qwen3"), max_tokens=BLOCK))
    )
    assert "too small a limit" in str(
        reason_against_prefix_cache(load(folder_of("qwen3"), layers=[0]))
    )
