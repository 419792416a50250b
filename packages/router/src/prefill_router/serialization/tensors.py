"""Saved arrays: safetensors files, and the checks on each array.

A file from elsewhere is either read, or refused with the reason.
"""

import math
from collections.abc import Collection, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from pydantic.fields import FieldInfo
from safetensors import SafetensorError, safe_open

from prefill_router.errors import CorruptError
from prefill_router.options import describe_bounds, find_outside, read_bounds

_TYPES = ("F64", "F32", "F16", "I64", "I32", "I16", "I8", "U8", "BOOL")
_MOST_AXES = 8
_MOST_NUMBERS = 2**40
REMEDY = "copy or make the router again"

Shape = tuple[int, ...]
Tensors = Mapping[str, NDArray[Any]]
NO_TENSORS: Tensors = MappingProxyType({})


class TensorFile(NamedTuple):
    """The content of a safetensors file.

    Attributes:
        tensors: The arrays by name.
        metadata: The file's texts by name.
    """

    tensors: dict[str, np.ndarray]
    metadata: Mapping[str, str]


def read_tensors(path: Path) -> TensorFile:
    """Read a safetensors file.

    Raises:
        CorruptError: The file isn't safetensors, or holds a tensor that NumPy can't represent.
    """
    try:
        with safe_open(path, framework="numpy") as file:
            tensors = {name: _read_tensor(file, name, path) for name in file.keys()}  # noqa: SIM118
            return TensorFile(tensors, file.metadata() or {})
    except (SafetensorError, OSError, ValueError) as error:
        raise CorruptError(f"{path} isn't safetensors: {error}; copy the folder again") from None


def _read_tensor(file: Any, name: str, path: Path) -> np.ndarray:
    entry = file.get_slice(name)
    kind, shape = str(entry.get_dtype()), list(entry.get_shape())
    if kind not in _TYPES:
        raise CorruptError(
            f"{path} holds the tensor {name!r} of the type {kind}; supported are "
            f"{', '.join(_TYPES)}"
        )
    size = math.prod(max(axis, 1) for axis in shape)  # an axis of length 0 mustn't hide the others
    if len(shape) > _MOST_AXES or size > _MOST_NUMBERS:
        raise CorruptError(
            f"{path} holds the tensor {name!r} of the shape {shape[:_MOST_AXES]}; it must have at "
            f"most {_MOST_AXES} axes, of {_MOST_NUMBERS:,} numbers together"
        )
    return np.asarray(file.get_tensor(name))


def take_tensors(
    tensors: Tensors, shapes: Mapping[str, Shape], *, what: str = "the predictor"
) -> list[NDArray[Any]]:
    """The named arrays, in order.

    Args:
        tensors: The arrays by name.
        shapes: The name and shape of every array that must be there; all are float32 and finite.
        what: The owner of the arrays, for error messages.

    Raises:
        CorruptError: A name is missing or unknown, or a shape, type or value is wrong.
    """
    check_names(tensors, shapes, what)
    for name, shape in shapes.items():
        check_array(tensors[name], shape, "float32", f"{what}'s array {name}")
    return [tensors[name] for name in shapes]


def under(tensors: Tensors, start: str) -> dict[str, NDArray[Any]]:
    """The tensors whose names begin with `start`, by the rest of their names."""
    return {name.removeprefix(start): v for name, v in tensors.items() if name.startswith(start)}


def check_names(tensors: Tensors, names: Collection[str], what: str) -> None:
    """Check that exactly these arrays are there.

    Raises:
        CorruptError: An array is missing or unknown.
    """
    if set(tensors) != set(names):
        lacking, unknown = sorted(set(names) - set(tensors)), sorted(set(tensors) - set(names))
        wrong = [f"lacks the arrays {lacking}"] if lacking else []
        wrong += [f"has the unknown arrays {unknown}"] if unknown else []
        raise CorruptError(f"{what} {' and '.join(wrong)}; got {sorted(tensors)}; {REMEDY}")


def check_array(
    array: NDArray[Any], shape: Shape, dtype: str, what: str, *, finite: bool = True
) -> None:
    """Check an array's shape and type, and that its numbers are finite.

    Raises:
        CorruptError: The shape or type differs, or a number isn't finite.
    """
    is_sound = array.shape == shape and array.dtype == np.dtype(dtype)
    if not is_sound or (finite and array.dtype.kind == "f" and not np.isfinite(array).all()):
        raise CorruptError(
            f"{what} must be finite {dtype} {shape}; got {array.dtype} {array.shape}; {REMEDY}"
        )


def check_bounds(array: NDArray[Any], bounds: FieldInfo, what: str) -> None:
    """Check that an array's numbers are within the bounds of its field; NaN passes.

    pydantic checks a list one by one: 80 ms for a million numbers, against 1 ms here.

    Raises:
        CorruptError: A number is out of bounds.
    """
    limits = read_bounds([bounds])
    outside = find_outside(array, limits)
    if np.any(outside):
        low, high = np.nanmin(array), np.nanmax(array)
        words = describe_bounds(limits)
        raise CorruptError(f"{what} are from {low} to {high}; they must be {words}; {REMEDY}")
