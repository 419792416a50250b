"""Files of tensors: what somebody else wrote is either read, or refused with the reason."""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from safetensors import SafetensorError, safe_open

from prefill_router.errors import CorruptError

_READ = ("F64", "F32", "F16", "I64", "I32", "I16", "I8", "U8", "BOOL")
_MOST_AXES = 8
_MOST_NUMBERS = 2**40


class TensorFile(NamedTuple):
    """What a file of tensors holds.

    Attributes:
        tensors: By name.
        metadata: Texts that stand beside them.
    """

    tensors: dict[str, np.ndarray]
    metadata: Mapping[str, str]


def read_tensors(path: Path) -> TensorFile:
    """Read a safetensors file.

    Raises:
        CorruptError: It isn't one, or holds what no array of NumPy can be.
    """
    try:
        with safe_open(path, framework="numpy") as file:
            tensors = {name: _tensor(file, name, path) for name in file.keys()}  # noqa: SIM118
            return TensorFile(tensors, file.metadata() or {})
    except (SafetensorError, OSError, ValueError) as error:
        raise CorruptError(f"{path} isn't safetensors: {error}; copy the folder again") from None


def _tensor(file: Any, name: str, path: Path) -> np.ndarray:
    found = file.get_slice(name)
    kind, shape = str(found.get_dtype()), list(found.get_shape())
    if kind not in _READ:
        raise CorruptError(
            f"{path} holds the tensor {name!r} of the type {kind}; read are {', '.join(_READ)}"
        )
    size = math.prod(max(axis, 1) for axis in shape)  # an axis of none makes the file no larger
    if len(shape) > _MOST_AXES or size > _MOST_NUMBERS:
        raise CorruptError(
            f"{path} holds the tensor {name!r} of the shape {shape[:_MOST_AXES]}; it must have at "
            f"most {_MOST_AXES} axes, of {_MOST_NUMBERS:,} numbers together"
        )
    return np.asarray(file.get_tensor(name))
