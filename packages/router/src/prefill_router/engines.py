"""Engines: where independent pieces of work run, in this process, in several, or on Ray.

An engine runs tasks that share their inputs, and gives results in order. A task is a function at
the top level of a module, so that other processes find it by its name. It takes the shared inputs,
one item, and a `Progress` for what it has to tell while it works. `LocalEngine` runs tasks in this
process, or in several of this machine. `RayEngine` runs them on Ray's workers, and has pools of
actors for work with a state.

Where no cluster is named, Ray is started on this machine: on the loopback interface, with a token
of its own, without dashboard and usage statistics. Nothing that a user wrote is in the names of
tasks or actors, and errors of this package travel as values, so that Ray's logs don't have them.
"""

import logging
import os
import secrets
import sys
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Executor, Future, ProcessPoolExecutor, wait
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from itertools import chain, islice
from multiprocessing import get_context, parent_process
from pathlib import Path
from threading import Thread
from typing import Any, Generic, TypeVar, final

from prefill_router.errors import ConfigError, EngineError, PrefillRouterError
from prefill_router.lazy_imports import optional_imports
from prefill_router.progress import Progress, SilentProgress

Shared = TypeVar("Shared")
Item = TypeVar("Item")
Result = TypeVar("Result")
Output = TypeVar("Output")
Task = Callable[[Shared, Item, Progress], Result]
_THREADS = "OMP_NUM_THREADS"


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
        finish: Callable[[Item, Result], Output],
        load: Callable[[Item], Result | None] = lambda _item: None,
        keep: Callable[[Item, Result], object] = lambda _item, _result: None,
        progress: Progress | None = None,
    ) -> list[Output]:
        """Run a task for each item, except where an earlier run kept the result.

        All of the functions but the task are called in this process.

        Args:
            task: The task.
            shared: The inputs that all tasks share.
            items: The items.
            finish: Called with each item and its result as soon as that is there, in any order.
            load: Returns the result that an earlier run kept for an item, if it did.
            keep: Called with an item and its new result, before `finish`.
            progress: See `pool`.

        Returns:
            What `finish` returned, in the order of the items.
        """
        results: dict[int, Output] = {}
        for number, item in enumerate(items):
            if (earlier := load(item)) is not None:
                results[number] = finish(item, earlier)
        left = [number for number in range(len(items)) if number not in results]
        if left:
            numbers, waiting = iter(left), dict[Future[Result], int]()
            with self.pool(shared, progress) as pool:
                while len(results) < len(items):
                    for number in islice(numbers, pool.size - len(waiting)):
                        waiting[pool.submit(task, items[number])] = number
                    for future in wait(waiting, return_when=FIRST_COMPLETED).done:
                        number = waiting.pop(future)
                        keep(items[number], future.result())
                        results[number] = finish(items[number], future.result())
        return [results[number] for number in range(len(items))]


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
            self.processes,
            mp_context=get_context("spawn"),
            initializer=_begin_process,
            initargs=(shared,),
        ) as executor:
            try:
                yield _Processes(executor, self.processes)
            finally:
                executor.shutdown(wait=True, cancel_futures=True)


@contextmanager
def _one_thread_each() -> Iterator[None]:
    """Let processes that start meanwhile have one thread; more would compete for the cores.

    It must be in their environment as they start: what is shared brings NumPy, which reads it once.
    """
    before = os.environ.get(_THREADS)
    os.environ[_THREADS] = "1"
    try:
        yield
    finally:
        if before is None:
            del os.environ[_THREADS]
        else:
            os.environ[_THREADS] = before


@final
class _ThisProcess(TaskPool[Shared]):
    size = 1

    def __init__(self, shared: Shared, progress: Progress) -> None:
        self._shared, self._progress = shared, progress

    def submit(self, task: Task[Shared, Item, Result], item: Item) -> "Future[Result]":
        future: Future[Result] = Future()
        future.set_result(task(self._shared, item, self._progress))
        return future


@final
class _Processes(TaskPool[Shared]):
    def __init__(self, executor: Executor, size: int) -> None:
        self._executor, self.size = executor, size

    def submit(self, task: Task[Shared, Item, Result], item: Item) -> "Future[Result]":
        with _one_thread_each():  # the executor starts its processes here
            return self._executor.submit(_run, task, item)


_shared_here: list[Any] = []


def _begin_process(shared: Any) -> None:
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


RETRIES = 20
"""How often a piece of work is repeated whose worker or node died."""
Range = tuple[int, int]
"""The least and the most workers of a pool; Ray adds and removes them as there is work."""
_QUIET = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_ENABLE_UV_RUN_RUNTIME_ENV": "0"}


