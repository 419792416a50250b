"""The engine without any engine: tasks run in this process, or in several of this machine."""

import os
from collections.abc import Iterator
from concurrent.futures import Executor, Future, ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing import get_context, parent_process
from threading import Thread
from typing import Any, final

from prefill_router.engines.base import Engine, Item, Result, Shared, Task, TaskPool
from prefill_router.progress import Progress, SilentProgress


@final
@dataclass(frozen=True)
class LocalEngine(Engine):
    """Runs tasks in this process, one at a time, or in several processes of one thread each.

    Attributes:
        processes: The number of processes; 1 is this process.
    """

    processes: int = 1

    @contextmanager
    def pool(self, shared: Shared, progress: Progress | None = None) -> Iterator[TaskPool[Shared]]:
        """A pool whose tasks get these inputs; what is still running at its end is cancelled."""
        if self.processes == 1:
            yield _ThisProcess(shared, progress or SilentProgress())
            return
        with ProcessPoolExecutor(
            self.processes, mp_context=get_context("spawn"), initializer=_begin, initargs=(shared,)
        ) as executor:
            try:
                yield _Processes(executor, self.processes)
            finally:
                executor.shutdown(wait=True, cancel_futures=True)


@final
class _ThisProcess(TaskPool[Shared]):
    size = 1

    def __init__(self, shared: Shared, progress: Progress) -> None:
        self._shared, self._progress = shared, progress

    def submit(self, task: Task[Shared, Item, Result], item: Item) -> "Future[Result]":
        done: Future[Result] = Future()
        done.set_result(task(self._shared, item, self._progress))
        return done


@final
class _Processes(TaskPool[Shared]):
    def __init__(self, executor: Executor, size: int) -> None:
        self._executor, self.size = executor, size

    def submit(self, task: Task[Shared, Item, Result], item: Item) -> "Future[Result]":
        return self._executor.submit(_run, task, item)


_shared_here: list[Any] = []


def _begin(shared: Any) -> None:
    os.environ["OMP_NUM_THREADS"] = "1"  # one process per core; more threads would compete
    _shared_here.append(shared)
    Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    """Exit when the parent is killed; a worker process would otherwise wait for work forever."""
    parent = parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


def _run(task: Task[Any, Item, Result], item: Item) -> Result:
    return task(_shared_here[-1], item, SilentProgress())
