"""Tables on disk: CSV, JSON Lines, Parquet and spreadsheets, as records with their line numbers.

Text is UTF-8, with or without a byte order mark, or UTF-16, and may be in gzip. The cells of a CSV
are separated by commas, semicolons or tabs; where semicolons separate, `0,5` is a half. CSV and
JSON Lines are read as a stream. Of a Parquet file only the requested columns are read, of a
spreadsheet the first sheet.
"""

import csv
import json
import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from io import TextIOWrapper
from itertools import islice
from pathlib import Path
from typing import Any

import polars as pl
from polars.exceptions import PanicException, PolarsError

from prefill_router.errors import FormatError
from prefill_router.importers import sources
from prefill_router.importers.builder import DatasetBuilder, Place
from prefill_router.importers.nested import MOST_DEPTH, are_rows, flatten
from prefill_router.importers.sources import first_line
from prefill_router.lazy_imports import optional_imports

MAX_LINE = 64 * 2**20
"""The longest line, or CSV record, in characters; a file with a longer one isn't a table."""
MAX_COLUMNS = 10_000
"""The most columns of a table, since each row is held with all of their names."""
_CSVS = (".csv", ".tsv")
_LINES = (".jsonl", ".ndjson")
_SHEETS = (".xlsx", ".ods")
_GZIP_SUFFIXES = tuple(f"{suffix}.gz" for suffix in (*_CSVS, *_LINES))
SUFFIXES = (*_CSVS, *_LINES, ".parquet", *_SHEETS, *_GZIP_SUFFIXES)
_ENVELOPES = ("data", "requests", "observations", "spans", "rows", "examples")
"""The fields of a JSON object that hold the records, as programming interfaces return them."""
_SEPARATORS = (",", ";", "\t")
_SNIFFED_ROWS = 20
_DECIMAL_COMMA = re.compile(r"[+-]?\d++,\d++", re.ASCII)
_PICKLES = (".pkl", ".pickle")
Record = Mapping[str, object]


def records(
    path: Path,
    into: DatasetBuilder,
    *,
    needs: Sequence[str],
    wants: Sequence[str] = (),
) -> Iterator[tuple[Place, Record]]:
    """The records of a table; lines that aren't records are reported to `into` as malformed.

    Args:
        path: The table.
        into: Collects malformed lines.
        needs: Columns that must exist (in JSON Lines, in some record).
        wants: Further columns of a Parquet file that are read if they exist.

    Raises:
        FormatError: The file isn't such a table, or lacks columns.
    """
    suffix = suffix_of(path)
    if suffix == ".parquet":
        yield from _read_parquet(path, needs, wants)
    elif suffix in _LINES:
        yield from read_json_lines(path, into)
    elif suffix in _CSVS:
        yield from _read_csv(path, into, needs)
    elif suffix in _SHEETS:
        yield from _read_sheet(path, needs)
    elif suffix == ".json":
        yield from json_records(path, into)
    elif suffix in _PICKLES:
        raise FormatError(_ABOUT_PICKLES, file=path)
    else:
        raise FormatError(
            f"isn't a table; a table's name ends in {', '.join(SUFFIXES)} or .json", file=path
        )


_ABOUT_PICKLES = (
    "is a pickle, and loading a pickle can run any code, so it isn't loaded here. "
    "Convert it in a container or another isolated environment, with: python -c "
    "\"import pandas; pandas.read_pickle('IN.pkl').to_csv('OUT.csv', index=False)\" "
    "and import OUT.csv"
)


def suffix_of(path: Path) -> str:
    """The end of a table's name in lower case, without `.gz`."""
    name = path.name.lower()
    return Path(name.removesuffix(".gz") if name.endswith(_GZIP_SUFFIXES) else name).suffix


def columns_of(path: Path) -> list[str]:
    """The columns of a table; for JSON Lines, the fields of the first record.

    Raises:
        FormatError: No columns can be read.
    """
    suffix = suffix_of(path)
    if suffix == ".parquet":
        return list(_read_schema(path))
    if suffix in _CSVS:
        with _csv_reader(path) as (reader, _):
            return _read_header(reader, path)
    rows = records(path, DatasetBuilder(), needs=())
    return list(next((record for _, record in rows), {}))


def flat_columns_of(path: Path) -> list[str]:
    """The columns of a table, with the fields of objects by their dotted paths.

    Raises:
        FormatError: No columns can be read.
    """
    suffix = suffix_of(path)
    if suffix == ".parquet":
        columns = list(_flat_schema(_read_schema(path), MOST_DEPTH))
    elif suffix in (*_LINES, ".json"):
        rows = records(path, DatasetBuilder(), needs=())
        columns = list(flatten(next((record for _, record in rows), {})))
    else:
        columns = columns_of(path)
    check_count(columns, path)
    return columns


