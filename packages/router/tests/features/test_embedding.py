"""Embeddings as features: which states, how they are scaled, what the test rows can't change."""

from typing import Any

import numpy as np
import pytest
from sklearn.decomposition import PCA

from packages.router.tests.fakes.planted_signal import permute_rows, states_of
from packages.router.tests.features.family_contract import check_family
from prefill_router.activations import MemoryActivations, Site
from prefill_router.encoders import OWN
from prefill_router.errors import ConfigError, FitError, ProvenanceError
from prefill_router.features import Need, PromptStates
from prefill_router.features.base import FAMILIES
from prefill_router.features.single_site import Embedding, EmbeddingConfig
from prefill_router.testing import FakeEncoder, make_routing_dataset

DATASET = make_routing_dataset(queries=90)
TRAIN = DATASET.select(DATASET.query_ids[:60])
SITE = Site(4, "mean")


def encode_states(rounding: str = "bfloat16", *, name: str = "fake") -> MemoryActivations:
    encoder = FakeEncoder(name=name)
    return encoder.encode(DATASET.queries, [Site(4, "last"), SITE], rounding=rounding)


def make_own_vectors(*, zero: bool = False) -> MemoryActivations:
    base = encode_states(name="sentence:tiny")
    rows = base.states[SITE].copy()
    rows[:1] *= not zero
    return MemoryActivations(base.provenance, base.keys, {OWN: rows}, base.counts, base.rounding)


def unit(states: MemoryActivations, site: Site = SITE) -> np.ndarray:
    rows = states.states[site].astype(np.float64)
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


def config(**options: Any) -> EmbeddingConfig:
    return EmbeddingConfig(**{"encoder": "fake", **options})


@pytest.mark.parametrize(
    "options",
    [{}, {"dim": 5}, {"standardise": False, "dim": 4}, {"standardise": False, "normalise": False}],
)
@pytest.mark.parametrize("rounding", ["bfloat16", "float32"])
def test_contract(options: dict[str, Any], rounding: str) -> None:
    states = encode_states(rounding)
    family = config(**options).fit(TRAIN, [states])
    check_family(family, PromptStates.of_dataset(DATASET, [states]))


def test_contract_of_an_encoders_own_vectors() -> None:
    states = make_own_vectors(zero=True)
    family = config(encoder="sentence:tiny", dim=3).fit(TRAIN, [states])
    check_family(family, PromptStates.of_dataset(DATASET, [states]))


def test_whole_embeddings_are_standardised_on_train_rows() -> None:
    states = encode_states()
    result = config().fit(TRAIN, [states]).read(PromptStates.of_dataset(DATASET, [states]))
    train, unseen = result[:60], result[60:]
    np.testing.assert_allclose(train.mean(axis=0), 0, atol=1e-5)
    np.testing.assert_allclose(train.std(axis=0, ddof=1), 1, atol=1e-5)
    assert np.abs(unseen.mean(axis=0)).max() > 0.05  # control: others aren't centred by themselves


def test_raw_embeddings_are_what_the_encoder_gave() -> None:
    states = encode_states()
    family = config(standardise=False, normalise=False).fit(TRAIN, [states])
    rows = family.read(PromptStates.of_dataset(DATASET, [states]))
    np.testing.assert_array_equal(rows, states.states[SITE])
    family = config(standardise=False).fit(TRAIN, [states])
    rows = family.read(PromptStates.of_dataset(DATASET, [states]))
    np.testing.assert_allclose(rows, unit(states), atol=1e-6)


@pytest.mark.parametrize("standardise", [True, False])
def test_components_are_those_of_scikit_learn(standardise: bool) -> None:
    states = encode_states()
    family = config(dim=6, standardise=standardise).fit(TRAIN, [states])
    mine = family.read(PromptStates.of_dataset(DATASET, [states]))
    rows = unit(states)
    mean = rows[:60].mean(axis=0)
    scale = rows[:60].std(axis=0, ddof=1) if standardise else 1.0
    theirs = PCA(6).fit((rows[:60] - mean) / scale).transform((rows - mean) / scale)
    np.testing.assert_allclose(np.abs(mine), np.abs(theirs), atol=2e-5)


def test_test_rows_and_order_do_not_reach_the_fit() -> None:
    states = encode_states()
    first, second = config(dim=6).fit(TRAIN, [states]), config(dim=6).fit(TRAIN, [states])
    changed = {site: rows.copy() for site, rows in states.states.items()}
    changed[SITE][60:] = 1e6
    other = MemoryActivations(
        states.provenance, states.keys, changed, states.counts, states.rounding
    )
    for again in (second, config(dim=6).fit(TRAIN, [other])):
        for name, array in first.tensors().items():
            np.testing.assert_array_equal(again.tensors()[name], array)
    shuffled = config(dim=6).fit(permute_rows(TRAIN), [states])
    for name, array in first.tensors().items():
        np.testing.assert_allclose(shuffled.tensors()[name], array, atol=1e-4)


def test_the_site_is_the_last_layers_mean_or_the_encoders_own() -> None:
    own, fake = make_own_vectors(), encode_states()
    assert config().fit(TRAIN, [own, fake]).where.site == SITE
    assert config(encoder="sentence:tiny").fit(TRAIN, [fake, own]).where.site == OWN
    chosen = config(site="last.4").fit(TRAIN, [fake])
    assert chosen.sites_of(fake.provenance) == (Site(4, "last"),)
    assert chosen.sites_of(own.provenance) == ()


def test_needs() -> None:
    assert EmbeddingConfig().needs == (Need("minilm"),)
    assert config(site="mean.3").needs == (Need("fake", (Site(3, "mean"),)),)
    assert config(encoder="endpoint:m@http://h/v1").needs[0].sites == (OWN,)


def test_of_several_stores_that_with_the_site_is_read() -> None:
    fake = encode_states()
    shallow = MemoryActivations(
        fake.provenance, fake.keys, {Site(2, "last"): fake.states[SITE]}, fake.counts, "bfloat16"
    )
    assert config(site="mean.4").fit(TRAIN, [shallow, fake]).width == 16
    with pytest.raises(ProvenanceError, match=r"lacks the site mean\.4"):
        config(site="mean.4").fit(TRAIN, [shallow])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"dim": 0}, "at least 1"),
        ({"site": "first.3"}, "isn't a site"),
        ({"encoder": "endpoint:nowhere"}, "endpoint:text-embedding"),
    ],
)
def test_options_that_make_no_sense(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        config(**options).fit(TRAIN, [encode_states()])


def test_what_cannot_be_fitted_is_told() -> None:
    with pytest.raises(ConfigError, match="need states of the encoder 'fake'; given are those of"):
        config().fit(TRAIN, [encode_states(name="other")])
    same = states_of(DATASET, sites=[SITE])
    same.states[SITE][:] = 1
    with pytest.raises(FitError, match="are the same"):
        config().fit(TRAIN, [same])


def test_it_is_found_by_its_kind() -> None:
    entry = FAMILIES.find("embedding")
    assert (entry.config, entry.family) == (EmbeddingConfig, Embedding)
