"""Parts of objects, copied to the cache under the SHA-256 of their content when first read."""

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import final

from prefill_router import files
from prefill_router.errors import CorruptError
from prefill_router.remote.path import RemotePath

_BATCH_BYTES = 256_000_000


@final
@dataclass(frozen=True)
class ObjectRange:
    """A part of an object.

    Attributes:
        path: The object.
        start: Its first byte.
        stop: The byte after its last.
        digest: SHA-256 of its content.
    """

    path: RemotePath
    start: int
    stop: int
    digest: str

    @property
    def copy(self) -> Path:
        """The file of its copy in the cache."""
        return files.default_cache() / "remote" / "parts" / self.digest

    def is_whole(self, content: bytes) -> bool:
        """Whether the content is what was written."""
        return hashlib.sha256(content).hexdigest() == self.digest


def fetch_ranges(wanted: Sequence[ObjectRange]) -> None:
    """Copy those parts of one store's objects to the cache that have no copy yet.

    Raises:
        CorruptError: An object is missing, or isn't what was written.
    """
    missing = [part for part in wanted if not part.copy.is_file()]
    if not missing:
        return
    total = sum(part.stop - part.start for part in missing)
    with missing[0].path.showing("downloading parts of", total) as moved:
        for batch in _batches(missing):
            for part, content in zip(batch, read_ranges(batch), strict=True):
                with files.replacing_file(part.copy) as temporary:
                    temporary.write_bytes(content)
                moved(len(content))


def read_ranges(wanted: Sequence[ObjectRange]) -> list[bytes]:
    """The content of parts of one store's objects, from the URL.

    Raises:
        CorruptError: An object is missing, or isn't what was written.
    """
    try:
        contents = RemotePath.ranges([(part.path, part.start, part.stop) for part in wanted])
    except FileNotFoundError:
        names = ", ".join(sorted({part.path.name for part in wanted}))
        raise CorruptError(f"{wanted[0].path} lacks one of {names}; copy it again") from None
    for part, content in zip(wanted, contents, strict=True):
        if not part.is_whole(content):
            raise CorruptError(
                f"{part.path} isn't what was written (the SHA-256 of its bytes from {part.start:,} "
                f"to {part.stop:,} differs); copy it again"
            )
    return contents


def _batches(parts: Sequence[ObjectRange]) -> Iterator[list[ObjectRange]]:
    """Parts that are read at once, within a limit of memory."""
    batch: list[ObjectRange] = []
    for part in parts:
        if sum(one.stop - one.start for one in [*batch, part]) > _BATCH_BYTES and batch:
            yield batch
            batch = []
        batch.append(part)
    yield batch