def flat_records(
    path: Path, into: DatasetBuilder, *, needs: Sequence[str], wants: Sequence[str] = ()
) -> Iterator[tuple[Place, Record]]:
    """The records of a table with the fields of objects by their dotted paths, see `records`.

    Raises:
        FormatError: The file isn't such a table, or lacks columns.
    """
    if suffix_of(path) != ".parquet":
        for place, record in records(path, into, needs=needs):
            yield place, flatten(record)
        return
    _require_columns(flat_columns_of(path), needs, path)
    wanted = {*needs, *wants}
    roots = [
        column
        for column in _read_schema(path)
        if any(name == column or name.startswith(f"{column}.") for name in wanted)
    ]
    for place, record in records(path, into, needs=roots):
        yield place, flatten(record)


def _flat_schema(schema: Mapping[str, Any], depth: int) -> Iterator[str]:
    for name, kind in schema.items():
        if isinstance(kind, pl.List) and isinstance(kind.inner, pl.Struct):
            fields = [field.name for field in kind.inner.fields]
            kind = kind.inner if are_rows(fields) else kind
        if isinstance(kind, pl.Struct) and kind.fields and depth:
            inner = {f"{name}.{field.name}": field.dtype for field in kind.fields}
            yield from _flat_schema(inner, depth - 1)
        else:
            yield name


def read_json_lines(path: Path, into: DatasetBuilder) -> Iterator[tuple[Place, Record]]:
    """The records of a file in JSON Lines; lines that aren't are reported as malformed.

    Args:
        path: The file.
        into: Collects malformed lines.

    Raises:
        FormatError: A line is too long.
    """
    with sources.open_text(path, newline="\n") as file:
        name = str(path)
        for number, line in enumerate(_read_lines(file, path), 1):
            if not line.isspace():
                place = Place(name, number)
                record = _parse_line(line)
                if isinstance(record, dict):
                    check_count(record, path)
                    yield place, record
                else:
                    into.bad_row(place, record)


def json_records(path: Path, into: DatasetBuilder) -> Iterator[tuple[Place, Record]]:
    """The records of a JSON file: a list, an object that holds one, or one object.

    A file in JSON Lines whose name ends in `.json` is read too, as some tools write them.

    Raises:
        FormatError: The file can't be read.
    """
    try:
        (document,) = sources.documents(path)
        content = sources.parse(document)
    except FormatError:
        first = next(read_json_lines(path, DatasetBuilder()), None)
        if first is None or first[0].line != 1:
            raise
        yield from read_json_lines(path, into)
        return
    if isinstance(content, dict):
        lists = (content[name] for name in _ENVELOPES if isinstance(content.get(name), list))
        content = next(lists, [content])
    if not isinstance(content, list):
        raise FormatError("is neither a list nor an object of records", file=path)
    for number, record in enumerate(content, 1):
        place = Place(str(path), number)
        if isinstance(record, dict):
            yield place, record
        else:
            into.bad_row(place, f"is a {type(record).__name__}; a record is an object")


_DECODE = json.JSONDecoder().decode  # without what `json.loads` asks of each text


def _parse_line(line: str) -> dict[str, object] | str:
    """The object of a line, or why it isn't one."""
    try:
        if not line.isascii():
            line.encode()
        value = _DECODE(line)
    except UnicodeEncodeError:
        return "isn't UTF-8; save the file as UTF-8"
    except (ValueError, RecursionError) as error:
        return f"isn't JSON: {error}"
    if isinstance(value, dict):
        return value
    return f"is a {type(value).__name__}; each line must be a JSON object"


def _read_csv(
    path: Path, into: DatasetBuilder, needs: Sequence[str]
) -> Iterator[tuple[Place, Record]]:
    with _csv_reader(path) as (reader, separator), _long_fields():
        header = _read_header(reader, path)
        _require_columns(header, needs, path)
        for place, cells in _read_rows(reader, len(header), path, into):
            if separator == ";":
                cells = [_with_point(cell) for cell in cells]
            yield place, dict(zip(header, cells, strict=True))


@contextmanager
def _csv_reader(path: Path) -> Iterator[tuple[Any, str]]:
    """A reader of a CSV, and what separates its cells."""
    separator = _find_separator(path)
    with sources.open_text(path, newline="") as file:
        yield csv.reader(_read_lines(file, path), strict=True, delimiter=separator), separator


def _find_separator(path: Path) -> str:
    """What separates the cells of a CSV: of the marks in its first line, the one that fits best.

    That is the one that gives the first records equally many cells, and the most.
    """
    with sources.open_text(path, newline="") as file:
        first = next(_read_lines(file, path), "")
    marks = [mark for mark in _SEPARATORS if mark in first] or [","]
    return marks[0] if len(marks) == 1 else max(marks, key=lambda mark: _count_cells(path, mark))


