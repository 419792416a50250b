"""What a dataset's checksums catch, and the datasets that have none."""

import json
from pathlib import Path

import numpy as np
import pytest

from prefill_router.data import Origin, read_dataset, write_dataset
from prefill_router.errors import CorruptError, DataError, PrefillRouterError
from prefill_router.targets import read_pool, write_pool
from prefill_router.testing import make_routing_dataset

SUMS = "SHA256SUMS"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    dataset = make_routing_dataset(queries=30, missing=0.2)
    write_dataset(dataset, tmp_path / "d", origin=Origin.of("import", Path("a.csv")))
    return tmp_path / "d"


@pytest.mark.parametrize("name", ["queries.parquet", "outcomes.parquet", "pool.yaml", SUMS])
def test_a_flipped_bit_is_refused_or_changes_nothing(folder: Path, name: str) -> None:
    random = np.random.default_rng(len(name))
    before = read_dataset(folder)
    content = (folder / name).read_bytes()
    refusals = 0
    for place in random.integers(0, len(content), 60):
        damage = bytearray(content)
        damage[place] ^= 1 << int(random.integers(8))
        (folder / name).write_bytes(bytes(damage))
        try:
            dataset = read_dataset(folder)
        except PrefillRouterError:
            refusals += 1
            continue
        assert dataset.fingerprint == before.fingerprint
        assert dataset.pool == before.pool
        assert np.array_equal(dataset.observed_cost, before.observed_cost, equal_nan=True)
    assert refusals == 60 or name == SUMS


def test_a_dataset_without_checksums_is_read(folder: Path) -> None:
    before = read_dataset(folder)
    (folder / SUMS).unlink()
    (folder / "origin.json").unlink()
    assert read_dataset(folder).fingerprint == before.fingerprint


@pytest.mark.parametrize("name", ["queries.parquet", "outcomes.parquet", "pool.yaml"])
def test_a_file_that_is_gone_is_told(folder: Path, name: str) -> None:
    (folder / name).unlink()
    with pytest.raises(CorruptError, match=f"lacks the file {name}"):
        read_dataset(folder)


def test_a_pool_that_a_person_changes_takes_its_line_out(folder: Path) -> None:
    pool = folder / "pool.yaml"
    pool.write_text(pool.read_text().replace("target-1", "target-9"))
    with pytest.raises(CorruptError, match=r"pool\.yaml yourself, remove its line from SHA256SUMS"):
        read_dataset(folder)
    pool.write_text(pool.read_text().replace("target-9", "target-1") + "# mine\n")
    lines = (folder / SUMS).read_text().splitlines(keepends=True)
    (folder / SUMS).write_text("".join(line for line in lines if "pool.yaml" not in line))
    assert len(read_dataset(folder)) == 30


def test_a_pool_that_is_written_anew_is_checked_anew(folder: Path) -> None:
    pool = read_pool(folder / "pool.yaml").with_prices({"target-1": (7, 8)}, date="2026-11-20")
    write_pool(pool, folder / "pool.yaml")
    assert read_dataset(folder).pool == pool
    assert "pool.yaml" in (folder / SUMS).read_text()


def test_an_origin_is_of_whole_paths_and_tells_their_names_alone(tmp_path: Path) -> None:
    origin, other = (Origin.of("import", tmp_path / name / "a.csv") for name in "xy")
    assert origin != other
    assert origin == Origin.of("import", tmp_path / "x" / ".." / "x" / "a.csv")
    assert origin != Origin.of("export", tmp_path / "x" / "a.csv")
    origin.write(tmp_path)
    assert Origin.read(tmp_path) == origin
    assert str(tmp_path) not in (tmp_path / "origin.json").read_text()
    assert str(origin) == "made by import from a.csv"
    odd = Origin.of("import", tmp_path / "odd \udcff.csv")
    odd.write(tmp_path)
    assert Origin.read(tmp_path) == odd


@pytest.mark.parametrize("content", [b"", b"[]", b"{}", b"\xff", b"[" * 100_000])
def test_an_origin_that_can_not_be_read_is_unknown(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "origin.json").write_bytes(content)
    assert Origin.read(tmp_path) is None


def test_a_secret_in_a_source_is_not_kept(folder: Path) -> None:
    origin = Origin.of("export", "postgresql://somebody:secret@host/db")
    write_dataset(read_dataset(folder), folder, origin=origin)
    assert "secret" not in (folder / "origin.json").read_text()
    assert json.loads((folder / "origin.json").read_text())["sources"] == []


def test_labels_of_no_table_of_another_origin_are_lost(folder: Path) -> None:
    from prefill_router.data.storage import check_replaceable

    same, other = (Origin.of("import", Path(name)) for name in ("a.csv", "b.csv"))
    check_replaceable(folder)
    check_replaceable(folder, origin=same)
    check_replaceable(folder, origin=other, overwrite=True)
    with pytest.raises(DataError, match=r"made by import from a\.csv.* pass --overwrite"):
        check_replaceable(folder, origin=other)
    (folder / "origin.json").unlink()
    with pytest.raises(DataError, match=r"of an unknown origin.* pass --overwrite"):
        check_replaceable(folder, origin=same)
