"""The number of threads that an encoder computes with."""

import math
import os
from pathlib import Path

_CORES = Path("/sys/devices/system/cpu")
_GROUPS = Path("/sys/fs/cgroup")
_OWN_GROUPS = Path("/proc/self/cgroup")
_NO_LIMIT = math.inf


def default_threads() -> int:
    """`OMP_NUM_THREADS` if it is a number, else the physical cores that this process may use.

    Those are the cores of its affinity, or fewer where its control group has a quota of processor
    time, as containers have: more threads than that would stop each other. A part of a core counts
    as one. ONNX Runtime's own default would also bind its threads to cores, which slows down
    processes that share a machine.
    """
    setting = os.environ.get("OMP_NUM_THREADS", "")
    if setting.isdecimal():
        return max(1, int(setting))
    cores = len(_physical_cores())
    return max(1, min(cores, math.ceil(min(processor_quota(), cores))))


def keep_torch_within_quota() -> None:
    """Let torch compute with no more threads than the quota of processor time has cores for.

    Its own default is every core of the machine's affinity; threads beyond the quota would stop
    the others in the middle of each product.
    """
    import torch

    quota = processor_quota()
    if torch.get_num_threads() > quota:
        torch.set_num_threads(max(1, math.ceil(quota)))


def processor_quota() -> float:
    """How many cores' time the control groups of this process allow; infinite without a limit.

    The quota of each group above its own counts too. Source: Linux, `cpu.max` of cgroup v2 and
    `cpu.cfs_quota_us` of v1.
    """
    try:
        lines = _OWN_GROUPS.read_text("ascii").splitlines()
    except (OSError, ValueError):  # not on Linux
        return _NO_LIMIT
    quotas = [_NO_LIMIT]
    for line in lines:
        _, controllers, place = line.split(":", 2)
        if not controllers:
            quotas += [_read_quota(folder / "cpu.max") for folder in _groups_of(_GROUPS, place)]
        elif "cpu" in controllers.split(","):
            for folder in _groups_of(_GROUPS / "cpu", place):
                quotas.append(_read_quota(folder / "cpu.cfs_quota_us", "cpu.cfs_period_us"))
    return min(quotas)


def _groups_of(root: Path, place: str) -> list[Path]:
    """The folder of a group and of all above; in a container the root is its own group's."""
    own = root / place.lstrip("/")
    return [folder for folder in (own, *own.parents) if folder.is_relative_to(root)]


def _read_quota(file: Path, period: str = "") -> float:
    """The cores of a group's quota; infinite where it has none, or no such file."""
    try:
        words = file.read_text("ascii").split()
        words += (file.parent / period).read_text("ascii").split() if period else []
        quota, length = int(words[0]), int(words[1])
    except (OSError, ValueError, IndexError):  # "max" is no number
        return _NO_LIMIT
    return quota / length if quota > 0 and length > 0 else _NO_LIMIT


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
