"""The types that states are kept in, and the rounding that goes with them.

A predictor that was fitted on stored states must see the same numbers when a request is encoded on
the spot, so the states of both are rounded to the same type: to bfloat16 unless asked otherwise.
bfloat16 has the range of float32; float16 ends at 65,504, which residual streams exceed, and then
it is refused.
"""

from typing import Any, Literal

import numpy as np
from jaxtyping import Float32
from numpy.typing import NDArray

from prefill_router.errors import StoreError

Rounding = Literal["bfloat16", "float16", "float32"]
ROUNDINGS: tuple[Rounding, ...] = ("bfloat16", "float16", "float32")
ITEM_BYTES: dict[Rounding, int] = {"bfloat16": 2, "float16": 2, "float32": 4}
SAFETENSORS_NAME: dict[Rounding, str] = {"bfloat16": "BF16", "float16": "F16", "float32": "F32"}

_LOW_HALF = np.uint32(0x7FFF)
_SHIFT = np.uint32(16)
States = Float32[NDArray[np.float32], "row hidden"]


def pack(states: States, rounding: Rounding) -> NDArray[Any]:
    """States in the type they are kept in; bfloat16, which NumPy lacks, as its 16 bits.

    Raises:
        StoreError: A state is beyond the type's range.
    """
    if rounding == "float32":
        return states.astype("<f4")
    if rounding == "float16":
        with np.errstate(over="ignore"):
            packed: NDArray[Any] = states.astype("<f2")
        overflow = np.isinf(packed)
    else:
        packed = _to_bfloat16(states)
        overflow = (packed & 0x7FFF) == 0x7F80
    count = int((overflow & np.isfinite(states)).sum())
    if count:
        raise StoreError(
            f"{count} numbers, up to {np.abs(states).max():.6g}, are beyond the range of "
            f"{rounding}; store them as float32 or bfloat16"
        )
    return packed


def unpack(content: bytes | memoryview, rounding: Rounding, hidden: int) -> States:
    """The float32 states of packed bytes, row by row."""
    if rounding == "bfloat16":
        wide = np.frombuffer(content, dtype="<u2").astype(np.uint32) << _SHIFT
        return wide.view(np.float32).reshape(-1, hidden)
    packed = np.frombuffer(content, dtype="<f2" if rounding == "float16" else "<f4")
    return packed.astype(np.float32).reshape(-1, hidden)


def rounded(states: States, rounding: Rounding) -> States:
    """The states as a store of this type gives them back.

    Raises:
        StoreError: A state is beyond the type's range.
    """
    return unpack(pack(states, rounding).tobytes(), rounding, states.shape[1])


def _to_bfloat16(states: States) -> NDArray[np.uint16]:
    """Round to nearest, ties to even; finite numbers only."""
    bits = np.ascontiguousarray(states).view(np.uint32)
    return ((bits + _LOW_HALF + ((bits >> _SHIFT) & np.uint32(1))) >> _SHIFT).astype("<u2")
