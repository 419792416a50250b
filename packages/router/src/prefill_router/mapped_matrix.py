"""Matrices of features: in memory, or if they are large in a temporary file that is mapped.

The system can write the pages of a mapped file back and drop them whenever other programs need the
memory, so that training needs no more of it than its batches. The file is in the cache and has no
name there: it is gone when the process ends, however it ends.
"""

import os
from collections.abc import Sequence
from contextlib import suppress
from tempfile import TemporaryFile

import numpy as np
from jaxtyping import Float32, Int64
from numpy.typing import NDArray

from prefill_router.files import default_cache

Matrix = Float32[NDArray[np.float32], "row _"]
RowCopy = Float32[NDArray[np.float32], "taken _"]
LARGE = 1 << 28
"""Matrices of more bytes than these are mapped."""
_ROWS = 1 << 16
"""Rows that are copied at once."""


def empty(rows: int, width: int) -> Matrix:
    """A matrix to be filled; in memory, too, where the disk has no space for it."""
    size = rows * width * np.dtype(np.float32).itemsize
    if size > LARGE:
        with suppress(OSError):
            return _map_file(rows, width, size)
    return np.empty((rows, width), dtype=np.float32)


def _map_file(rows: int, width: int, size: int) -> Matrix:
    cache = default_cache()
    cache.mkdir(parents=True, exist_ok=True)
    with TemporaryFile(dir=cache) as file:
        if hasattr(os, "posix_fallocate"):  # a full disk is an error now, not a crash later
            os.posix_fallocate(file.fileno(), 0, size)
        return np.asarray(np.memmap(file, np.float32, "r+", shape=(rows, width)))


def join_columns(parts: Sequence[Matrix]) -> Matrix:
    """Matrices of the same rows, side by side; a single one as it is."""
    if len(parts) == 1:
        return parts[0]
    whole = empty(len(parts[0]), sum(part.shape[1] for part in parts))
    return np.concatenate(parts, axis=1, out=whole)


def take_rows(matrix: Matrix, rows: Int64[NDArray[np.int64], " taken"]) -> RowCopy:
    """A copy of some rows, in this order."""
    copy = empty(len(rows), matrix.shape[1])
    for start in range(0, len(rows), _ROWS):
        copy[start : start + _ROWS] = matrix[rows[start : start + _ROWS]]
    return copy
