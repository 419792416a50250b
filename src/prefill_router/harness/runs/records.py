"""The whole records of answers, read in the order asked for, a few at a time."""

import sqlite3
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path

from prefill_router.errors import CorruptError
from prefill_router.harness.answer import Answer
from prefill_router.harness.runs import codec, schema

_AT_ONCE = 256


def checksum(stored: str | bytes) -> int:
    """CRC-32 of a record as it is stored."""
    return zlib.crc32(stored.encode() if isinstance(stored, str) else stored)


def read_records(
    database: sqlite3.Connection, folder: Path, wanted: Sequence[int]
) -> Iterator[Answer]:
    """The answers with these numbers, in this order.

    Raises:
        CorruptError: A record is missing, or isn't what was written.
    """
    for start in range(0, len(wanted), _AT_ONCE):
        part = wanted[start : start + _AT_ONCE]
        marks = ",".join("?" * len(part))
        query = f"SELECT seq, checksum, body FROM records WHERE seq IN ({marks})"
        try:
            rows = {seq: (check, body) for seq, check, body in database.execute(query, part)}
        except sqlite3.Error as error:
            raise schema.told(error, folder) from None
        for seq in part:
            yield _answer(rows.get(seq), seq, folder)


def _answer(row: tuple[object, object] | None, seq: int, folder: Path) -> Answer:
    try:
        if row is None or not isinstance(row[1], str | bytes) or checksum(row[1]) != row[0]:
            raise ValueError
        return codec.answer_from_text(codec.unpack(row[1]))
    except ValueError:
        raise CorruptError(
            f"record {seq} of {folder / schema.DATABASE} isn't what was written; copy the run "
            "again, or begin a new one"
        ) from None
