"""The trainer of all networks: epoch by epoch, until the validation loss has stopped falling.

What a network is, how it computes and what an epoch does is each method's own; when it stops, which
weights it ends with, and on which cores it is trained is settled here for all. Importing this
doesn't load torch.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from queue import SimpleQueue
from threading import Event
from typing import Any

from prefill_router.progress import Progress


@dataclass(eq=False)
class TrainingRun:
    """One network in training: its losses so far, and which epoch was its best.

    Attributes:
        train: Mean loss of each epoch, in nats per label, with dropout, as the weights moved.
        validation: After each epoch, without dropout.
        best_epoch: The epoch, from 0, of the least validation loss; -1 before the first finite one.
    """

    train: list[float] = field(default_factory=list)
    validation: list[float] = field(default_factory=list)
    best_epoch: int = -1

    @property
    def best(self) -> float:
        """Its least validation loss; infinite before the first finite one."""
        return self.validation[self.best_epoch] if self.best_epoch >= 0 else float("inf")

    @property
    def waited(self) -> int:
        """Epochs since the best one."""
        return len(self.validation) - 1 - self.best_epoch

    def record(self, train: float, validation: float) -> bool:
        """Note an epoch's losses; whether the weights are the best so far, and must be kept."""
        better = validation < self.best
        self.train.append(train)
        self.validation.append(validation)
        if better:
            self.best_epoch = len(self.validation) - 1
        return better

    def to_dict(self) -> dict[str, Any]:
        """Plain values for the record."""
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
        """How many of its runs haven't stopped."""

    @abstractmethod
    def epoch(self) -> None:
        """Pass over the fitting rows once, then record every run's losses and its best weights."""


def train_epochs(
    trainer: Trainer,
    *,
    max_epochs: int,
    advance: Callable[[int], None] | None = None,
    stop: Event | None = None,
) -> None:
    """Train until all runs have stopped.

    Args:
        trainer: What is trained.
        max_epochs: At most.
        advance: Told of every run's epochs, and of those that a stopped run doesn't need.
        stop: Set where it must end after this epoch.
    """
    for gone in range(1, max_epochs + 1):
        before = trainer.active
        trainer.epoch()
        left = trainer.active
        if advance:
            advance(before + (before - left) * (max_epochs - gone))
        if not left or (stop and stop.is_set()):
            break


def train_together(trainers: Sequence[Trainer], *, max_epochs: int, progress: Progress) -> None:
    """Train several side by side, each by one thread on one core, until all their runs stopped.

    What is small wastes less time so than with every operation cut in two; and where a trainer has
    draws of its own, what it learns depends neither on the others nor on the number of cores.
    """
    import torch  # only fitting needs it, and using a router shouldn't wait for it

    cores, stop, told = torch.get_num_threads(), Event(), SimpleQueue[int]()

    def train(trainer: Trainer) -> None:
        torch.set_num_threads(1)
        train_epochs(trainer, max_epochs=max_epochs, advance=told.put, stop=stop)

    total = max_epochs * sum(trainer.active for trainer in trainers)
    try:
        with progress.task("training", total=total) as advance, ThreadPoolExecutor(cores) as pool:
            jobs = {pool.submit(train, trainer) for trainer in trainers}
            try:
                _watch(jobs, told, advance)
            finally:
                stop.set()
    finally:
        torch.set_num_threads(cores)  # the threads have set it to one


def _watch(
    jobs: set[Future[None]], told: SimpleQueue[int], advance: Callable[[float], None]
) -> None:
    """Pass on what the threads tell until they are done; progress is only told by this thread."""
    while jobs:
        done, jobs = wait(jobs, timeout=0.1, return_when=FIRST_EXCEPTION)
        while not told.empty():
            advance(told.get())
        for job in done:
            job.result()
