"""Frames: four bytes of length, big end first, then JSON in UTF-8."""

import asyncio
import json
import struct
from typing import Any, Protocol, runtime_checkable

_HEAD = struct.Struct(">I")
MOST_BYTES = 128 << 20
"""A longer frame is none of ours."""


@runtime_checkable
class Readable(Protocol):
    """What bytes are read from."""

    def read(self, size: int, /) -> bytes:
        """So many bytes; fewer at the end."""
        ...


class FrameError(ValueError):
    """What came is no whole frame."""


def pack(value: Any) -> bytes:
    """A frame; what isn't ASCII is escaped, so that lone surrogates pass as well."""
    content = json.dumps(value, separators=(",", ":"), allow_nan=False).encode()
    return _HEAD.pack(len(content)) + content


async def receive(reader: asyncio.StreamReader) -> Any:
    """The next frame of a stream.

    Raises:
        FrameError: The stream ends, or it is no frame.
    """
    try:
        length = _length(await reader.readexactly(_HEAD.size))
        return _value(await reader.readexactly(length))
    except asyncio.IncompleteReadError:
        raise FrameError("the stream has ended") from None


def read(file: Readable) -> Any:
    """The next frame of a file; None at its end.

    Raises:
        FrameError: It ends within a frame, or it is no frame.
    """
    head = file.read(_HEAD.size)
    if not head:
        return None
    if len(head) < _HEAD.size:
        raise FrameError("the file ends within a frame")
    length = _length(head)
    content = file.read(length)
    if len(content) < length:
        raise FrameError("the file ends within a frame")
    return _value(content)


def _length(head: bytes) -> int:
    length: int = _HEAD.unpack(head)[0]
    if length > MOST_BYTES:
        raise FrameError(f"a frame of {length:,} bytes; at most {MOST_BYTES:,} are taken")
    return length


def _value(content: bytes) -> Any:
    try:
        return json.loads(content)
    except (ValueError, RecursionError):  # covers bad JSON and bad UTF-8; neither is quoted
        raise FrameError(f"a frame of {len(content):,} bytes isn't JSON") from None
