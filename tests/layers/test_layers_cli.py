"""The commands `layers` and `sweep`."""

import json
from pathlib import Path

import pytest
from click.testing import Result
from typer.testing import CliRunner

from prefill_router.activations import Site
from prefill_router.cli import app
from prefill_router.data import save_split, split, write_dataset
from prefill_router.encoders import encode_dataset
from prefill_router.errors import ConfigError, StoreError
from prefill_router.testing import FakeEncoder, make_routing_dataset

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    base = tmp_path_factory.mktemp("layers")
    dataset = make_routing_dataset(queries=200)
    write_dataset(dataset, base / "data")
    sites = [Site(layer, pooling) for layer in range(5) for pooling in ("last", "mean")]
    for name, signal in (("strong", 8.0), ("weak", 1.0)):
        encoder = FakeEncoder(name=name, signal=signal)
        encode_dataset(dataset, encoder, base / name, sites=sites)
    save_split(split(dataset, seed=0), base / "split.json")
    return base


def stored(store: Path) -> tuple[object, ...]:
    return "--store", store


def run(*arguments: object) -> Result:
    return CliRunner().invoke(app, [*map(str, arguments)], catch_exceptions=True)


def test_layers_prints_tables_and_draws(folder: Path, tmp_path: Path) -> None:
    got = run("layers", folder / "data", *stored(folder / "strong"), "--dim", 8, "--out", tmp_path)
    assert got.exit_code == 0, got.stderr
    for word in ("last.3", "anisotropy", "BestLR", "Fisher J"):
        assert word in got.stdout
    names = {"geometry.png", "geometry.svg", "geometry.csv", "ablation.csv"}
    assert {path.name for path in tmp_path.iterdir()} == names


def test_layers_as_json(folder: Path) -> None:
    arguments = ("layers", folder / "data", *stored(folder / "strong"), "--dim", 8, "--json")
    got = run(*arguments)
    value = json.loads(got.stdout)
    assert [row["layer"] for row in value["geometry"]] == [2, 2, 3, 3, 4, 4]
    assert [a["poolings"] for a in value["ablation"]] == [["last", "mean"], ["last"], ["mean"]]
    best = max(value["geometry"], key=lambda row: row["fisher_mean"])
    assert best["layer"] == 3
    assert run(*arguments, "--split", folder / "split.json").stdout == got.stdout
    last = json.loads(run(*arguments, "--pooling", "last", "--all-layers").stdout)
    assert [row["layer"] for row in last["geometry"]] == [0, 1, 2, 3, 4]


def test_sweep_prints_a_table_and_draws(folder: Path, tmp_path: Path) -> None:
    stores = ("--store", folder / "strong", "--store", folder / "weak")
    got = run("sweep", folder / "data", *stores, "--dim", 8, "--out", tmp_path)
    assert got.exit_code == 0, got.stderr
    assert "strong" in got.stdout
    assert {path.name for path in tmp_path.iterdir()} == {"sweep.png", "sweep.svg", "sweep.csv"}
    rows = json.loads(
        run("sweep", folder / "data", *stores, "--dim", 8, "--out", tmp_path, "--json").stdout
    )
    assert len(rows) == 6
    assert rows[0]["auc"] > rows[3]["auc"]


def test_bad_input_is_told(folder: Path, tmp_path: Path) -> None:
    got = run("layers", folder / "data", *stored(folder / "strong"), "--pooling", "first")
    assert isinstance(got.exception, ConfigError)
    got = run("layers", folder / "data", *stored(tmp_path / "none"))
    assert isinstance(got.exception, StoreError)
    more = make_routing_dataset(queries=210)
    write_dataset(more, tmp_path / "more")
    got = run("layers", tmp_path / "more", *stored(folder / "strong"))
    assert isinstance(got.exception, StoreError)
    assert "lacks the states" in str(got.exception)
