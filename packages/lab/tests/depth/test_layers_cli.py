"""The commands `layers` and `sweep`."""

import json
from pathlib import Path

import numpy as np
import pytest
from click.testing import Result
from typer.testing import CliRunner

from prefill_router.activations import Site
from prefill_router.cli import app
from prefill_router.data import RoutingDataset, read_dataset, save_split, split, write_dataset
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


def store_options(store: Path) -> tuple[object, ...]:
    return "--store", store


def run(*arguments: object) -> Result:
    return CliRunner().invoke(app, [*map(str, arguments)], catch_exceptions=True)


def test_layers_prints_tables_and_draws(folder: Path, tmp_path: Path) -> None:
    result = run(
        "layers", folder / "data", *store_options(folder / "strong"), "--dim", 8, "--out", tmp_path
    )
    assert result.exit_code == 0, result.stderr
    for word in ("last.3", "anisotropy", "BestLR", "Fisher J"):
        assert word in result.stdout
    assert "what layers know" in result.stdout
    endings = ("png", "svg", "csv")
    names = {f"{name}.{ending}" for name in ("geometry", "depth") for ending in endings}
    assert {path.name for path in tmp_path.iterdir()} == names | {"ablation.csv"}


def test_layers_compares_stores(folder: Path, tmp_path: Path) -> None:
    both = (*store_options(folder / "strong"), *store_options(folder / "weak"))
    ask = ("layers", folder / "data", *both, "--dim", 8, "--out", tmp_path, "--json")
    value = json.loads(run(*ask).stdout)
    for rows in value.values():
        assert {row["encoder"] for row in rows} == {"strong", "weak"}
    best = {
        name: max(row["probe_auc"] for row in value["depth"] if row["encoder"] == name)
        for name in ("strong", "weak")
    }
    assert best["strong"] > best["weak"]
    names = {"depth.png", "depth.svg", "depth.csv", "ablation.csv"}
    assert {path.name for path in tmp_path.iterdir()} == names
    [alone] = [
        [row for row in value["geometry"] if row.pop("encoder") == "weak"],
    ]
    single = json.loads(run(*ask[:2], *store_options(folder / "weak"), "--dim", 8, "--json").stdout)
    assert single["geometry"] == alone


def test_layers_looks_at_train_rows_alone(folder: Path, tmp_path: Path) -> None:
    ask = (
        *store_options(folder / "strong"),
        "--dim",
        8,
        "--split",
        folder / "split.json",
        "--json",
    )
    dataset = read_dataset(folder / "data")
    correct = dataset.correct.copy()
    train = dataset.rows(split(dataset, seed=0)["train"])
    others = np.setdiff1d(np.arange(len(dataset)), train)
    correct[others] = 1 - correct[others]
    changed = RoutingDataset.of(dataset.queries, dataset.pool, correct)
    write_dataset(changed, tmp_path / "changed")
    found = run("layers", folder / "data", *ask), run("layers", tmp_path / "changed", *ask)
    assert found[0].exit_code == 0, found[0].stderr
    assert found[0].stdout == found[1].stdout


def test_layers_as_json(folder: Path) -> None:
    arguments = ("layers", folder / "data", *store_options(folder / "strong"), "--dim", 8, "--json")
    result = run(*arguments)
    value = json.loads(result.stdout)
    assert [row["layer"] for row in value["geometry"]] == [2, 2, 3, 3, 4, 4]
    assert [a["poolings"] for a in value["ablation"]] == [["last", "mean"], ["last"], ["mean"]]
    best = max(value["geometry"], key=lambda row: row["fisher_mean"])
    assert best["layer"] == 3
    assert run(*arguments, "--split", folder / "split.json").stdout == result.stdout
    last = json.loads(run(*arguments, "--pooling", "last", "--all-layers").stdout)
    assert [row["layer"] for row in last["geometry"]] == [0, 1, 2, 3, 4]


def test_sweep_prints_a_table_and_draws(folder: Path, tmp_path: Path) -> None:
    stores = ("--store", folder / "strong", "--store", folder / "weak")
    result = run("sweep", folder / "data", *stores, "--dim", 8, "--out", tmp_path)
    assert result.exit_code == 0, result.stderr
    assert "strong" in result.stdout
    assert {path.name for path in tmp_path.iterdir()} == {"sweep.png", "sweep.svg", "sweep.csv"}
    rows = json.loads(
        run("sweep", folder / "data", *stores, "--dim", 8, "--out", tmp_path, "--json").stdout
    )
    assert len(rows) == 6
    assert rows[0]["auc"] > rows[3]["auc"]


def test_bad_input_is_told(folder: Path, tmp_path: Path) -> None:
    result = run("layers", folder / "data", *store_options(folder / "strong"), "--pooling", "first")
    assert isinstance(result.exception, ConfigError)
    result = run("layers", folder / "data", *store_options(tmp_path / "none"))
    assert isinstance(result.exception, StoreError)
    more = make_routing_dataset(queries=210)
    write_dataset(more, tmp_path / "more")
    result = run("layers", tmp_path / "more", *store_options(folder / "strong"))
    assert isinstance(result.exception, StoreError)
    assert "lacks the states" in str(result.exception)
    sites = [Site(layer, "mean") for layer in (2, 3)]
    encode_dataset(more, FakeEncoder(name="whole"), tmp_path / "whole", sites=sites)
    both = (*store_options(tmp_path / "whole"), *store_options(folder / "strong"))
    result = run("layers", tmp_path / "more", *both)
    assert "lacks the states" in str(result.exception)
    assert "geometry" not in result.stderr  # refused before the rest is surveyed
