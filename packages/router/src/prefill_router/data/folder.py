"""The folder of a dataset: its queries, read in blocks, and the record of its origin.

Blocks are for work that doesn't hold all queries; the origin is recorded so that no other dataset
is replaced by mistake.
"""

import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import final

from prefill_router import files
from prefill_router.data.dataset import Query, RoutingDataset
from prefill_router.remote import PathOrUrl, reading
from prefill_router.short_repr import short_repr

MANY = 100_000
"""From so many queries on, work that needs only prompts doesn't hold all of them."""
BLOCK_ROWS = 50_000
"""The queries that are in memory at once."""


@final
@dataclass(frozen=True)
class QueryFile:
    """The queries of a dataset's folder; its other tables aren't read.

    A block needs the memory of the row groups that it touches, so files that other tools write
    should have row groups of some 100,000 rows.

    Attributes:
        path: The Parquet file.
        rows: The number of queries.
    """

    path: Path
    rows: int

    @classmethod
    def open(cls, folder: PathOrUrl | str) -> "QueryFile":
        """Check the folder's checksums, and count its queries; at a URL, those of its copy.

        Raises:
            ConfigError: The URL can't be read.
            FormatError: The file is missing, isn't Parquet, or has no queries.
            CorruptError: The folder has checksums, and the file doesn't match them.
        """
        from prefill_router.data.storage import QUERIES, count_queries  # polars starts slowly

        with reading(folder, (QUERIES, files.CHECKSUMS)) as local:
            path = local / QUERIES
            if (local / files.CHECKSUMS).is_file():
                files.verify_checksums(local, [QUERIES])
            return cls(path, count_queries(path))

    def __len__(self) -> int:
        return self.rows

    def blocks(self) -> Iterator[tuple[Query, ...]]:
        """The queries in order, some at a time.

        Raises:
            FormatError: A row isn't a query.
        """
        from prefill_router.data.storage import read_queries

        for start in range(0, self.rows, BLOCK_ROWS):
            yield read_queries(self.path, slice(start, min(start + BLOCK_ROWS, self.rows)))


def open_queries(folder: PathOrUrl | str) -> RoutingDataset | QueryFile:
    """A dataset, read and checked as a whole, or the file of its queries if these are many.

    Raises:
        FormatError: As `read_dataset`; so are the others.
    """
    from prefill_router.data.storage import read_dataset

    file = QueryFile.open(folder)
    return file if len(file) >= MANY else read_dataset(folder)


FILE = "origin.json"


@short_repr
@final
@dataclass(frozen=True)
class Origin:
    """The command that made a folder, and the sources that it read.

    Attributes:
        command: The command's name.
        sources: The last part of each source's name.
        digest: SHA-256 of the command and the sources' full names, which may be private.
    """

    command: str
    sources: tuple[str, ...]
    digest: str

    @classmethod
    def of(cls, command: str, *sources: PathOrUrl | str) -> "Origin":
        """The origin of a command's output; paths are made absolute."""
        whole = [s if isinstance(s, str) else str(s.resolve()) for s in sources]
        names = tuple(_to_text(s.resolve().name) for s in sources if not isinstance(s, str))
        return cls(command, names, hashlib.sha256(repr((command, whole)).encode()).hexdigest())

    @classmethod
    def read(cls, folder: Path) -> "Origin | None":
        """The origin of a folder; None where it isn't recorded."""
        try:
            value = json.loads((folder / FILE).read_bytes())
            return cls(value["command"], tuple(value["sources"]), value["digest"])
        except (OSError, ValueError, TypeError, KeyError, RecursionError):
            return None

    def write(self, folder: Path) -> None:
        """Record the origin in a folder."""
        files.write_json(folder / FILE, {**vars(self), "sources": list(self.sources)})

    def __str__(self) -> str:
        return f"made by {self.command}{' from ' if self.sources else ''}{', '.join(self.sources)}"


def _to_text(name: str) -> str:
    """A name as valid text; a file name may contain bytes that aren't UTF-8."""
    return name.encode(errors="backslashreplace").decode()
