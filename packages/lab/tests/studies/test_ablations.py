"""The layer-selection ablation over pools and encoders."""

import json
from pathlib import Path

import pytest

from packages.router.tests.fakes.planted_signal import PLANTED, states_of
from prefill_router.data import split
from prefill_router.errors import ConfigError
from prefill_router.layers import ablation, search, survey
from prefill_router.layers.selection import candidate_sites
from prefill_router.reporting.report_files import write_report_files
from prefill_router.testing import FakeEncoder, make_routing_dataset
from prefill_router_lab.studies.ablations import (
    FISHER,
    JOINT,
    LIMIT,
    NEAR,
    AblationOptions,
    AblationStudy,
    ablation_study,
    summary,
)

ANSWERS = make_routing_dataset(queries=220, targets=4, seed=2)
TRAIN = ANSWERS.select(split(ANSWERS)["train"])
POOLS = {
    "all": TRAIN,
    "cheap": TRAIN.select(targets=TRAIN.pool.names[:2]),
    "elsewhere": make_routing_dataset(queries=30, seed=9),
}
STORES = [
    states_of(ANSWERS),
    states_of(ANSWERS, encoder=FakeEncoder(name="deaf", signal=0.0)),
]


@pytest.fixture(scope="module")
def study() -> AblationStudy:
    return ablation_study(POOLS, STORES, AblationOptions(dim=6))


@pytest.mark.slow
def test_the_planted_layer_is_found_in_every_pool(study: AblationStudy) -> None:
    names = [(row.pool, row.encoder) for row in study.rows]
    assert names == [("all", "fake"), ("all", "deaf"), ("cheap", "fake"), ("cheap", "deaf")]
    for row in study.rows:
        if row.encoder == "fake":
            assert {site.layer for site in row.ways[FISHER].sites or ()} == {PLANTED}
            assert row.behind == 0
            assert row.practical["Random"] < row.practical[FISHER] - 0.1
        assert row.short >= 0
    assert LIMIT not in study.rows[0].practical


@pytest.mark.slow
def test_rows_are_the_layers_own(study: AblationStudy) -> None:
    sites = candidate_sites(STORES[1], poolings=("last",))
    found = survey(STORES[1], TRAIN, sites=sites, dim=6)
    expected = ablation(found, search(STORES[1], TRAIN, sites=sites, dims=(6,)), dim=6)
    assert study.rows[1].ways == expected


def test_several_layers_know_what_the_planted_one_knows(study: AblationStudy) -> None:
    for row in study.rows:
        assert set(row.blocks) == {JOINT, NEAR}
        if row.encoder == "fake":
            assert row.auc[LIMIT] - 0.06 < row.blocks[JOINT] < row.auc[LIMIT] + 0.06
        else:  # nothing is known, out of fold
            assert max(row.blocks.values()) < 0.6


def test_a_store_that_lacks_a_pool_is_told(study: AblationStudy) -> None:
    assert study.skipped == (("elsewhere", "fake"), ("elsewhere", "deaf"))
    assert "Left out: elsewhere with deaf" in " ".join(summary(study))
    with pytest.raises(ConfigError, match=r"2 stores were given; none has .* \['elsewhere'\]"):
        ablation_study({"elsewhere": POOLS["elsewhere"]}, STORES)
    with pytest.raises(ConfigError, match="0 stores were given"):
        ablation_study(POOLS, [])


@pytest.mark.slow
def test_it_is_written(study: AblationStudy, tmp_path: Path) -> None:
    write_report_files(study.report(title="Layers", facts={}), tmp_path)
    output = json.loads((tmp_path / "layers.json").read_text())
    assert output["fisher_best"] == study.best
    assert len(output["rows"]) == 4
    page = (tmp_path / "index.html").read_text()
    assert "cheap, deaf" in page
    assert f"in {study.best} of 4 combinations" in page
    assert (tmp_path / "figures" / "layers.png").stat().st_size > 1000
