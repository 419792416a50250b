"""Equation 3: what is fitted, from what, and what it gives."""

import numpy as np
import pytest

from packages.router.tests.fakes.planted_signal import (
    PLANTED,
    SITES,
    permute_rows,
    relabel,
    states_of,
)
from prefill_router.activations import MemoryActivations, Site
from prefill_router.data import RoutingDataset, split
from prefill_router.errors import ConfigError, FitError, ProvenanceError, StoreError
from prefill_router.features import FeatureExtractor
from prefill_router.features.base import FeatureSet
from prefill_router.testing import FakeEncoder, make_routing_dataset

pytestmark = pytest.mark.slow

DIM = 6


@pytest.fixture(scope="module")
def dataset() -> RoutingDataset:
    return make_routing_dataset(queries=300, missing=0.05)


@pytest.fixture(scope="module")
def train(dataset: RoutingDataset) -> RoutingDataset:
    return dataset.select(split(dataset)["train"])


@pytest.fixture(scope="module")
def states(dataset: RoutingDataset) -> MemoryActivations:
    return states_of(dataset)


@pytest.fixture(scope="module")
def extractor(states: MemoryActivations, train: RoutingDataset) -> FeatureExtractor:
    return FeatureExtractor.fit([states], train, dim=DIM)


def with_sites_that_differ(states: MemoryActivations, dataset: RoutingDataset) -> MemoryActivations:
    """States in which target 0 is known at layer 2 and the others at layer 4."""
    random = np.random.default_rng(0)
    changed = dict(states.states)
    row = {key: i for i, key in enumerate(states.keys)}
    labels = np.nan_to_num(dataset.correct[np.argsort([row[k] for k in dataset.prompt_keys])])
    for layer, signal in ((2, labels[:, :1]), (4, labels[:, 1:].sum(axis=1, keepdims=True))):
        noise = random.normal(size=(len(labels), 16))
        changed[Site(layer, "last")] = (noise + 3 * signal).astype(np.float32)
    changed[Site(PLANTED, "last")] = random.normal(size=(len(labels), 16)).astype(np.float32)
    changed[Site(PLANTED, "mean")] = random.normal(size=(len(labels), 16)).astype(np.float32)
    return MemoryActivations(states.provenance, states.keys, changed, states.counts)


def assert_same(first: FeatureExtractor, second: FeatureExtractor) -> None:
    assert first.to_dict() == second.to_dict()
    for name, array in first.tensors().items():
        np.testing.assert_array_equal(second.tensors()[name], array)


def test_identical_blocks_enter_once(extractor: FeatureExtractor) -> None:
    assert extractor.width == sum(block.dim for block in extractor.blocks)
    assert len({block.site for block in extractor.blocks}) == len(extractor.blocks)
    assert {block.site.layer for block in extractor.blocks} == {PLANTED}
    assert extractor.targets == ("target-0", "target-1", "target-2")


def test_targets_that_differ_have_blocks_of_their_own(
    states: MemoryActivations, dataset: RoutingDataset
) -> None:
    other = with_sites_that_differ(states, dataset)
    extractor = FeatureExtractor.fit([other], dataset, dim=DIM)
    assert extractor.block_of == (0, 1, 1)
    assert [block.site.layer for block in extractor.blocks] == [2, 4]
    features = extractor.transform([other], dataset.prompt_keys)
    assert features.shape == (300, 2 * DIM)
    for block, columns in zip(extractor.blocks, np.split(features, 2, axis=1), strict=True):
        expected = block.reducer.transform(other.read(block.site, dataset.prompt_keys))
        np.testing.assert_array_equal(columns, expected)
    pool = FeatureExtractor.fit([other], dataset, dim=DIM, scope="pool")
    assert len(pool.blocks) == 1


def test_dimensions_beyond_the_rank_come_out_the_same(
    states: MemoryActivations, train: RoutingDataset
) -> None:
    wide = FeatureExtractor.fit([states], train, method="pinned", pinned=SITES[4], dim=500)
    assert wide.width == 16


def test_the_test_rows_change_nothing(
    extractor: FeatureExtractor,
    states: MemoryActivations,
    train: RoutingDataset,
    dataset: RoutingDataset,
) -> None:
    outside = set(states.keys) - set(train.prompt_keys)
    rows = [i for i, key in enumerate(states.keys) if key in outside]
    changed = {site: values.copy() for site, values in states.states.items()}
    for values in changed.values():
        values[rows] = 1e6
    other = MemoryActivations(states.provenance, states.keys, changed, states.counts)
    correct = dataset.correct.copy()
    ids = set(train.query_ids)
    correct[[i for i, name in enumerate(dataset.query_ids) if name not in ids]] = 0
    part = relabel(dataset, correct).select(train.query_ids)
    assert_same(FeatureExtractor.fit([other], part, dim=DIM), extractor)
    assert rows  # and changing a train row does change it
    row = states.keys.index(train.prompt_keys[0])
    for values in changed.values():
        values[row] += 3
    moved = FeatureExtractor.fit([other], part, dim=DIM).tensors()["block0.mean"]
    assert (moved != extractor.tensors()["block0.mean"]).any()


