"""The format of a source, recognised by the fields of its first records."""

from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path

from prefill_router.errors import FormatError
from prefill_router.importers import call_logs, sources, tables
from prefill_router.importers.builder import DatasetBuilder
from prefill_router.importers.registry import FORMATS

_FILES, _RECORDS = 20, 50
_ARCHIVES = (".zip", ".tar", ".tgz", ".gz", ".xz", ".bz2")


def recognised_format(paths: Sequence[Path]) -> str | None:
    """The public format, or log, of which the sources have a record; None if there is none.

    A user's own table isn't recognised, whatever its columns.

    Args:
        paths: Files or folders.

    Raises:
        FormatError: A source doesn't exist, or a folder has no file that can be read.
    """
    found = sources.expand(paths, (*call_logs.LOG_SUFFIXES, *_ARCHIVES))
    for path in found[:_FILES]:
        for fields in _fields(path):
            for name, kind in FORMATS.items():
                if any(signature <= fields for signature in kind.signatures):
                    return name
    return None


def _fields(path: Path) -> Iterator[set[str]]:
    """The fields of the first records of a file; none if it can't be read."""
    try:
        if path.suffix.lower() == ".zip":
            for document in islice(sources.documents(path), 1):
                rows = [row for row in sources.parse_list(document) if isinstance(row, dict)]
                yield from (set(row) for row in rows[:_RECORDS])
        elif path.suffix.lower() in _ARCHIVES:
            for document in islice(sources.tar_documents(path), 1):
                parsed = sources.parse(document)
                yield set(parsed) if isinstance(parsed, dict) else set()
        elif path.suffix.lower() in (".csv", ".parquet"):
            yield set(tables.columns_of(path))
        else:
            records = call_logs.log_records(path, DatasetBuilder())
            yield from (set(record) for _, record in islice(records, _RECORDS))
    except (FormatError, OSError):
        return
