"""Files in Switchyard's format that hold something else are refused, unread where they may harm."""

import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any
from zipfile import ZIP_DEFLATED, ZipFile

import pytest
import torch

from packages.router.tests.router.switchyard_files import theirs, write_checkpoint
from prefill_router.errors import ConfigError, FormatError
from prefill_router.router import SwitchyardCheckpoint

Damage = Callable[[dict[str, Any]], object]


def remove_at(*path: str | int) -> Damage:
    def damage(value: Any) -> None:
        for name in path[:-1]:
            value = value[name]
        del value[path[-1]]

    return damage


def set_at(new: Any, *path: str | int) -> Damage:
    def damage(value: Any) -> None:
        for name in path[:-1]:
            value = value[name]
        value[path[-1]] = new

    return damage


DAMAGES: dict[str, tuple[Damage, str]] = {
    "version": (set_at(2, "format_version"), "format_version"),
    "view": (set_at("chat", "encoder", "view"), "encoder.view"),
    "activation": (set_at("GELU", "architecture", "activation"), "architecture.activation"),
    "ensemble": (set_at("mean", "architecture", "ensemble_reduction"), "ensemble_reduction"),
    "pooling": (set_at("mean", "feature_pipeline", "pooling"), "feature_pipeline.pooling"),
    "no encoder": (remove_at("encoder"), "encoder: Field required"),
    "no networks": (set_at([], "model_state_dicts"), "model_state_dicts"),
    "no models": (set_at([], "models"), "models"),
    "last layer": (
        set_at([3, 4], "feature_pipeline", "selected_layers"),
        "must differ and be below",
    ),
    "layer twice": (
        set_at([3, 3], "feature_pipeline", "selected_layers"),
        "must differ and be below",
    ),
    "no layer": (remove_at("feature_pipeline", "layer_mean", "3"), "layer_mean[3] is missing"),
    "zero std": (
        set_at(torch.zeros(16), "feature_pipeline", "layer_std", "1"),
        "layer_std[1] holds other numbers; it must be a tensor of finite positive numbers, [16]",
    ),
    "nan": (set_at(torch.full((16,), torch.nan), "feature_pipeline", "pca_mean"), "other numbers"),
    "integers": (
        set_at(torch.ones(16, dtype=torch.long), "feature_pipeline", "pca_mean"),
        "pca_mean",
    ),
    "list": (set_at([0.0] * 16, "feature_pipeline", "scaler_mean"), "scaler_mean is a list"),
    "huge": (
        set_at(torch.ones(1, 1).expand(10**9, 16), "feature_pipeline", "pca_components"),
        "feature_pipeline: 32,000,000,064 numbers; at most",
    ),
    "width": (set_at(torch.ones(5, 15), "feature_pipeline", "pca_components"), "[any, 16]"),
    **{
        f"no {name}": (remove_at("model_state_dicts", 1, name), f"{name} of network 1 is missing")
        for name in ("adapters.2.weight", "trunk.0.weight", "trunk.0.bias", "heads.0.bias")
    },
    "head": (set_at(torch.ones(2, 4), "model_state_dicts", 0, "heads.1.weight"), "[1, 4]"),
    "no sizes": (set_at(5, "feature_pipeline", "pca_components"), "no tensor of numbers"),
    "many networks": (set_at([{}] * 1001, "model_state_dicts"), "model_state_dicts"),
}


@pytest.mark.parametrize("case", DAMAGES)
def test_a_checkpoint_with_something_else_in_it_is_refused(case: str, tmp_path: Path) -> None:
    damage, reason = DAMAGES[case]
    value = theirs()
    damage(value)
    path = write_checkpoint(value, tmp_path)
    with pytest.raises(FormatError) as error:
        SwitchyardCheckpoint.read(path)
    assert str(error.value).startswith(f"{path}: ")
    assert reason in str(error.value)


def test_what_would_fill_the_memory_is_refused_unread(tmp_path: Path) -> None:
    """A network that is named a thousand times, in 0.7 MB, and a file that grows as it is read."""
    value = theirs(targets=1)
    weights = {"adapters.0": (400, 5), "trunk.0": (400, 400), "heads.0": (1, 400)}
    state = {f"{name}.weight": torch.ones(shape) for name, shape in weights.items()}
    state |= {f"{name}.bias": torch.ones(shape[0]) for name, shape in weights.items()}
    value["model_state_dicts"] = [state] * 1000
    path = write_checkpoint(value, tmp_path)
    assert path.stat().st_size < 800_000
    with pytest.raises(FormatError, match="at most 134,217,728 are read"):
        SwitchyardCheckpoint.read(path)
    packed = tmp_path / "packed.pt"
    with (
        ZipFile(write_checkpoint(theirs(), tmp_path)) as original,
        ZipFile(packed, "w", ZIP_DEFLATED) as small,
    ):
        for name in original.namelist():
            small.writestr(name, original.read(name))
    with pytest.raises(FormatError, match="isn't a file of tensors"):
        SwitchyardCheckpoint.read(packed)


class Runs:
    def __reduce__(self) -> tuple[Any, ...]:
        return (Path.touch, (Path("touched"),))


def test_files_of_anything_but_tensors_are_refused_unread(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    complete = write_checkpoint(theirs(), tmp_path).read_bytes()
    contents = {
        "empty": b"",
        "words": b"no tensors",
        "half": complete[: len(complete) // 2],
        "pickle": pickle.dumps({"format_version": 1, "run": Runs()}),
    }
    for name, content in contents.items():
        (tmp_path / name).write_bytes(content)
        with pytest.raises(FormatError, match="isn't a file of tensors"):
            SwitchyardCheckpoint.read(tmp_path / name)
    with pytest.raises(FormatError, match="isn't a file of tensors"):
        SwitchyardCheckpoint.read(write_checkpoint(theirs() | {"run": Runs()}, tmp_path))
    assert not (tmp_path / "touched").exists()
    with pytest.raises(ConfigError, match="can't be read: No such file"):
        SwitchyardCheckpoint.read(tmp_path / "gone.pt")