def test_the_order_of_rows_changes_nothing(
    extractor: FeatureExtractor,
    states: MemoryActivations,
    train: RoutingDataset,
    dataset: RoutingDataset,
) -> None:
    order = np.random.default_rng(1).permutation(len(states.keys))
    mixed = MemoryActivations(
        states.provenance,
        tuple(states.keys[i] for i in order),
        {site: values[order] for site, values in states.states.items()},
        states.counts[order],
    )
    other = FeatureExtractor.fit([mixed], permute_rows(train), dim=DIM)
    assert other.block_of == extractor.block_of
    keys = dataset.prompt_keys
    np.testing.assert_allclose(
        other.transform([mixed], keys), extractor.transform([states], keys), atol=1e-4
    )
    np.testing.assert_array_equal(
        extractor.transform([states], keys[::-1]), extractor.transform([states], keys)[::-1]
    )


def test_a_request_has_the_features_of_its_row(
    extractor: FeatureExtractor, states: MemoryActivations, dataset: RoutingDataset
) -> None:
    encoder = FakeEncoder()
    batch = encoder.encode(
        dataset.queries[5:6], extractor.sites_of(encoder.provenance), rounding="float32"
    )
    row = extractor.transform([states], dataset.prompt_keys)[5]
    np.testing.assert_allclose(extractor.transform([batch], batch.keys)[0], row, atol=1e-5)


def test_states_are_rounded_as_the_train_rows_were(
    train: RoutingDataset, dataset: RoutingDataset
) -> None:
    encoder = FakeEncoder()
    rough, exact, half = (
        encoder.encode(dataset.queries, SITES, rounding=rounding)
        for rounding in ("bfloat16", "float32", "float16")
    )
    extractor = FeatureExtractor.fit([rough], train, dim=DIM)
    keys = dataset.prompt_keys
    np.testing.assert_array_equal(
        extractor.transform([exact], keys), extractor.transform([rough], keys)
    )
    with pytest.raises(ProvenanceError, match="holds float16; the router was fitted on states"):
        extractor.transform([half], keys)
    precise = FeatureExtractor.fit([exact], train, dim=DIM)
    with pytest.raises(ProvenanceError, match="rounded to float32"):
        precise.transform([rough], keys)
    assert FeatureSet((extractor,)).source_of(encoder.provenance).rounding == "bfloat16"


def test_wrong_states_are_refused_by_name(
    extractor: FeatureExtractor, states: MemoryActivations, dataset: RoutingDataset
) -> None:
    keys = dataset.prompt_keys
    with pytest.raises(ProvenanceError, match=r"states of the encoder 'fake'.*given: none"):
        extractor.transform([], keys)
    with pytest.raises(ProvenanceError, match="given: the encoded batch of 'other'"):
        extractor.transform([states_of(dataset, encoder=FakeEncoder(name="other"))], keys)
    with pytest.raises(ProvenanceError, match="max_tokens is 99, not 256"):
        extractor.transform([states_of(dataset, encoder=FakeEncoder(max_tokens=99))], keys)
    with pytest.raises(ProvenanceError, match="lacks the site"):
        extractor.transform([states_of(dataset, sites=SITES[:2])], keys)
    with pytest.raises(StoreError, match="lacks the states of 1 of 1"):
        extractor.transform([states], ["no such key"])
    with pytest.raises(ProvenanceError, match="no feature is read from 'other'"):
        FeatureSet((extractor,)).source_of(FakeEncoder(name="other").provenance)


def test_what_a_request_needs(extractor: FeatureExtractor) -> None:
    provenance = FakeEncoder().provenance
    assert FeatureSet((extractor,)).provenances == (provenance,)
    assert set(extractor.sites_of(provenance)) == {block.site for block in extractor.blocks}
    assert extractor.sites_of(FakeEncoder(name="other").provenance) == ()
    assert [b.provenance for b in extractor.block_of_target()] == [provenance] * 3


def test_one_class_alone_is_refused_unless_the_site_is_pinned(
    states: MemoryActivations, train: RoutingDataset
) -> None:
    ones = relabel(train, np.ones_like(train.correct))
    with pytest.raises(FitError, match="pin the site"):
        FeatureExtractor.fit([states], ones, dim=DIM)
    pinned = FeatureExtractor.fit([states], ones, dim=DIM, method="pinned", pinned=SITES[4])
    assert pinned.width == DIM


def test_no_store_or_the_same_twice_is_refused(
    states: MemoryActivations, train: RoutingDataset
) -> None:
    with pytest.raises(ConfigError, match="no store is given"):
        FeatureExtractor.fit([], train)
    with pytest.raises(ConfigError, match="two stores have the same encoder"):
        FeatureExtractor.fit([states, states], train)
