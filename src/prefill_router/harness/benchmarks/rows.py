"""The rows of a file of questions: JSON Lines, a JSON list, CSV or Parquet.

Unlike an importer's rows, of which one that can't be understood is left out, a malformed row of
questions ends the reading: a benchmark without some of its questions is another benchmark.
"""

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NoReturn

from prefill_router.errors import DataError, FormatError
from prefill_router.importers import sources, tables
from prefill_router.importers.base import Collector, Place
from prefill_router.importers.tables import Record

MAX_LINE = 2**30
"""Longest line of JSON Lines, in characters: a problem's tests can have hundreds of megabytes."""
JSON_LINES = (".jsonl", ".ndjson")
Row = tuple[Place, Record]
"""A row, and where it stands."""
SUFFIXES = (*JSON_LINES, ".json", ".csv", ".parquet")


def rows(path: Path, *, needs: Sequence[str], wants: Sequence[str] = ()) -> Iterator[Row]:
    """The rows of a file, each with its place.

    Args:
        path: The file.
        needs: Fields that each row must have.
        wants: Further fields, read where they are there.

    Raises:
        FormatError: It isn't such a file, or a row is malformed or lacks a field.
    """
    suffix = path.suffix.lower()
    if suffix in JSON_LINES:
        found = json_lines(path)
    elif suffix == ".json":
        found = _json_list(path)
    elif suffix in SUFFIXES:
        found = tables.records(path, Collector(strict=True), needs=needs, wants=wants)
    else:
        raise FormatError(
            f"can't hold tasks; their files' names end in {', '.join(SUFFIXES)}", file=path
        )
    for place, record in found:
        lacking = [name for name in needs if name not in record]
        if lacking:
            raise FormatError(f"lacks {lacking}", file=place.file, line=place.line)
        yield place, record


def json_lines(path: Path) -> Iterator[Row]:
    """The objects of a JSON Lines file in UTF-8, with or without a byte order mark.

    Raises:
        FormatError: A line is too long, or isn't a JSON object.
    """
    with path.open(encoding="utf-8-sig", errors="surrogateescape", newline="\n") as file:
        number = 0
        while line := file.readline(MAX_LINE + 1):
            number += 1
            place = Place(str(path), number)
            try:
                found = _parsed(line)
            except DataError as error:
                raise FormatError(str(error), file=path, line=number) from None
            if found is not None:
                yield place, found


def _parsed(line: str) -> dict[str, object] | None:
    """The object of a line; None where it is blank."""
    if len(line) > MAX_LINE:
        raise DataError(f"is a line of more than {MAX_LINE:,} characters")
    if not line.strip():
        return None
    try:
        line.encode()
        found = json.loads(line, parse_constant=_refuse_constant)
    except UnicodeEncodeError:
        raise DataError("isn't UTF-8; save the file as UTF-8") from None
    except json.JSONDecodeError as error:
        raise DataError(f"isn't JSON: {error.msg} at column {error.colno}") from None
    except (ValueError, RecursionError) as error:
        raise DataError(f"isn't JSON: {error}") from None
    if not isinstance(found, dict):
        raise DataError(f"is a {type(found).__name__}; each line must be a JSON object")
    return found


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON number; leave the field out or write null")


def _json_list(path: Path) -> Iterator[Row]:
    for document in sources.documents(path):
        for number, item in enumerate(sources.parse_list(document), 1):
            if not isinstance(item, dict):
                raise FormatError(
                    f"is a {type(item).__name__}; each entry must be an object",
                    file=path,
                    line=number,
                )
            yield Place(str(path), number), item
