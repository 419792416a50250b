"""The engine on Ray: tasks on its workers, and Ray Data's pools of actors for work with a state.

Where no cluster is named, Ray is started on this machine: on the loopback interface, with a token
of its own, without dashboard and usage statistics. Nothing that a user wrote is in the names of
tasks or actors, and errors of this package travel as values, so that Ray's logs don't have them.
"""

import logging
import os
import secrets
from collections import Counter
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue
from threading import Event, Thread
from typing import Any, final

from prefill_router.engines.base import Engine, Item, Result, Shared, Task, TaskPool
from prefill_router.errors import ConfigError, EngineError, PrefillRouterError
from prefill_router.lazy_imports import optional_imports
from prefill_router.progress import Progress, SilentProgress

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
        ray = self._connected()
        run = ray.remote(_run_task).options(num_cpus=self.cpus, max_retries=RETRIES, name="task")
        # in a list, the reference isn't resolved with each task; a worker fetches the inputs once
        pool: _RayTasks[Shared] = _RayTasks(run, [ray.put(shared)], self._place, self._most(ray))
        try:
            yield pool
        finally:
            for reference in list(pool.running):
                ray.cancel(reference, force=True)

    def stream(
        self,
        make: Callable[[str], Callable[[Item], Result]],
        items: Sequence[Item],
        *,
        gpu_workers: Range = (0, 0),
    ) -> Iterator[Result]:
        """The results of a function with a state, such as a network, in any order.

        An item is done again if its worker dies, and where there are workers of both kinds, which
        begin at opposite ends, perhaps by one of each where they meet. The function must find out
        by itself what is there already.

        Args:
            make: Makes the function, once per worker, for a device: `cpu` or `cuda`.
            items: What the function is called with.
            gpu_workers: The least and the most workers that have a GPU, beside the others.

        Raises:
            ConfigError: The cluster can't be reached.
            EngineError: The workers died again and again on the same item.
            MissingExtraError: Ray isn't installed.
        """
        if not items:
            return
        ray = self._connected(gpu_workers[1])
        most = 0 if gpu_workers[1] else self._most(ray)
        sizes = {"cuda": gpu_workers, "cpu": self.workers or (most, most)}
        counter = ray.remote(num_cpus=0, max_restarts=-1, max_task_retries=-1)(_Attempts)
        work = _Work(make, self._place, counter.remote(), len(sizes) * RETRIES)
        queue, over, seen = SimpleQueue[Any](), Event(), set[int]()
        orders = zip([n for n, size in sizes.items() if size[1]], (1, -1), strict=False)
        for device, step in orders:
            pieces = [_Piece(number, item) for number, item in enumerate(items)][::step]
            found = self._pooled(ray, work, pieces, device, sizes[device])
            Thread(target=_pass_on, args=(found, queue, over), daemon=True).start()
        try:
            while len(seen) < len(items):
                piece = queue.get()
                if isinstance(piece, BaseException):
                    raise _explained(piece)
                if isinstance(piece.value, _Failure):
                    raise piece.value.error
                if piece.number not in seen:
                    seen.add(piece.number)
                    yield piece.value
        finally:
            over.set()

    def _pooled(
        self, ray: Any, work: "_Work", pieces: Sequence["_Piece"], device: str, size: Range
    ) -> "Pieces":
        """The results of one pool of actors."""
        least, most = (max(1, min(count, len(pieces))) for count in size)
        rows = [{"piece": piece} for piece in pieces]
        results = ray.data.from_items(rows, override_num_blocks=len(rows)).map_batches(
            _Actor,
            fn_constructor_kwargs={"work": work, "device": device},
            batch_size=1,
            compute=ray.data.ActorPoolStrategy(min_size=least, max_size=most),
            num_cpus=self.cpus,
            num_gpus=float(device == "cuda"),
        )
        for row in results.iter_rows():
            yield row["piece"]

    @property
    def _place(self) -> tuple[str, int]:
        return str(Path.cwd()), self.cpus

    def _most(self, ray: Any) -> int:
        """The number of workers that run at once."""
        if self.workers is not None:
            return self.workers[1]
        return max(1, int(ray.cluster_resources().get("CPU", 1)) // self.cpus)

    def _connected(self, gpu_workers: int = 0) -> Any:
        """The module of Ray, connected to the cluster until this process ends."""
        for name, value in _QUIET.items():
            os.environ.setdefault(name, value)
        if self.address is None and "RAY_AUTH_MODE" not in os.environ:
            # before the import: Ray listens on every interface where it takes itself for a cluster
            os.environ["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] = "0"
            os.environ |= {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}
        with optional_imports("--engine ray"):
            import ray
            import ray.data
        if not ray.is_initialized():
            self._start(ray, gpu_workers)
        logging.getLogger("ray.data").setLevel(logging.ERROR)
        ray.data.DataContext.get_current().enable_progress_bars = False
        return ray

    def _start(self, ray: Any, gpu_workers: int) -> None:
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
        self._run, self._shared, self._place, self.size = run, shared, place, size
        self.running: set[Any] = set()

    def submit(self, task: Task[Shared, Item, Result], item: Item) -> "Future[Result]":
        reference = self._run.remote(task, self._shared, item, self._place)
        self.running.add(reference)
        answer: Future[Result] = Future()

        def settle(done: Future[Any]) -> None:
            self.running.discard(reference)
            error = done.exception()
            found: Any = None if error else done.result()
            if isinstance(found, _Failure):
                error = found.error
            if error:
                answer.set_exception(_explained(error))
            else:
                answer.set_result(found)

        reference.future().add_done_callback(settle)
        return answer


@final
@dataclass(frozen=True)
class _Failure:
    """An error of this package, as a value."""

    error: PrefillRouterError


@final
@dataclass(frozen=True, eq=False)
class _Piece:
    """An item or its result: one object to Ray Data, which would take a list for an array."""

    number: int
    value: Any


Pieces = Generator[_Piece, None, None]


@final
class _Attempts:
    """Counts how often each item was begun, since Ray Data repeats without a limit."""

    def __init__(self) -> None:
        self._counts: Counter[int] = Counter()

    def begin(self, number: int) -> int:
        self._counts[number] += 1
        return self._counts[number]


@final
@dataclass(frozen=True, eq=False)
class _Work:
    """What the actors of all pools do and where, and who counts their attempts."""

    make: Callable[[str], Callable[[Any], Any]]
    place: tuple[str, int]
    attempts: Any
    limit: int


@final
class _Actor:
    """A worker of a pool of Ray Data."""

    def __init__(self, work: _Work, device: str) -> None:
        _begin(work.place)
        self._work, self._do = work, _attempted(work.make, device)

    def __call__(self, batch: Mapping[str, Any]) -> dict[str, Any]:
        import ray

        (piece,) = batch["piece"]
        result = self._do
        if not isinstance(result, _Failure):
            if ray.get(self._work.attempts.begin.remote(piece.number)) > self._work.limit:
                result = _Failure(EngineError(_DIED))
            else:
                result = _attempted(self._do, piece.value)
        return {"piece": [_Piece(piece.number, result)]}


def _put_error(queue: "SimpleQueue[Any]", error: BaseException | None) -> bool:
    if error is not None:
        queue.put(error)
    return True


def _pass_on(found: Pieces, queue: "SimpleQueue[Any]", over: Event) -> None:
    """Put the results of a pool into a queue until nobody reads it, or the error that ended it."""
    with ExitStack() as stack:
        stack.push(lambda _kind, error, _trace: _put_error(queue, error))
        stack.enter_context(closing(found))
        for piece in found:
            queue.put(piece)
            if over.is_set():
                return


_fetched: dict[Any, Any] = {}
"""The shared inputs of the last task, by their reference: a worker runs many tasks on them."""


def _run_task(
    task: Task[Any, Any, Any], shared: list[Any], item: Any, place: tuple[str, int]
) -> Any:
    if shared[0] not in _fetched:
        import ray

        _begin(place)
        _fetched.clear()
        _fetched[shared[0]] = ray.get(shared[0])
    return _attempted(task, _fetched[shared[0]], item, SilentProgress())


def _begin(place: tuple[str, int]) -> None:
    """Work in the caller's folder, where there is one of that name, with so many threads."""
    import torch  # its import takes seconds, which only workers need here

    folder, cpus = place
    with suppress(OSError):
        os.chdir(folder)
    torch.set_num_threads(cpus)


def _attempted(function: Callable[..., Any], *given: Any) -> Any:
    try:
        return function(*given)
    except PrefillRouterError as error:
        return _Failure(error)


_DIED = (
    f"workers died {RETRIES} times or more on the same piece of work; see whether they have enough "
    "memory (fewer --workers, smaller --batch-tokens), and run the same command again: it goes on "
    "from here"
)


def _explained(error: BaseException) -> BaseException:
    """An error of our own where workers died; others as they are."""
    from ray import exceptions

    died = (
        exceptions.WorkerCrashedError,
        exceptions.ActorDiedError,
        exceptions.ActorUnavailableError,
        exceptions.NodeDiedError,
        exceptions.OutOfMemoryError,
    )
    return EngineError(_DIED) if isinstance(error, died) else error
