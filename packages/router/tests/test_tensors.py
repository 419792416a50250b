"""Forged files of tensors are refused with the reason."""

import json
import struct
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from prefill_router.errors import CorruptError
from prefill_router.serialization import read_tensors


def craft_file(kind: str, shape: Sequence[int], size: int, **more: Any) -> bytes:
    tensors = {"a": {"dtype": kind, "shape": shape, "data_offsets": [0, size]}, **more}
    header = json.dumps(tensors).encode()
    return struct.pack("<Q", len(header)) + header + bytes(size)


CRAFTED_FILES = {
    "bfloat16": (craft_file("BF16", [2], 4), "'a' of the type BF16; supported are F64, F32"),
    "float8": (craft_file("F8_E4M3", [2], 2), "of the type F8_E4M3"),
    "float8 without numbers": (craft_file("F8_E5M2", [0], 0), "of the type F8_E5M2"),
    "float4": (craft_file("F4", [2], 1), "of the type F4"),
    "complex": (craft_file("C64", [1], 8), "of the type C64"),
    "huge and empty": (craft_file("F32", [0, 2**62], 0), "of the shape .0, 4611686018427387904."),
    "empty and huge": (craft_file("F32", [2**62, 0], 0), "of the shape"),
    "of many axes": (craft_file("F32", [1] * 100, 4), "at most 8 axes"),
    "no such type": (craft_file("F7", [1], 4), "isn't safetensors"),
    "a size of another": (craft_file("F32", [3], 4), "isn't safetensors"),
    "nothing": (b"", "isn't safetensors"),
    "a header without end": (struct.pack("<Q", 2**63) + b"{}", "isn't safetensors"),
    "deep": (struct.pack("<Q", 10**5) + b"[" * 10**5, "isn't safetensors"),
}


@pytest.mark.parametrize("name", CRAFTED_FILES)
def test_what_is_crafted_is_refused(name: str, tmp_path: Path) -> None:
    content, why = CRAFTED_FILES[name]
    (tmp_path / "weights.safetensors").write_bytes(content)
    with pytest.raises(CorruptError, match=why):
        read_tensors(tmp_path / "weights.safetensors")


def test_what_is_written_is_read(tmp_path: Path) -> None:
    kinds = (np.float64, np.float32, np.float16, np.int64, np.int8, np.uint8, np.bool_)
    tensors = {str(np.dtype(kind)): np.ones((2, 3), kind) for kind in kinds}
    tensors["empty"] = np.empty((0, 7), np.float32)
    save_file(tensors, tmp_path / "a.safetensors", metadata={"made": "here"})
    content = read_tensors(tmp_path / "a.safetensors")
    assert content.metadata == {"made": "here"}
    assert content.tensors.keys() == tensors.keys()
    for name, tensor in tensors.items():
        assert content.tensors[name].dtype == tensor.dtype
        np.testing.assert_array_equal(content.tensors[name], tensor)


def test_what_is_not_there_is_told(tmp_path: Path) -> None:
    with pytest.raises(CorruptError, match="isn't safetensors"):
        read_tensors(tmp_path / "nowhere")