@final
@dataclass(frozen=True, kw_only=True)
class RayEngine(Engine):
    """Runs work on Ray's workers. Paths must lead to the same files on every node.

    Attributes:
        address: A running cluster, `HOST:PORT` or `auto`; by default Ray is started here.
        workers: The least and the most workers without a GPU; by default as many as the cluster
            has processors for.
        cpus: Processors, and threads, of each worker.
    """

    address: str | None = None
    workers: Range | None = None
    cpus: int = 1

    def __post_init__(self) -> None:
        if self.address is not None and self.address.startswith("ray://"):
            raise ConfigError(
                f"{self.address} is an address of Ray's client; run the command on a node of the "
                "cluster, with --address auto"
            )

    @contextmanager
    def pool(self, shared: Shared, progress: Progress | None = None) -> Iterator[TaskPool[Shared]]:
        """A pool whose tasks get these inputs; what is still running at its end is cancelled.

        Raises:
            ConfigError: The cluster can't be reached.
            MissingExtraError: Ray isn't installed.
        """
        del progress
        ray = self._connect()
        run = ray.remote(_run_task).options(num_cpus=self.cpus, max_retries=RETRIES, name="task")
        # in a list, the reference isn't resolved with each task; a worker fetches the inputs once
        pool: _RayTasks[Shared] = _RayTasks(
            run, [ray.put(shared)], self._worker_place, self._count_workers(ray)
        )
        try:
            yield pool
        finally:
            for reference in list(pool.running):
                ray.cancel(reference, force=True)

    def stream(
        self,
        make: Callable[[str], Callable[[Item], Result]],
        items: Iterable[Item],
        *,
        gpu_workers: Range = (0, 0),
    ) -> Iterator[Result]:
        """The results of a function with a state, such as a network, in any order.

        An item is done again if its worker dies, so the function must find out by itself what is
        there already. Workers of both kinds take their items from the same line.

        Args:
            make: Makes the function, once per worker, for a device: `cpu` or `cuda`.
            items: What the function is called with; no more than two for each worker are held.
            gpu_workers: The least and the most workers that have a GPU, beside the others.

        Raises:
            ConfigError: The cluster can't be reached.
            EngineError: The workers died again and again on the same item.
            MissingExtraError: Ray isn't installed.
        """
        rest = iter(items)
        for first in rest:
            ray = self._connect(gpu_workers[1])
            most = 0 if gpu_workers[1] else self._count_workers(ray)
            sizes = {"cuda": gpu_workers, "cpu": self.workers or (most, most)}
            yield from _Actors(ray, make, self._worker_place, sizes).results(chain([first], rest))

    @property
    def _worker_place(self) -> tuple[str, int]:
        return str(Path.cwd()), self.cpus

    def _count_workers(self, ray: Any) -> int:
        """The number of workers that run at once."""
        if self.workers is not None:
            return self.workers[1]
        return max(1, int(ray.cluster_resources().get("CPU", 1)) // self.cpus)

    def _connect(self, gpu_workers: int = 0) -> Any:
        """The module of Ray, connected to the cluster until this process ends."""
        for name, value in _QUIET.items():
            os.environ.setdefault(name, value)
        if self.address is None and "RAY_AUTH_MODE" not in os.environ:
            # before the import: Ray listens on every interface where it takes itself for a cluster
            os.environ["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] = "0"
            os.environ |= {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}
        with optional_imports("--engine ray"):
            import ray
        if not ray.is_initialized():
            self._start_ray(ray, gpu_workers)
        return ray

    def _start_ray(self, ray: Any, gpu_workers: int) -> None:
        quiet: dict[str, Any] = {"logging_level": logging.ERROR, "log_to_driver": False}
        if self.address is None:
            count = None if self.workers is None else self.workers[1] + gpu_workers
            ray.init(
                "local", include_dashboard=False, num_cpus=count and count * self.cpus, **quiet
            )
            return
        try:
            ray.init(self.address, **quiet)
        except (ConnectionError, ValueError, RuntimeError) as error:
            raise ConfigError(
                f"no Ray cluster answers at {self.address} ({type(error).__name__}); start one "
                "with: ray start --head, or leave out --address to start Ray on this machine"
            ) from error


@final
class _RayTasks(TaskPool[Shared]):
    def __init__(self, run: Any, shared: list[Any], place: tuple[str, int], size: int) -> None:
        self._run, self._shared, self._worker_place, self.size = run, shared, place, size
        self.running: set[Any] = set()

    def submit(self, task: Task[Shared, Item, Result], item: Item) -> "Future[Result]":
        reference = self._run.remote(task, self._shared, item, self._worker_place)
        self.running.add(reference)
        answer: Future[Result] = Future()

        def settle(reply: Future[Any]) -> None:
            self.running.discard(reference)
            error = reply.exception()
            result: Any = None if error else reply.result()
            if isinstance(result, _Failure):
                error = result.error
            if error:
                answer.set_exception(_explain_death(error))
            else:
                answer.set_result(result)

        reference.future().add_done_callback(settle)
        return answer


@final
@dataclass(frozen=True)
class _Failure:
    """An error of this package, as a value."""

    error: PrefillRouterError


@final
@dataclass(eq=False)
class _Piece:
    """An item, and how many workers died of it."""

    item: Any
    deaths: int = 0


@final
class _Actors:
    """Actors with a state each, the piece of work that each of them has, and what is left.

    An actor that ends is followed by a new one, and its piece is given out again. Ray's own restart
    would keep the piece for that actor, even where its node has gone.
    """

    def __init__(
        self, ray: Any, make: Any, place: tuple[str, int], sizes: Mapping[str, Range]
    ) -> None:
        self._ray, self._make, self._worker_place = ray, make, place
        self._sizes = {device: size for device, size in sizes.items() if size[1]}
        self._room = sum(most for _, most in self._sizes.values())
        self._busy: dict[Any, tuple[str, Any, _Piece | None]] = {}
        self._items, self._todo = iter(()), deque[_Piece]()
        self._failed_starts = 0

    def results(self, items: Iterator[Any]) -> Iterator[Any]:
        """What the function returned for each item, in any order."""
        self._items = items
        self._fill_queue()
        try:
            while self._todo or any(piece for *_, piece in self._busy.values()):
                self._add_actors()
                (reference,), _ = self._ray.wait(list(self._busy))
                device, actor, piece = self._busy.pop(reference)
                try:
                    result = self._ray.get(reference)
                except _list_deaths() as error:
                    self._repeat_piece(piece, error)
                    continue
                self._failed_starts = 0
                self._give_piece(device, actor)
                if isinstance(result, _Failure):
                    raise result.error
                if piece is not None:
                    yield result
        finally:
            for _, actor, _ in self._busy.values():
                self._ray.kill(actor)

    def _add_actors(self) -> None:
        """Ask for more actors of a kind, up to twice as many, where all that it has are at work."""
        for device, (least, most) in self._sizes.items():
            mine = [piece for kind, _, piece in self._busy.values() if kind == device]
            if all(mine):
                wanted = min(max(least, 2 * len(mine), 1), most) - len(mine)
                for _ in range(min(wanted, len(self._todo))):
                    self._start_actor(device)

    def _start_actor(self, device: str) -> None:
        kind = self._ray.remote(num_cpus=self._worker_place[1], num_gpus=int(device == "cuda"))(
            _Worker
        )
        actor = kind.remote()
        self._busy[actor.begin.remote(self._make, self._worker_place, device)] = (
            device,
            actor,
            None,
        )

    def _give_piece(self, device: str, actor: Any) -> None:
        """Give an actor its next piece; one that gets none ends, since nothing refers to it."""
        if self._todo:
            piece = self._todo.popleft()
            self._busy[actor.work.remote(piece.item)] = (device, actor, piece)
            self._fill_queue()

    def _fill_queue(self) -> None:
        self._todo.extend(map(_Piece, islice(self._items, self._room - len(self._todo))))

    def _repeat_piece(self, piece: _Piece | None, error: Exception) -> None:
        if piece is None:
            self._failed_starts += 1
        else:
            piece.deaths += 1
            self._todo.appendleft(piece)
        if max(self._failed_starts, piece.deaths if piece else 0) > RETRIES:
            raise EngineError(_DEATH_MESSAGE) from error


@final
class _Worker:
    """An actor's side."""

    def begin(self, make: Callable[[str], Any], place: tuple[str, int], device: str) -> Any:
        """Make the function; a failure is returned."""
        _begin_actor(place)
        self._do = _attempt(make, device)
        return self._do if isinstance(self._do, _Failure) else None

    def work(self, item: Any) -> Any:
        """Call it."""
        return _attempt(self._do, item)


_shared_inputs: dict[Any, Any] = {}
"""The shared inputs of the last task, by their reference: a worker runs many tasks on them."""


def _run_task(
    task: Task[Any, Any, Any], shared: list[Any], item: Any, place: tuple[str, int]
) -> Any:
    if shared[0] not in _shared_inputs:
        import ray

        _begin_actor(place)
        _shared_inputs.clear()
        _shared_inputs[shared[0]] = ray.get(shared[0])
    return _attempt(task, _shared_inputs[shared[0]], item, SilentProgress())


def _begin_actor(place: tuple[str, int]) -> None:
    """Work in the caller's folder, where there is one of that name, with so many threads."""
    folder, cpus = place
    with suppress(OSError):
        os.chdir(folder)
    os.environ["OMP_NUM_THREADS"] = str(cpus)
    if torch := sys.modules.get("torch"):  # whose import takes seconds, and not all work needs it
        torch.set_num_threads(cpus)


def _attempt(function: Callable[..., Any], *given: Any) -> Any:
    try:
        return function(*given)
    except PrefillRouterError as error:
        return _Failure(error)


_DEATH_MESSAGE = (
    f"workers died {RETRIES} times or more on the same piece of work; see whether they have enough "
    "memory (fewer --workers, smaller --batch-tokens), and run the same command again: it goes on "
    "from here"
)


def _explain_death(error: BaseException) -> BaseException:
    """An error of our own where workers died; others as they are."""
    return EngineError(_DEATH_MESSAGE) if isinstance(error, _list_deaths()) else error


def _list_deaths() -> tuple[type[Exception], ...]:
    """What Ray raises where a worker or its node died."""
    from ray import exceptions

    return (
        exceptions.WorkerCrashedError,
        exceptions.RayActorError,
        exceptions.NodeDiedError,
        exceptions.OutOfMemoryError,
    )
