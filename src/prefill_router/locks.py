"""Locks of open files and folders, which end with the process that holds them."""

import importlib.util
import os
from pathlib import Path
from typing import Literal

LockState = Literal["held", "busy", "unsupported"]
_HAS_LOCKS = importlib.util.find_spec("fcntl") is not None  # on Unix


def take_lock(descriptor: int, *, wait: bool) -> LockState:
    """Lock an open file or folder, until its descriptor is closed or the process ends."""
    if not _HAS_LOCKS:
        return "unsupported"
    import fcntl

    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
    except BlockingIOError:
        return "busy"
    except OSError:
        return "unsupported"
    return "held"


def is_still(path: Path, descriptor: int) -> bool:
    """Whether an open file or folder still has this name."""
    try:
        return path.stat().st_ino == os.fstat(descriptor).st_ino
    except FileNotFoundError:
        return False
