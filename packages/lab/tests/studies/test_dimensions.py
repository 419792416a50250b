"""Pooling and PCA dimension: a planted layer is found, and nothing is on shuffled labels."""

import json
from pathlib import Path

import pytest

from packages.router.tests.fakes.planted_signal import PLANTED, shuffle_labels, states_of
from prefill_router.activations import Site
from prefill_router.data import split
from prefill_router.errors import ConfigError
from prefill_router.layers import ablation, search, survey
from prefill_router.reporting.report_files import write_report_files
from prefill_router.testing import FakeEncoder, make_routing_dataset
from prefill_router_lab.studies.dimensions import (
    DimensionOptions,
    DimensionStudy,
    dimension_study,
    summary,
)

ANSWERS = make_routing_dataset(queries=240, missing=0.05, seed=2)
TRAIN = ANSWERS.select(split(ANSWERS)["train"])
STATES = states_of(TRAIN)
OTHER = states_of(TRAIN, encoder=FakeEncoder(name="deaf", signal=0.0))
DIMS = (2, 6, 16)


@pytest.fixture(scope="module")
def study() -> DimensionStudy:
    return dimension_study([STATES, OTHER], TRAIN, DimensionOptions(dims=DIMS))


@pytest.mark.slow
def test_the_planted_layer_and_encoder_are_found(study: DimensionStudy) -> None:
    assert study.top.encoder == "fake"
    assert study.top.fisher > 0.9
    for cell in study.line("fake", ("last",)):
        sites = cell.ways["Fisher J"].sites
        assert cell.dim == 2 or {site.layer for site in sites or ()} == {PLANTED}
    assert all(cell.fisher < 0.65 for cell in study.cells if cell.encoder == "deaf")


def test_nothing_is_found_on_shuffled_labels() -> None:
    found = dimension_study([STATES], shuffle_labels(TRAIN), DimensionOptions(dims=(6,)))
    assert all(0.4 < cell.fisher < 0.6 for cell in found.cells)


@pytest.mark.slow
def test_every_cell_is_the_layers_own_ablation(study: DimensionStudy) -> None:
    sites = [Site(layer, "mean") for layer in (2, 3, 4)]
    grid = search(STATES, TRAIN, sites=sites, dims=(6,))
    expected = ablation(survey(STATES, TRAIN, sites=sites, dim=6), grid, dim=6, poolings=("mean",))
    [cell] = [cell for cell in study.line("fake", ("mean",)) if cell.dim == 6]
    assert cell.ways.to_dict() == expected.to_dict()
    assert cell.best >= cell.fisher


def test_every_combination_is_there(study: DimensionStudy) -> None:
    assert len(study.cells) == 2 * 3 * len(DIMS)
    assert study.lines[:3] == [("fake", ("last",)), ("fake", ("mean",)), ("fake", ("last", "mean"))]
    assert [cell.dim for cell in study.line("deaf", ("last",))] == list(DIMS)
    one = dimension_study([STATES], TRAIN, DimensionOptions(dims=(2,), poolings=("last",)))
    assert one.lines == [("fake", ("last",))]


def test_more_components_than_there_are_change_nothing() -> None:
    study = dimension_study([STATES], TRAIN, DimensionOptions(dims=(16, 40), poolings=("mean",)))
    assert study.cells[0].fisher == pytest.approx(study.cells[1].fisher)
    assert study.top.dim == 16
    assert "The states of fake have 16 dimensions; PCA can't keep more." in summary(study)


@pytest.mark.slow
def test_the_default_is_compared_with_the_best(tmp_path: Path, study: DimensionStudy) -> None:
    found = dimension_study([STATES], TRAIN, DimensionOptions(dims=(2, 100), poolings=("last",)))
    assert "With 100 components, the default of a router" in " ".join(summary(found))
    write_report_files(study.report(title="Dimensions", facts={}), tmp_path)
    output = json.loads((tmp_path / "dimensions.json").read_text())
    assert output["top"] == study.top.to_dict()
    assert len((tmp_path / "dimensions.csv").read_text().splitlines()) == 1 + len(study.cells)
    page = (tmp_path / "index.html").read_text()
    assert "deaf, last and mean" in page
    assert "BestLR" in page


@pytest.mark.parametrize("given", [{"dims": ()}, {"dims": (0,)}, {"poolings": ()}], ids=str)
def test_nothing_to_study_is_refused(given: dict[str, object]) -> None:
    with pytest.raises(ConfigError, match="it must be"):
        DimensionOptions(**given)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="give one for each encoder"):
        dimension_study([], TRAIN)
