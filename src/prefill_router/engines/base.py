"""The interface of engines, and the engine of this machine.

Engines run tasks that share their inputs, and give results in order. A task is a function at the
top level of a module, so that other processes find it by its name. It takes the shared inputs, one
item, and a `Progress` for what it has to tell while it works. `LocalEngine` runs tasks in this
process, or in several of this machine.
"""

import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Executor, Future, ProcessPoolExecutor, wait
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from itertools import islice
from multiprocessing import get_context, parent_process
from threading import Thread
from typing import Any, Generic, TypeVar, final

from prefill_router.progress import Progress, SilentProgress

Shared = TypeVar("Shared")
Item = TypeVar("Item")
Result = TypeVar("Result")
Kept = TypeVar("Kept")
Task = Callable[[Shared, Item, Progress], Result]


class TaskPool(ABC, Generic[Shared]):
    """Runs tasks on the same shared inputs.

    Attributes:
        size: The number of tasks that run at once.
    """

    size: int

    @abstractmethod
    def submit(self, task: Task[Shared, Item, Result], item: Item) -> "Future[Result]":
        """Start a task; where one runs at a time, it is done on return."""


class Engine(ABC):
    """Runs independent pieces of work. The results don't depend on the engine."""

    @abstractmethod
    def pool(
        self, shared: Shared, progress: Progress | None = None
    ) -> AbstractContextManager[TaskPool[Shared]]:
        """A pool whose tasks get these inputs; what is still running at its end is cancelled.

        Args:
            shared: The inputs, which tasks must not change.
            progress: For tasks that run in this process; those elsewhere report nothing.
        """

    def map(
        self,
        task: Task[Shared, Item, Result],
        shared: Shared,
        items: Sequence[Item],
        *,
        finish: Callable[[Item, Result], Kept],
        held: Callable[[Item], Result | None] = lambda _item: None,
        keep: Callable[[Item, Result], object] = lambda _item, _result: None,
        progress: Progress | None = None,
    ) -> list[Kept]:
        """Run a task for each item, except where an earlier run kept the result.

        All of the functions but the task are called in this process.

        Args:
            task: The task.
            shared: The inputs that all tasks share.
            items: The items.
            finish: Called with each item and its result as soon as that is there, in any order.
            held: The result that an earlier run kept for an item, if it did.
            keep: Called with an item and its new result, before `finish`.
            progress: See `pool`.

        Returns:
            What `finish` returned, in the order of the items.
        """
        done: dict[int, Kept] = {}
        for number, item in enumerate(items):
            if (found := held(item)) is not None:
                done[number] = finish(item, found)
        left = [number for number in range(len(items)) if number not in done]
        if left:
            numbers, waiting = iter(left), dict[Future[Result], int]()
            with self.pool(shared, progress) as pool:
                while len(done) < len(items):
                    for number in islice(numbers, pool.size - len(waiting)):
                        waiting[pool.submit(task, items[number])] = number
                    for future in wait(waiting, return_when=FIRST_COMPLETED).done:
                        number = waiting.pop(future)
                        keep(items[number], future.result())
                        done[number] = finish(items[number], future.result())
        return [done[number] for number in range(len(items))]


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
