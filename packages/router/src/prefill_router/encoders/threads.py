"""The number of threads that an encoder computes with."""

import os
from pathlib import Path

_CORES = Path("/sys/devices/system/cpu")


def default_threads() -> int:
    """`OMP_NUM_THREADS` if it is a number, else the physical cores that this process may use.

    torch has the same default. ONNX Runtime's own would also bind its threads to cores, which slows
    down processes that share a machine.
    """
    chosen = os.environ.get("OMP_NUM_THREADS", "")
    return max(1, int(chosen)) if chosen.isdecimal() else len(_physical_cores())


def _physical_cores() -> set[str]:
    """The cores that this process may use, each named by its hardware threads."""
    if not hasattr(os, "sched_getaffinity"):  # not on Linux
        return {str(number) for number in range(os.cpu_count() or 1)}
    return {_siblings(number) for number in os.sched_getaffinity(0)}


def _siblings(number: int) -> str:
    """The hardware threads of a core, such as `0,64`; only this one where that isn't known."""
    try:
        return (_CORES / f"cpu{number}/topology/thread_siblings_list").read_text("ascii").strip()
    except OSError:
        return str(number)
