"""A sample of tasks that doesn't depend on their order."""

import hashlib
import heapq
from collections.abc import Iterable
from typing import NamedTuple, final

from prefill_router.errors import ConfigError
from prefill_router.harness.task import Task


@final
class _Drawn(NamedTuple):
    """A task in the sample; the one drawn last sorts first."""

    rank: int
    position: int
    task: Task


def sample_tasks(tasks: Iterable[Task], count: int, *, seed: int = 0) -> list[Task]:
    """So many of the tasks, in their order; all of them where there are fewer.

    Each id has its place in the draw by a hash of it and the seed. So a larger sample holds the
    smaller ones of the same seed, and a task that is added displaces at most one.

    Raises:
        ConfigError: The count isn't positive.
    """
    if count < 1:
        raise ConfigError(f"a sample of {count} tasks was asked for; at least 1 is needed")
    drawn: list[_Drawn] = []
    for position, task in enumerate(tasks):
        entry = _Drawn(-_rank(task.query.id, seed), position, task)
        if len(drawn) < count:
            heapq.heappush(drawn, entry)
        else:
            heapq.heappushpop(drawn, entry)
    return [entry.task for entry in sorted(drawn, key=lambda entry: entry.position)]


def _rank(query_id: str, seed: int) -> int:
    key = f"{seed}\0{query_id}".encode("utf-8", "surrogatepass")
    return int.from_bytes(hashlib.sha256(key).digest())
