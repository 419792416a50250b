"""The few messages of the ONNX format that a graph without weights consists of, as bytes.

A message of protobuf is a sequence of fields, each with its number in the schema (`onnx.proto` of
ONNX 1.12, IR version 8). The package `onnx` writes the same bytes, but takes 0.1 to 0.4 s to import
and 36 MB of disk, which is more than the rest of loading an encoder takes.
"""

import struct
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, Literal

FLOAT: Final = 1
INT32: Final = 6
"""The numbers of the types of tensors."""
ElementType = Literal[1, 6]
OperatorDomain = Literal["", "com.microsoft"]
_VARINT, _BYTES, _FIXED32 = 0, 2, 5
_FLOAT_ATTRIBUTE, _INT_ATTRIBUTE = 1, 2
_EXTERNAL = 1
_IR_VERSION = 8
_OPERATORS: Mapping[OperatorDomain, int] = {"": 17, "com.microsoft": 1}
"""The versions of the sets of operators; the second are those that ONNX Runtime adds."""


def node(
    operator: str,
    inputs: Sequence[str],
    output: str,
    *,
    domain: OperatorDomain = "",
    **attributes: int | float,
) -> bytes:
    """A node of a graph: an operator, the names of its inputs and output, and its attributes."""
    return b"".join(
        [
            *(_field(1, name) for name in inputs),
            _field(2, output),
            _field(4, operator),
            *(_field(5, _attribute(name, value)) for name, value in attributes.items()),
            _field(7, domain),
        ]
    )


def external_weight(name: str, shape: Sequence[int]) -> bytes:
    """A float32 initializer whose numbers are given to the session, not kept in the file."""
    location = _field(1, "location") + _field(2, "given")
    sizes = b"".join(_field(1, size) for size in shape)
    return b"".join(
        [sizes, _field(2, FLOAT), _field(8, name), _field(13, location), _field(14, _EXTERNAL)]
    )


def tensor_info(name: str, element: ElementType, shape: Sequence[int | str]) -> bytes:
    """An input or output of a graph; axes are sizes, or names where they vary."""
    axes = b"".join(_field(1, _field(1 if isinstance(axis, int) else 2, axis)) for axis in shape)
    return _field(1, name) + _field(2, _field(1, _field(1, element) + _field(2, axes)))


def model(
    name: str,
    *,
    nodes: Iterable[bytes],
    weights: Mapping[str, Sequence[int]],
    inputs: Iterable[bytes],
    outputs: Iterable[bytes],
) -> bytes:
    """A file of the ONNX format.

    Args:
        name: The graph's name.
        nodes: Its nodes, in the order of computation.
        weights: The shapes of its weights, by name.
        inputs: Its inputs, from `tensor_info`.
        outputs: Its outputs, from `tensor_info`.
    """
    initializers = (external_weight(weight, shape) for weight, shape in weights.items())
    graph = b"".join(
        [
            *(_field(1, part) for part in nodes),
            _field(2, name),
            *(_field(5, part) for part in initializers),
            *(_field(11, part) for part in inputs),
            *(_field(12, part) for part in outputs),
        ]
    )
    operators = (_field(1, domain) + _field(2, number) for domain, number in _OPERATORS.items())
    versions = b"".join(_field(8, part) for part in operators)
    return _field(1, _IR_VERSION) + _field(7, graph) + versions


def _attribute(name: str, value: int | float) -> bytes:
    if isinstance(value, int):
        return _field(1, name) + _field(3, value) + _field(20, _INT_ATTRIBUTE)
    return _field(1, name) + _field(2, value) + _field(20, _FLOAT_ATTRIBUTE)


def _field(number: int, value: int | float | str | bytes) -> bytes:
    """A field of a message: an integer, a float32, or the length and bytes of text or a message."""
    if isinstance(value, int):
        return _varint(number << 3 | _VARINT) + _varint(value)
    if isinstance(value, float):
        return _varint(number << 3 | _FIXED32) + struct.pack("<f", value)
    content = value.encode() if isinstance(value, str) else value
    return _varint(number << 3 | _BYTES) + _varint(len(content)) + content


def _varint(value: int) -> bytes:
    """A non-negative integer in base 128, the least digits first."""
    low, rest = value & 0x7F, value >> 7
    return bytes([low | 0x80]) + _varint(rest) if rest else bytes([low])
