"""Private tests are tests, and no pickle among them is ever loaded."""

import base64
import json
import pickle
import zlib
from pathlib import Path

import pytest
from hypothesis import given, strategies as st

from packages.lab.tests.benchmarks.task_files import pack_tests
from prefill_router.errors import DataError
from prefill_router_lab.benchmarks.livecodebench import decode_tests

TESTS = [{"input": "1 ü\n🦜", "output": "2", "testtype": "stdin"}]
DECODED = [{"input": "1 ü\n🦜", "output": "2", "type": "stdin"}]


def cell(data: bytes) -> str:
    return base64.b64encode(zlib.compress(data)).decode()


@pytest.mark.parametrize("protocol", [1, 2, 3, 4, 5])
def test_every_protocol_that_writes_text_in_unicode(protocol: int) -> None:
    assert decode_tests(pack_tests(TESTS, protocol=protocol), "private") == DECODED


def test_long_text_and_plain_json() -> None:
    long = [{"input": "x" * 100_000, "output": "", "testtype": "functional"}]
    assert decode_tests(pack_tests(long), "private")[0]["input"] == "x" * 100_000
    assert decode_tests(json.dumps(TESTS), "private") == DECODED
    assert decode_tests(f"  {json.dumps(TESTS)}", "private") == DECODED
    assert decode_tests(TESTS, "private") == DECODED


class Evil:
    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[object, tuple[object, ...]]:
        return (Path.touch, (self.path,))


def test_pickle_that_would_run_code_is_refused_and_runs_nothing(tmp_path: Path) -> None:
    trap = tmp_path / "sprung"
    data = pickle.dumps(Evil(trap))
    with pytest.raises(DataError, match="private is a pickle with the instruction"):
        decode_tests(cell(data), "private")
    assert not trap.exists()
    pickle.loads(data)
    assert trap.exists()  # it would have


@pytest.mark.parametrize(
    "data",
    [
        pickle.dumps(["a", "b"]),
        pickle.dumps({"a": 1}),
        pickle.dumps(b"[]"),
        pickle.dumps(None),
        pickle.dumps(("[]",)),
        pickle.dumps("[]", 0),
        b"\x80\x04\x8c\x02[]\x8c\x02[].",  # two texts
        b"\x80\x04.",
        b"\x80\x04\x8c\x02[].trailing",
        b"\x80\x04\x8c\x02[]",
        b"\x80\x04\x8c\xff[].",
        b"\x80\x04\x8c\x02\xff\xff.",
        b"\x80\x04\x8d\xff\xff\xff\xff\xff\xff\xff\x7f[].",
        b"cos\nsystem\n(S'true'\ntR.",
        b"",
        b"\xff\xff",
    ],
)
def test_pickle_of_anything_but_one_text_is_refused(data: bytes) -> None:
    with pytest.raises(DataError, match="private is a"):
        decode_tests(cell(data), "private")


@pytest.mark.parametrize(
    ("given_cell", "reason"),
    [
        ("!", "neither JSON nor compressed base64"),
        ("ü", "neither JSON nor compressed base64"),
        ("AAAA", "neither JSON nor compressed base64"),
        ("", "is cut off"),
        (pack_tests(TESTS)[:60], "is cut off"),
        (cell(pickle.dumps("[")), "isn't JSON"),
        (cell(pickle.dumps('{"a": 1}')), "is of the type dict"),
        (cell(pickle.dumps('[{"input": "\\ud800", "output": "", "testtype": "x"}]')), "UTF-8"),
        ("[" * 100_000, "isn't JSON"),
        (7, "is of the type int; it must be a list of tests"),
    ],
)
def test_broken_cells(given_cell: object, reason: str) -> None:
    with pytest.raises(DataError, match=reason):
        decode_tests(given_cell, "private")


@pytest.mark.slow
def test_bomb_is_not_unpacked() -> None:
    bomb = cell(b"\0" * 50_000_000)
    assert len(bomb) < 100_000
    with pytest.raises(DataError, match="unpacks to more than 1,000,000 bytes"):
        decode_tests(bomb, "private", limit=1_000_000)
    whole = pickle.dumps(json.dumps(TESTS))
    assert decode_tests(cell(whole), "private", limit=len(whole)) == DECODED


@given(st.binary(max_size=60))
def test_no_bytes_do_more_than_be_refused(data: bytes) -> None:
    for given_cell in (cell(data), base64.b64encode(data).decode()):
        try:
            tests = decode_tests(given_cell, "private")
        except DataError:
            continue
        assert isinstance(tests, list)
