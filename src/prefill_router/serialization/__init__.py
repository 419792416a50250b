"""What is fitted is saved as the fields it declares; what is read back is checked by them."""

from prefill_router.serialization.declarations import Names, Saved, StrictModel
from prefill_router.serialization.kinds import Kinds
from prefill_router.serialization.parts import Part, read_plain, validated
from prefill_router.serialization.tensors import (
    AGAIN,
    NO_TENSORS,
    Shape,
    TensorFile,
    Tensors,
    check_names,
    read_tensors,
    take_tensors,
    under,
)

__all__ = [
    "AGAIN",
    "NO_TENSORS",
    "Kinds",
    "Names",
    "Part",
    "Saved",
    "Shape",
    "StrictModel",
    "TensorFile",
    "Tensors",
    "check_names",
    "read_plain",
    "read_tensors",
    "take_tensors",
    "under",
    "validated",
]
