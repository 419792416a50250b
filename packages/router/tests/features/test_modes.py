"""Several encoders: single, per_model, auto."""

from pathlib import Path

import numpy as np
import pytest

from packages.router.tests.fakes.planted_signal import PLANTED, SITES, relabel, states_of
from prefill_router.activations import MemoryActivations
from prefill_router.data import RoutingDataset
from prefill_router.errors import ConfigError, FitError
from prefill_router.features import FeatureExtractor
from prefill_router.features.base import FeatureSet
from prefill_router.features.prefill import PrefillConfig
from prefill_router.testing import FakeEncoder, make_routing_dataset

pytestmark = pytest.mark.slow

DIM = 6
BEST, GOOD = FakeEncoder(name="best"), FakeEncoder(name="good", signal=2.5)


@pytest.fixture(scope="module")
def dataset() -> RoutingDataset:
    return make_routing_dataset(queries=300)


@pytest.fixture(scope="module")
def stores(dataset: RoutingDataset) -> list[MemoryActivations]:
    return [states_of(dataset, encoder=encoder) for encoder in (GOOD, BEST)]


def make_specialised(dataset: RoutingDataset, name: str, columns: list[int]) -> MemoryActivations:
    """An encoder that knows these targets' labels alone, at layer 3."""
    base = states_of(dataset, encoder=FakeEncoder(name=name, signal=0.0))
    signal = dataset.correct[:, columns].sum(axis=1, keepdims=True)
    states = {
        site: (values + 2 * signal * (site.layer == PLANTED)).astype(np.float32)
        for site, values in base.states.items()
    }
    return MemoryActivations(base.provenance, base.keys, states, base.counts)


def draw_labels(dataset: RoutingDataset) -> RoutingDataset:
    """The same queries with labels that have nothing to do with each other."""
    random = np.random.default_rng(3)
    return relabel(dataset, (random.random(dataset.correct.shape) < 0.5).astype(np.float64))


def test_an_encoder_may_be_named_by_its_folder(dataset: RoutingDataset, tmp_path: Path) -> None:
    (tmp_path / "best").mkdir()
    (tmp_path / "best" / "config.json").touch()
    folder = str(tmp_path / "best")
    stores = [states_of(dataset, encoder=encoder) for encoder in (GOOD, BEST)]
    features = PrefillConfig(encoders=(folder,), select="last.3", dim=DIM).fit(dataset, stores)
    assert FeatureSet((features,)).provenances == (BEST.provenance,)
    names = dict.fromkeys(dataset.pool.names, folder)
    config = PrefillConfig(mode="per_model", select="last.3", dim=DIM, assignments=names)
    assert FeatureSet((config.fit(dataset, stores),)).provenances == (BEST.provenance,)
    with pytest.raises(ConfigError, match="no states of the encoders"):
        PrefillConfig(encoders=(folder,)).fit(dataset, stores[:1])


@pytest.mark.parametrize("method", ["fisher", "grid"])
def test_single_takes_the_best_encoder_for_all(
    stores: list[MemoryActivations], dataset: RoutingDataset, method: str
) -> None:
    for order in (stores, stores[::-1]):
        extractor = FeatureExtractor.fit(order, dataset, dim=DIM, method=method)
        assert FeatureSet((extractor,)).provenances == (BEST.provenance,)
        names = [row["encoder"] for row in extractor.selection["encoders"]]
        auc = dict(zip(names, extractor.selection["auc"], strict=True))
        assert all(auc["best"][name] > auc["good"][name] for name in dataset.pool.names)


