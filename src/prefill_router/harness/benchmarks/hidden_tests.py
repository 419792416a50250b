"""LiveCodeBench's private tests: JSON, or JSON that was pickled, compressed and written in base64.

Loading a pickle runs whatever code it holds. So it isn't loaded: its instructions are walked
through, and only those that push one text are let pass.
"""

import base64
import binascii
import json
import pickletools
import zlib
from typing import Any, Final, final

from prefill_router.errors import DataError
from prefill_router.importers import values

MAX_DECODED: Final = 2**29
"""Bytes of one problem's tests, decompressed."""
_FIELDS = ("input", "output", "testtype")
_TEXT = frozenset({"SHORT_BINUNICODE", "BINUNICODE", "BINUNICODE8"})
_HARMLESS = frozenset({"PROTO", "FRAME", "MEMOIZE", "BINPUT", "LONG_BINPUT"})


def decoded(cell: object, name: str, *, limit: int = MAX_DECODED) -> list[dict[str, str]]:
    """The tests of a cell: `input`, `output`, and `type`, which is stdin or functional.

    Args:
        cell: A list, the JSON of one, or that encoded as above.
        name: The cell's name, for messages.
        limit: The most bytes that it may decompress to.

    Raises:
        DataError: It isn't such a cell.
    """
    found = cell
    if isinstance(cell, str) and not cell[:64].lstrip().startswith("["):
        found = _pickled_text(_decompressed(cell, name, limit), name)
    if isinstance(found, str):
        try:
            found = json.loads(found)
        except (ValueError, RecursionError):
            raise DataError(f"{name} isn't JSON") from None
    if not isinstance(found, list):
        raise DataError(f"{name} is of the type {type(found).__name__}; it must be a list of tests")
    return [_test(item, name) for item in found]


def _test(item: Any, name: str) -> dict[str, str]:
    if not isinstance(item, dict):
        raise DataError(f"{name}: a test is a {type(item).__name__}; it must be an object")
    given, expected, kind = (values.text(item.get(f), f"{name}: {f}") for f in _FIELDS)
    if kind not in ("stdin", "functional"):
        raise DataError(f"{name}: a test's testtype must be stdin or functional")
    return {"input": given, "output": expected, "type": kind}


def _decompressed(cell: str, name: str, limit: int) -> bytes:
    try:
        packed = base64.b64decode(cell.encode("ascii"), validate=True)
        unpacker = zlib.decompressobj()
        data = unpacker.decompress(packed, limit)
    except (UnicodeEncodeError, binascii.Error, zlib.error):
        raise DataError(f"{name} is neither JSON nor compressed base64") from None
    if unpacker.unconsumed_tail:
        raise DataError(f"{name} unpacks to more than {limit:,} bytes")
    if not unpacker.eof:
        raise DataError(f"{name} is cut off; fetch the file again")
    return data


@final
class _TextAlone:
    """Takes a pickle's instructions in order, and the one text that they push."""

    def __init__(self) -> None:
        self.text: str | None = None

    def takes(self, instruction: str, argument: object) -> bool:
        """Whether the instruction may stand here."""
        if instruction in _TEXT and self.text is None and isinstance(argument, str):
            self.text = argument
            return True
        return instruction in _HARMLESS


def _pickled_text(data: bytes, name: str) -> str:
    """The text that a pickle holds, found without loading it."""
    found = _TextAlone()
    try:
        for opcode, argument, position in pickletools.genops(data):
            if opcode.name == "STOP":
                if found.text is None or position is None or position + 1 != len(data):
                    break
                return found.text
            if not found.takes(opcode.name, argument):
                raise DataError(
                    f"{name} is a pickle with the instruction {opcode.name}; one that holds a text "
                    "alone has none, so it isn't read: it could run code"
                )
    except (ValueError, UnicodeDecodeError, OverflowError):
        raise DataError(f"{name} is a broken pickle") from None
    raise DataError(f"{name} is a pickle of something else than one text")
