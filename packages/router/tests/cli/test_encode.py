"""The command `prefill-router encode`."""

import json
from pathlib import Path

import pytest
from click.testing import Result
from typer.testing import CliRunner

from prefill_router.activations import ActivationStore
from prefill_router.cli import app
from prefill_router.cli.encode import _read_layers
from prefill_router.data import RoutingDataset, write_dataset
from prefill_router.errors import ConfigError, ProvenanceError
from prefill_router.testing import make_routing_dataset

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def dataset() -> RoutingDataset:
    return make_routing_dataset(queries=24)


@pytest.fixture(scope="module")
def folder(dataset: RoutingDataset, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("data") / "d"
    write_dataset(dataset, path)
    return path


def encode(*arguments: object) -> Result:
    return CliRunner().invoke(app, ["encode", *map(str, arguments)])


def test_it_tells_what_it_will_do_does_it_and_goes_on(
    folder: Path, dataset: RoutingDataset, tmp_path: Path
) -> None:
    out = tmp_path / "s"
    first = encode(
        folder, "--out", out, "--layers", "3-4", "--shard", "0/2", "--threads", 2, "--json"
    )
    assert first.exit_code == 0, first.stderr
    assert "24 prompts" in first.stderr
    assert "MB of disk" in first.stderr
    summary = json.loads(first.stdout)
    assert summary["workers"] == 2
    assert summary["peak_memory_bytes"] > 1 << 20
    assert "2 batches at once" in first.stderr
    assert summary["sites"] == ["last.3", "mean.3", "last.4", "mean.4"]
    second = encode(folder, "--out", out, "--layers", "3-4", "--max-tokens", 100)
    assert isinstance(second.exception, ProvenanceError)
    assert "max_tokens is 512, not 100" in str(second.exception)
    third = encode(folder, "--out", out, "--layers", "3,4")
    assert third.exit_code == 0, third.stderr
    assert f"encoded {24 - summary['encoded']} prompts" in third.stdout
    store = ActivationStore.open(out)
    assert store.missing(dataset.prompt_keys) == []
    assert store.provenance.to_dict() == summary["provenance"]


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["--shard", "2/2"], "--shard is '2/2'"),
        (["--pooling", "first"], "--pooling is 'first'"),
        (["--store-dtype", "int8"], "--store-dtype is 'int8'"),
        (["--layers", "3-x"], "--layers is '3-x'"),
        (["--layers", "9"], "layers 0 to 6"),
        (["--dtype", "int8"], "dtype is 'int8'"),
        (["--template", "chat"], "no chat template"),
        (["--encoder", "./nowhere"], "isn't a folder"),
    ],
)
def test_options_that_make_no_sense_are_refused_before_anything_is_written(
    arguments: list[str], reason: str, folder: Path, tmp_path: Path
) -> None:
    result = encode(folder, "--out", tmp_path / "s", *arguments)
    assert isinstance(result.exception, ConfigError)
    assert reason in str(result.exception)
    assert not (tmp_path / "s").exists()


def test_layers_are_read_as_written() -> None:
    assert _read_layers("3-6") == (3, 4, 5, 6)
    assert _read_layers("8, 0,4") == (0, 4, 8)
    assert _read_layers("all") is None
    for wrong in ("", "a", "3-", "-3", "1.5", "5-4"):
        with pytest.raises(ConfigError, match="--layers"):
            _read_layers(wrong)
