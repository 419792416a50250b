"""One writer per shard, should two processes be given the same work.

The lock goes with the process that holds it, however that ends. Where the file system has no locks
there is none, and each process must be given a part of its own.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

try:
    import fcntl
except ImportError:  # not a Unix
    fcntl = None  # type: ignore[assignment]


@contextmanager
def only_writer(folder: Path, name: str, *, wait: bool) -> Iterator[bool]:
    """Hold the lock of a shard; yields False at once if another holds it and `wait` is false.

    What an earlier, killed writer of the shard left half-written is removed.
    """
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f".{name}.lock"
    descriptor = _lock(path, wait=wait)
    if descriptor is None:
        yield False
        return
    try:
        for left in folder.glob(f".{name}.*.tmp"):
            left.unlink(missing_ok=True)
        yield True
    finally:
        path.unlink(missing_ok=True)
        os.close(descriptor)


def _lock(path: Path, *, wait: bool) -> int | None:
    """An open descriptor that holds the lock, or None."""
    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
        if fcntl is not None:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
            except BlockingIOError:
                os.close(descriptor)
                return None
            except OSError:  # a file system without locks
                return descriptor
        if _is_still(path, descriptor):
            return descriptor
        os.close(descriptor)  # its holder has removed it meanwhile


def _is_still(path: Path, descriptor: int) -> bool:
    try:
        return path.stat().st_ino == os.fstat(descriptor).st_ino
    except FileNotFoundError:
        return False
