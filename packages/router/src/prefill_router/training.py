"""The training loop of all networks: early stopping on the validation loss.

Each method defines its network and its epochs. Early stopping, the choice of weights and the use of
cores are the same for all and live here.
"""

import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass, field
from queue import SimpleQueue
from threading import Event, Lock
from typing import Any, final

from threadpoolctl import ThreadpoolController

from prefill_router.progress import Progress


@dataclass(eq=False)
class TrainingRun:
    """The losses of one network in training, and its best epoch.

    Attributes:
        train: Mean training loss during each epoch, in nats per label, with dropout.
        validation: Validation loss after each epoch, in nats per label, without dropout.
        best_epoch: The epoch, from 0, of the least validation loss; -1 before the first finite one.
    """

    train: list[float] = field(default_factory=list)
    validation: list[float] = field(default_factory=list)
    best_epoch: int = -1

    @property
    def best(self) -> float:
        """The least validation loss; infinite before the first finite one."""
        return self.validation[self.best_epoch] if self.best_epoch >= 0 else float("inf")

    @property
    def epochs_since_best(self) -> int:
        """Epochs since the best one."""
        return len(self.validation) - 1 - self.best_epoch

    def record(self, train: float, validation: float) -> bool:
        """Record an epoch's losses; True if the weights are the best so far and must be kept."""
        better = validation < self.best
        self.train.append(train)
        self.validation.append(validation)
        if better:
            self.best_epoch = len(self.validation) - 1
        return better

    def to_dict(self) -> dict[str, Any]:
        """The losses as plain values, to be saved."""
        return {
            "best_epoch": self.best_epoch,
            "train_loss": self.train,
            "validation_loss": self.validation,
        }


class Trainer(ABC):
    """One network in training, or several in step with each other."""

    @property
    @abstractmethod
    def active(self) -> int:
        """The number of runs that haven't stopped."""

    @abstractmethod
    def epoch(self) -> None:
        """Train on the fitting rows once, then record every run's losses and best weights."""


def train_epochs(
    trainer: Trainer,
    *,
    max_epochs: int,
    advance: Callable[[int], None] | None = None,
    stop: Event | None = None,
) -> None:
    """Train until all runs have stopped.

    Args:
        trainer: The networks to train.
        max_epochs: The greatest number of epochs.
        advance: Called with the number of epochs done by all runs, including skipped ones.
        stop: Set by another thread to end training after the current epoch.
    """
    for epoch in range(1, max_epochs + 1):
        before = trainer.active
        trainer.epoch()
        left = trainer.active
        if advance:
            advance(before + (before - left) * (max_epochs - epoch))
        if not left or (stop and stop.is_set()):
            break


@final
class _BlasLimit:
    """Limits the BLAS libraries of NumPy and SciPy to one thread per caller.

    The limit belongs to the process, so fits that overlap share it: the first sets it, the last
    restores what was set before.
    """

    def __init__(self) -> None:
        self._lock, self._users, self._cores = Lock(), 0, 1
        self._limit: Any = None

    @contextmanager
    def hold(self) -> Iterator[int]:
        """Keep the limit; yields the number of threads that BLAS used without it."""
        with self._lock:
            if not self._users:
                blas = ThreadpoolController().select(user_api="blas")
                threads = [library["num_threads"] for library in blas.info()]
                self._cores = max(threads, default=os.cpu_count() or 1)
                self._limit = blas.limit(limits=1)
            self._users += 1
        try:
            yield self._cores
        finally:
            with self._lock:
                self._users -= 1
                if not self._users:
                    self._limit.restore_original_limits()


_BLAS = _BlasLimit()


def train_together(trainers: Sequence[Trainer], *, max_epochs: int, progress: Progress) -> None:
    """Train several side by side, each in one thread on one core, until all their runs stop.

    For small networks this is faster than splitting every operation over the cores. Where a
    trainer has its own random numbers, its result depends neither on the others nor on the number
    of cores. There are as many threads as BLAS would use (`OMP_NUM_THREADS`), which meanwhile uses
    one for each.
    """
    stop, epochs = Event(), SimpleQueue[int]()

    def train(trainer: Trainer) -> None:
        train_epochs(trainer, max_epochs=max_epochs, advance=epochs.put, stop=stop)

    total = max_epochs * sum(trainer.active for trainer in trainers)
    with (
        _BLAS.hold() as cores,
        progress.task("training", total=total) as advance,
        ThreadPoolExecutor(cores) as pool,
    ):
        jobs = {pool.submit(train, trainer) for trainer in trainers}
        try:
            _watch_jobs(jobs, epochs, advance)
        finally:
            stop.set()


def _watch_jobs(
    jobs: set[Future[None]], epochs: SimpleQueue[int], advance: Callable[[float], None]
) -> None:
    """Report the progress of the threads until they are done; only this thread may report it."""
    while jobs:
        finished, jobs = wait(jobs, timeout=0.1, return_when=FIRST_EXCEPTION)
        while not epochs.empty():
            advance(epochs.get())
        for job in finished:
            job.result()
