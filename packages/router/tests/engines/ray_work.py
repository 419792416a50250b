"""The work of Ray's workers in tests. They import this module alone, which takes no time."""

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from prefill_router.errors import PromptError, StoreError
from prefill_router.progress import Progress


def on(folder: Path, kinds: int, device: str) -> Callable[[int], tuple[int, str]]:
    (folder / device).touch()

    def work(item: int) -> tuple[int, str]:
        while len(list(folder.iterdir())) < kinds:  # wait until all workers have begun
            time.sleep(0.02)
        if item == -1:
            raise StoreError("the state isn't finite")
        if item == -2:
            os.kill(os.getpid(), signal.SIGKILL)
        return item, device

    return work


def measure(device: str) -> Callable[[np.ndarray], int]:
    del device
    return len


def die_once(folder: Path, item: int, progress: Progress) -> int:
    """The square of a number; the first worker that is asked for 3 is killed."""
    del progress
    mark = folder / "died"
    if item == 3 and not mark.exists():
        mark.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return item * item


def die(table: np.ndarray, item: int, progress: Progress) -> int:
    del table, item, progress
    os.kill(os.getpid(), signal.SIGKILL)
    return 0


def refuse_task(table: np.ndarray, item: int, progress: Progress) -> int:
    del table, progress
    raise PromptError("the prompt is too long", query_id=f"q{item}")
