"""The encoder-target sweep and its figures."""

from pathlib import Path

import numpy as np
import polars as pl
import pytest

from packages.router.tests.fakes.planted_signal import SITES, states_of
from prefill_router.activations import MemoryActivations
from prefill_router.data import RoutingDataset, split
from prefill_router.errors import ConfigError
from prefill_router.layers import survey
from prefill_router.testing import FakeEncoder, make_routing_dataset
from prefill_router_lab.depth import EncoderSweep, SweepOptions, sweep
from prefill_router_lab.depth.figures import draw_geometry, draw_sweep

pytestmark = pytest.mark.slow

STRONG = FakeEncoder(name="someone/strong")
WEAK = FakeEncoder(name="someone/weak", signal=2.0)


@pytest.fixture(scope="module")
def dataset() -> RoutingDataset:
    return make_routing_dataset(queries=300, missing=0.05)


@pytest.fixture(scope="module")
def stores(dataset: RoutingDataset) -> list[MemoryActivations]:
    return [states_of(dataset, encoder=encoder) for encoder in (STRONG, WEAK)]


@pytest.fixture(scope="module")
def parts(dataset: RoutingDataset) -> tuple[RoutingDataset, RoutingDataset]:
    parts = split(dataset)
    return dataset.select(parts["train"]), dataset.select(parts["test"])


@pytest.fixture(scope="module")
def swept(
    stores: list[MemoryActivations], parts: tuple[RoutingDataset, RoutingDataset]
) -> EncoderSweep:
    return sweep(stores, *parts, SweepOptions(dim=8))


def test_the_better_encoder_is_better_for_every_target(swept: EncoderSweep) -> None:
    assert swept.encoders == ("strong", "weak")
    assert (swept.auc[0] > swept.auc[1]).all()
    assert (swept.cross_validated[0] > swept.cross_validated[1]).all()
    assert (swept.cross_validated[0] > 0.8).all()
    assert {site.name for site in swept.sites[0]} == {"last.3"}


def test_the_test_part_is_only_scored(
    swept: EncoderSweep,
    stores: list[MemoryActivations],
    parts: tuple[RoutingDataset, RoutingDataset],
) -> None:
    train, test = parts
    wrong = RoutingDataset.of(test.queries, test.pool, 1 - test.correct)
    other = sweep(stores, train, wrong, SweepOptions(dim=8))
    assert other.sites == swept.sites
    np.testing.assert_array_equal(other.cross_validated, swept.cross_validated)
    np.testing.assert_allclose(other.auc, 1 - swept.auc)


def test_encoders_of_one_name_are_told_apart(
    stores: list[MemoryActivations], parts: tuple[RoutingDataset, RoutingDataset]
) -> None:
    twin = states_of(parts[0], encoder=FakeEncoder(name="other/strong", signal=1.0))
    rest = states_of(parts[1], encoder=FakeEncoder(name="other/strong", signal=1.0))
    joined = MemoryActivations(
        twin.provenance,
        twin.keys + rest.keys,
        {s: np.concatenate([twin.states[s], rest.states[s]]) for s in SITES},
        np.concatenate([twin.counts, rest.counts]),
    )
    names = sweep([stores[0], joined], *parts, SweepOptions(dim=4)).encoders
    assert names == ("strong (1)", "strong (2)")


def test_a_target_of_one_class_has_no_auc(
    stores: list[MemoryActivations], parts: tuple[RoutingDataset, RoutingDataset], tmp_path: Path
) -> None:
    train, test = parts
    correct = train.correct.copy()
    correct[:, 1] = 1
    changed = RoutingDataset.of(train.queries, train.pool, correct)
    result = sweep(stores[:1], changed, test, SweepOptions(dim=4))
    assert np.isnan(result.auc).tolist() == [[False, True, False]]
    assert np.isfinite(result.mean()).all()
    assert [row["auc"] is None for row in result.rows()] == [False, True, False]
    assert all(path.is_file() for path in draw_sweep(result, tmp_path))


def test_nothing_to_sweep_is_refused(parts: tuple[RoutingDataset, RoutingDataset]) -> None:
    with pytest.raises(ConfigError, match="0 stores"):
        sweep([], *parts)


def test_the_heat_map_comes_with_its_data(swept: EncoderSweep, tmp_path: Path) -> None:
    png, svg, csv = draw_sweep(swept, tmp_path)
    assert png.read_bytes().startswith(b"\x89PNG")
    assert "test AUC" in svg.read_text()
    table = pl.read_csv(csv)
    assert table["auc"].to_list() == pytest.approx(swept.auc.ravel().tolist())
    assert table["encoder"].unique(maintain_order=True).to_list() == ["strong", "weak"]


def test_the_geometry_comes_with_its_data_and_draws_the_same_again(
    dataset: RoutingDataset, stores: list[MemoryActivations], tmp_path: Path
) -> None:
    geometry = survey(stores[0], dataset, sites=SITES, dim=4)
    first = draw_geometry(geometry, tmp_path / "a", encoder="strong")
    again = draw_geometry(geometry, tmp_path / "b", encoder="strong")
    assert [p.read_bytes() for p in first] == [p.read_bytes() for p in again]
    table = pl.read_csv(first[2])
    assert len(table) == len(SITES)
    np.testing.assert_allclose(table["anisotropy"].to_numpy(), geometry.anisotropy)
    np.testing.assert_allclose(table["fisher:target-1"].to_numpy(), geometry.fisher[:, 1])
