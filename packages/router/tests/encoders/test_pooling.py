"""Poolings of a batch against means by hand, and `rest` from the command to a router."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from packages.router.tests.commands import SEALED_FIT, run_ok
from packages.router.tests.encoders.families import read_plainly
from packages.router.tests.fakes.tiny_encoder import save_tiny_encoder
from prefill_router.activations import DEFAULT_POOLINGS, POOLINGS, ActivationStore, Site
from prefill_router.data import Query, write_dataset
from prefill_router.encoders import default_sites, load_encoder
from prefill_router.encoders.hub import HubEncoder, pad
from prefill_router.errors import ConfigError
from prefill_router.layers import candidate_sites
from prefill_router.testing import FakeEncoder, make_routing_dataset

LENGTHS = (5, 1, 3, 2)


def batch_of(lengths: tuple[int, ...]) -> tuple[torch.Tensor, list[np.ndarray]]:
    """States with a sink at the first token and rubbish in the padding, and each prompt's own."""
    random = np.random.default_rng(0)
    states = random.normal(size=(len(lengths), max(lengths), 7)).astype(np.float32)
    states[:, 0, 3] = 30_000
    for row, length in enumerate(lengths):
        states[row, length:] = 1e9
    return torch.from_numpy(states), [states[i, :n] for i, n in enumerate(lengths)]


@pytest.mark.parametrize("lengths", [LENGTHS, (4, 4), (1, 1), (1,)])
def test_rest_is_the_mean_of_all_tokens_but_the_first(lengths: tuple[int, ...]) -> None:
    states, own = batch_of(lengths)
    batch = pad([np.arange(n) for n in lengths], 0, torch.device("cpu"))
    means_of_rest = batch.pool(states, "rest")
    assert means_of_rest.dtype == torch.float32
    expected = [rows[1:].mean(0) if len(rows) > 1 else rows[0] for rows in own]
    # nothing is lost to the large values of the first token
    np.testing.assert_allclose(means_of_rest, expected, rtol=1e-6, atol=1e-7)
    means = [rows.mean(0, dtype=np.float64) for rows in own]
    np.testing.assert_allclose(batch.pool(states, "mean"), means, rtol=1e-6, atol=1e-3)


def test_half_the_digits_are_summed_in_float32() -> None:
    states, own = batch_of(LENGTHS)
    batch = pad([np.arange(n) for n in LENGTHS], 0, torch.device("cpu"))
    halves = states.bfloat16()
    expected = batch.pool(halves.float(), "rest")
    torch.testing.assert_close(batch.pool(halves, "rest"), expected, rtol=1e-6, atol=1e-7)
    assert len(own) == len(expected)


def test_one_of_many_by_the_network(tmp_path: Path) -> None:
    encoder = load_encoder(save_tiny_encoder(tmp_path / "tiny"), dtype="float32", device="cpu")
    assert isinstance(encoder, HubEncoder)
    prompts = encoder.tokenize([Query(t, t) for t in ("a", "Why is the sky blue?", "no")])
    assert min(len(prompt.ids) for prompt in prompts) == 1
    sites = [Site(layer, "rest") for layer in encoder.layers]
    by_site = encoder.states(prompts, sites)
    for i, prompt in enumerate(prompts):
        expected = read_plainly(encoder.network, prompt.ids, encoder.blocks)
        for site in sites:
            np.testing.assert_allclose(by_site[site][i], expected[site], rtol=1e-4, atol=1e-5)


def test_the_default_poolings_are_what_they_were() -> None:
    assert DEFAULT_POOLINGS == ("last", "mean")
    assert {site.pooling for site in default_sites(FakeEncoder().provenance)} == {"last", "mean"}
    states = FakeEncoder().encode(
        [Query("q", "text")], [Site(4, pooling) for pooling in POOLINGS], rounding="float32"
    )
    assert [site.name for site in candidate_sites(states)] == ["last.4", "mean.4"]
    assert [site.name for site in candidate_sites(states, poolings=("rest",))] == ["rest.4"]
    only = FakeEncoder().encode([Query("q", "text")], [Site(4, "mean")], rounding="float32")
    with pytest.raises(ConfigError, match="choose other poolings"):
        candidate_sites(only, poolings=("rest",))


@pytest.mark.slow
def test_a_store_of_every_pooling_gives_routers_of_each(tmp_path: Path) -> None:
    tiny = save_tiny_encoder(tmp_path / "tiny")
    answers = make_routing_dataset(queries=120)
    write_dataset(answers, tmp_path / "answers")
    states, old = tmp_path / "states", tmp_path / "old"
    encode = ("encode", tmp_path / "answers", "--encoder", tiny, "--layers", "1-2", "--out")
    run_ok(*encode, states, "--pooling", "last,mean,rest")
    run_ok(*encode, old)
    every, few = ActivationStore.open(states), ActivationStore.open(old)
    assert [s.name for s in every.sites] == [f"{p}.{layer}" for layer in (1, 2) for p in POOLINGS]
    every.verify()
    for site in few.sites:
        np.testing.assert_array_equal(
            every.read(site, answers.prompt_keys), few.read(site, answers.prompt_keys)
        )
    fit = (*SEALED_FIT, tmp_path / "answers", "--store", states, "--dim", 4)
    output = run_ok(*fit, "--pooling", "rest", "--scope", "pool", "--out", tmp_path / "router")
    assert "read tiny rest." in output
    ask = ("route", tmp_path / "router", "--encoder-folder", tiny, "--json")
    assert json.loads(run_ok(*ask, "Prove that 2 is irrational."))["target"]
    assert "rest.1" in run_ok(*fit, "--select", "rest.1", "--out", tmp_path / "pinned")
