"""One writer per shard, should two processes be given the same work.

The lock goes with the process that holds it, however that ends. Where the file system has no locks
there is none, and each process must be given a part of its own.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from prefill_router.locks import LockState, is_still, take_lock


@contextmanager
def only_writer(folder: Path, name: str, *, wait: bool) -> Iterator[bool]:
    """Hold the lock of a shard; yields False at once if another holds it and `wait` is false.

    What an earlier, killed writer of the shard left half-written is removed.
    """
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f".{name}.lock"
    descriptor, state = _lock(path, wait=wait)
    try:
        if state == "held":
            _remove_unfinished(folder, name)
        yield state != "busy"
    finally:
        if state != "busy":
            path.unlink(missing_ok=True)
        os.close(descriptor)


def sweep(folder: Path) -> None:
    """Remove the locks of writers that were killed, and what they left half-written."""
    for path in folder.glob(".*.lock"):
        descriptor, state = _lock(path, wait=False)
        if state == "held":
            _remove_unfinished(folder, path.name.removeprefix(".").removesuffix(".lock"))
            path.unlink(missing_ok=True)
        os.close(descriptor)


def _remove_unfinished(folder: Path, name: str) -> None:
    for left in folder.glob(f".{name}.*.tmp"):
        left.unlink(missing_ok=True)


def _lock(path: Path, *, wait: bool) -> tuple[int, LockState]:
    """An open descriptor of the lock's file, and whether it holds the lock."""
    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
        state = take_lock(descriptor, wait=wait)
        if state != "held" or is_still(path, descriptor):
            return descriptor, state
        os.close(descriptor)  # its holder has removed it meanwhile