def test_auto_takes_the_best_encoder_for_each(dataset: RoutingDataset) -> None:
    train = draw_labels(dataset)
    stores = [
        make_specialised(train, "knows 0", [0]),
        make_specialised(train, "knows 1 and 2", [1, 2]),
    ]
    extractor = FeatureExtractor.fit(stores, train, dim=DIM, mode="auto")
    encoders = [block.provenance.encoder for block in extractor.block_of_target()]
    assert encoders == ["knows 0", "knows 1 and 2", "knows 1 and 2"]
    assert extractor.selection["encoder_of"] == {"target-0": 0, "target-1": 1, "target-2": 1}
    single = FeatureExtractor.fit(stores, train, dim=DIM)
    assert [p.encoder for p in FeatureSet((single,)).provenances] == ["knows 1 and 2"]
    features = extractor.transform(stores[::-1], train.prompt_keys)
    np.testing.assert_array_equal(features, extractor.transform(stores, train.prompt_keys))
    assert features.shape == (300, extractor.width)


def test_encoders_are_not_compared_by_j(dataset: RoutingDataset) -> None:
    """A narrow encoder has the greater J for the same knowledge; the wide one probes better."""
    train = draw_labels(dataset)
    labels = train.correct - 0.5
    random = np.random.default_rng(0)

    def make_states(name: str, noise: float, hidden: int) -> MemoryActivations:
        base = states_of(train, encoder=FakeEncoder(name=name, hidden_size=hidden))
        spread = random.normal(size=(len(labels), hidden)) * noise
        spread[:, 3:] *= 1 / noise
        spread[:, :3] += labels
        return MemoryActivations(
            base.provenance,
            base.keys,
            dict.fromkeys(SITES[6:8], spread.astype(np.float32)),
            base.counts,
        )

    stores = [make_states("narrow", 0.9, 4), make_states("wide", 0.4, 40)]
    extractor = FeatureExtractor.fit(stores, train, dim=40)
    narrow, wide = extractor.selection["encoders"]
    assert narrow["pool"]["score"] > wide["pool"]["score"]
    assert FeatureSet((extractor,)).provenances[0].encoder == "wide"


def test_per_model_takes_the_assigned_encoder(
    stores: list[MemoryActivations], dataset: RoutingDataset
) -> None:
    good, best = stores
    extractor = FeatureExtractor.fit(
        stores,
        dataset,
        dim=DIM,
        mode="per_model",
        assignments={"target-2": good, "target-0": best, "target-1": good},
    )
    encoders = [block.provenance.encoder for block in extractor.block_of_target()]
    assert encoders == ["best", "good", "good"]


def test_assignments_that_make_no_sense_are_refused(
    stores: list[MemoryActivations], dataset: RoutingDataset
) -> None:
    good, best = stores
    every = dict.fromkeys(dataset.pool.names, good)
    with pytest.raises(ConfigError, match="assignments are missing"):
        FeatureExtractor.fit(stores, dataset, mode="per_model")
    with pytest.raises(ConfigError, match="assignments are given"):
        FeatureExtractor.fit(stores, dataset, assignments=every)
    with pytest.raises(ConfigError, match="must name every target"):
        FeatureExtractor.fit(stores, dataset, mode="per_model", assignments={"target-0": good})
    with pytest.raises(ConfigError, match="isn't among the stores"):
        FeatureExtractor.fit([best], dataset, mode="per_model", assignments=every)


def test_a_target_that_cannot_be_judged_reads_the_pools_encoder(dataset: RoutingDataset) -> None:
    train = draw_labels(dataset)
    stores = [make_specialised(train, "knows 0", [0]), make_specialised(train, "knows 1", [1])]
    correct = train.correct.copy()
    correct[:, 2] = 1
    correct[5:, 0] = np.nan
    extractor = FeatureExtractor.fit(stores, relabel(train, correct), dim=DIM, mode="auto")
    assert set(extractor.selection["encoder_of"].values()) == {1}
    assert extractor.selection["auc"][1]["target-2"] is None


def test_encoders_cannot_be_compared_without_both_classes(dataset: RoutingDataset) -> None:
    stores = [states_of(dataset, encoder=encoder) for encoder in (GOOD, BEST)]
    with pytest.raises(FitError, match="compare encoders"):
        FeatureExtractor.fit(
            stores,
            relabel(dataset, np.ones_like(dataset.correct)),
            method="pinned",
            pinned=SITES[6],
        )
