"""The queries of a dataset's folder, read in blocks, for work that doesn't hold all of them.

Polars, and so the module that reads the folder, is imported when a file is opened: it takes long,
and a router that decides needs no file.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import final

from prefill_router import files
from prefill_router.data.dataset import Query, RoutingDataset
from prefill_router.errors import FormatError
from prefill_router.remote import PathOrUrl, reading

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
        import polars as pl
        from polars.exceptions import PolarsError

        from prefill_router.data.storage import QUERIES, read_queries

        with reading(folder, (QUERIES, files.CHECKSUMS)) as local:
            path = local / QUERIES
            if (local / files.CHECKSUMS).is_file():
                files.verify_checksums(local, [QUERIES])
            read_queries(path, slice(0, 1))  # its errors are those of `read_dataset`
            try:
                rows = pl.scan_parquet(path, glob=False).select(pl.len()).collect().item()
            except PolarsError as error:
                raise FormatError(f"not a readable Parquet file: {error}", file=path) from None
        return cls(path, int(rows))

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