def _count_cells(path: Path, separator: str) -> int:
    """The number of cells of the first records of a CSV; 0 where it differs."""
    with sources.open_text(path, newline="") as file, _long_fields():
        reader = csv.reader(_read_lines(file, path), delimiter=separator)
        widths = {len(cells) for cells in islice(reader, _SNIFFED_ROWS) if cells}
    return widths.pop() if len(widths) == 1 else 0


def _with_point(cell: str) -> str:
    return cell.replace(",", ".") if _DECIMAL_COMMA.fullmatch(cell.strip()) else cell


def _read_rows(
    reader: Any, width: int, path: Path, into: DatasetBuilder
) -> Iterator[tuple[Place, list[str]]]:
    while True:
        place = Place(str(path), reader.line_num + 1)
        try:
            cells = next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            into.bad_row(place, f"isn't CSV: {error}")
            continue
        if len(cells) == width:
            yield place, cells
        elif cells:
            into.bad_row(place, f"has {len(cells)} cells; the header has {width}")


def _read_header(reader: Any, path: Path) -> list[str]:
    try:
        header: list[str] = next(reader)
    except StopIteration:
        raise FormatError("is empty; a CSV starts with a line of column names", file=path) from None
    except csv.Error as error:
        raise FormatError(f"isn't CSV: {error}", file=path, line=1) from None
    if any("\udc80" <= letter <= "\udcff" for name in header for letter in name):
        raise FormatError("isn't UTF-8; save it as UTF-8", file=path, line=1)
    check_count(header, path)
    repeated = sorted(name for name, times in Counter(header).items() if times > 1 and name)
    if repeated:
        raise FormatError(f"names the columns {repeated} more than once", file=path, line=1)
    return header


def _read_lines(file: TextIOWrapper, path: Path) -> Iterator[str]:
    number = 0
    while line := file.readline(MAX_LINE + 1):
        number += 1
        if len(line) > MAX_LINE:
            raise FormatError(
                f"has a line of more than {MAX_LINE:,} characters", file=path, line=number
            )
        yield line


@contextmanager
def _long_fields() -> Iterator[None]:
    """Raise the csv module's limit on fields, 131,072 characters, which many prompts exceed."""
    before = csv.field_size_limit(MAX_LINE)
    try:
        yield
    finally:
        csv.field_size_limit(before)


def _read_parquet(
    path: Path, needs: Sequence[str], wants: Sequence[str]
) -> Iterator[tuple[Place, Record]]:
    columns = _read_schema(path)
    _require_columns(columns, needs, path)
    wanted = {*needs, *wants}
    chosen = [column for column in columns if column in wanted]
    try:
        with path.open("rb") as file:  # Polars would read a path as a glob pattern
            frame = pl.read_parquet(file, columns=chosen)
        for number, row in enumerate(frame.iter_rows(named=True), 1):
            yield Place(str(path), number), row
    except (PolarsError, PanicException, OSError, ValueError) as error:
        raise FormatError(f"isn't readable Parquet: {first_line(error)}", file=path) from None


def _read_sheet(path: Path, needs: Sequence[str]) -> Iterator[tuple[Place, Record]]:
    """The rows of the first sheet of a spreadsheet; its first row has the names."""
    with optional_imports(f"reading {path.suffix} tables"):
        import fastexcel
    try:
        frame = fastexcel.read_excel(path).load_sheet(0).to_polars()
    except (fastexcel.FastExcelError, PolarsError, PanicException, OSError, ValueError) as error:
        raise FormatError(f"isn't a readable spreadsheet: {first_line(error)}", file=path) from None
    check_count(frame.columns, path)
    _require_columns(frame.columns, needs, path)
    for number, row in enumerate(frame.iter_rows(named=True), 2):
        if any(cell is not None for cell in row.values()):
            yield Place(str(path), number), row


def _read_schema(path: Path) -> Mapping[str, Any]:
    try:
        with path.open("rb") as file:
            columns = pl.read_parquet_schema(file)
    except (PolarsError, PanicException, OSError, ValueError) as error:
        raise FormatError(f"isn't readable Parquet: {first_line(error)}", file=path) from None
    check_count(columns, path)
    return columns


def check_count(columns: Collection[str], path: Path) -> None:
    """Check that a table has a bounded number of columns.

    Raises:
        FormatError: It has too many.
    """
    if len(columns) > MAX_COLUMNS:
        reason = f"has {len(columns):,} columns; at most {MAX_COLUMNS:,} are supported"
        raise FormatError(reason, file=path, line=1)


def _require_columns(columns: Iterable[str], needs: Sequence[str], path: Path) -> None:
    present = dict.fromkeys(columns)
    lacking = [column for column in needs if column not in present]
    if lacking:
        raise FormatError(f"lacks the columns {lacking}; it has {list(present)}", file=path, line=1)
