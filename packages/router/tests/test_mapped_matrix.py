"""Matrices in mapped files: what they hold, and what they leave behind."""

import mmap
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from packages.router.tests.fitting.recipe_fits import PREFILL, SMALL, fit_recipe
from prefill_router import mapped_matrix


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The cache's folder, while every matrix counts as large."""
    monkeypatch.setattr(mapped_matrix, "LARGE", 0)
    monkeypatch.setenv("PREFILL_ROUTER_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def is_mapped(matrix: NDArray[Any]) -> bool:
    owner: Any = matrix
    while isinstance(owner, np.ndarray):
        owner = owner.base
    return isinstance(owner, mmap.mmap)


def test_a_large_matrix_is_mapped_and_its_file_has_no_name(cache: Path) -> None:
    matrix = mapped_matrix.empty(5, 3)
    matrix[:] = np.arange(15).reshape(5, 3)
    assert is_mapped(matrix)
    assert list(cache.iterdir()) == []
    wide = mapped_matrix.join_columns([matrix, matrix[:, :1]])
    few = mapped_matrix.take_rows(wide, np.array([4, 0]))
    assert is_mapped(wide)
    assert is_mapped(few)
    assert few.tolist() == [[12, 13, 14, 12], [0, 1, 2, 0]]


def test_a_small_matrix_is_held_in_memory() -> None:
    assert not is_mapped(mapped_matrix.empty(1000, 100))


def test_a_full_disk_leaves_the_matrix_in_memory(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any) -> None:
        raise OSError("no space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full)
    matrix = mapped_matrix.empty(5, 3)
    assert not is_mapped(matrix)
    assert matrix.shape == (5, 3)
    assert list(cache.iterdir()) == []


@pytest.mark.slow
@pytest.mark.parametrize("predictor", [SMALL, {"kind": "logistic", "c": 1.0}])
def test_a_router_is_the_same_to_the_byte(
    predictor: dict[str, Any], tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    features = [PREFILL, {"kind": "complexity"}]
    fit_recipe(features=features, predictor=predictor).save(tmp_path / "held")
    cache: Path = request.getfixturevalue("cache")
    fit_recipe(features=features, predictor=predictor).save(tmp_path / "mapped")
    assert cache.is_dir()  # so files were mapped there
    names = sorted(path.name for path in (tmp_path / "held").iterdir())
    assert names == sorted(path.name for path in (tmp_path / "mapped").iterdir())
    for name in names:
        assert (tmp_path / "mapped" / name).read_bytes() == (tmp_path / "held" / name).read_bytes()
