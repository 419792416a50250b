"""The interface of engines: tasks that share their inputs, and results in order.

A task is a function at the top level of a module, so that other processes find it by its name. It
takes the shared inputs, one item, and a `Progress` for what it has to tell while it works.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from contextlib import AbstractContextManager
from itertools import islice
from typing import Generic, TypeVar

from prefill_router.progress import Progress

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
