"""Mangled bytes give an error of ours or a report, and never anything else."""

import json
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings, strategies as st

from prefill_router.data import read_dataset, write_dataset
from prefill_router.errors import DataError
from prefill_router.importers import import_dataset

from .samples import SAMPLES
from .test_contract import files_of

pytestmark = pytest.mark.slow

Mangle = Callable[[bytes], bytes]
TEXTUAL = [name for name in SAMPLES if not name.endswith("parquet")]


def _flip(place: float, value: int) -> Mangle:
    def mangle(data: bytes) -> bytes:
        at = int(place * len(data))
        return data[:at] + bytes([value]) + data[at + 1 :]

    return mangle


def _cut(start: float, end: float) -> Mangle:
    return lambda data: data[: int(start * len(data))] + data[int(end * len(data)) :]


def _insert(place: float, piece: bytes) -> Mangle:
    return lambda data: data[: int(place * len(data))] + piece + data[int(place * len(data)) :]


PLACE = st.floats(0, 1, exclude_max=True)
PIECES = st.one_of(
    st.binary(max_size=20),
    st.sampled_from(
        [
            b"null",
            b"NaN",
            b"1e999",
            b"-1",
            b'"',
            b"\n",
            b"[" * 2000,
            b"\\ud800",
            b"\xed\xa0\x80",
            b",",
        ]
    ),
)
MANGLES = st.one_of(
    st.builds(_flip, PLACE, st.integers(0, 255)),
    st.builds(_cut, PLACE, PLACE),
    st.builds(_insert, PLACE, PIECES),
)


@pytest.mark.parametrize("name", TEXTUAL)
@settings(max_examples=25, deadline=None)
@given(mangles=st.lists(MANGLES, min_size=1, max_size=4), strict=st.booleans())
def test_mangled_bytes(name: str, mangles: list[Mangle], strict: bool) -> None:
    sample = SAMPLES[name]
    with TemporaryDirectory() as folder:
        sources = sample.write(Path(folder))
        for file in files_of(sources):
            data = file.read_bytes()
            for mangle in mangles:
                data = mangle(data)
            file.write_bytes(data)
        try:
            dataset, report = import_dataset(
                sample.format, sources, columns=sample.columns, strict=strict
            )
        except DataError:
            return
        assert len(dataset) > 0
        assert report.rows_read >= report.rows_kept + report.duplicates
        assert not strict or report.malformed == 0


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3)
    ),
    max_leaves=5,
)
ABSURD = st.sampled_from([10**400, -(10**31), 1e308, "\ud800", "x" * 500, [], {}, [[]]])
STRUCTURED = [
    "long answers.jsonl",
    "wide answers.jsonl",
    "routerbench answers.jsonl",
    "routerarena",
    "mmlu_pro json",
    "llmrouterbench tree",
    "llmrouterbench jsonl",
]


def _replace(value: object, steps: list[int], by: object) -> object:
    """Replace the part of the value at the end of these steps."""
    if not steps or not isinstance(value, (list, dict)) or not value:
        return by
    if isinstance(value, list):
        at = steps[0] % len(value)
        return [*value[:at], _replace(value[at], steps[1:], by), *value[at + 1 :]]
    key = list(value)[steps[0] % len(value)]
    return {**value, key: _replace(value[key], steps[1:], by)}


@pytest.mark.parametrize("name", STRUCTURED)
@settings(max_examples=40, deadline=None)
@given(
    steps=st.lists(st.integers(0, 20), min_size=1, max_size=6),
    by=JSON | ABSURD,
    line=st.integers(0, 20),
)
def test_absurd_values(name: str, steps: list[int], by: object, line: int) -> None:
    sample = SAMPLES[name]
    with TemporaryDirectory() as folder:
        sources = sample.write(Path(folder))
        (file, *_) = files_of(sources)
        lines = file.read_text().splitlines()
        at = line % len(lines)
        lines[at] = json.dumps(_replace(json.loads(lines[at]), steps, by))
        file.write_text("\n".join(lines))
        try:
            dataset, report = import_dataset(sample.format, sources, columns=sample.columns)
        except DataError:
            return
        write_dataset(dataset, Path(folder) / "out")
        assert read_dataset(Path(folder) / "out").fingerprint == dataset.fingerprint
        assert report.rows_read >= report.rows_kept + report.duplicates
        json.dumps(report.to_dict(), allow_nan=False)


@pytest.mark.parametrize("name", [name for name in SAMPLES if name.endswith("parquet")])
@pytest.mark.parametrize("size", [0, 1, 3, 4, 8, 100, 500, -1, -4, -8, -100])
def test_truncated_parquet(name: str, size: int, tmp_path: Path) -> None:
    (file,) = SAMPLES[name].write(tmp_path)
    file.write_bytes(file.read_bytes()[:size])
    with pytest.raises(DataError, match="Parquet"):
        import_dataset(SAMPLES[name].format, [file], columns=SAMPLES[name].columns)
