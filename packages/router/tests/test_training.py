"""The trainer of all networks: when it stops, what it tells, and that it stops with the others."""

import math
import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import numpy as np
import pytest
from threadpoolctl import threadpool_info, threadpool_limits

from prefill_router.progress import Advance, Progress, SilentProgress
from prefill_router.training import Trainer, TrainingRun, train_epochs, train_together


class Scripted(Trainer):
    """Networks whose validation losses are known beforehand."""

    def __init__(self, *losses: list[float], patience: int = 2) -> None:
        self.losses, self.patience = losses, patience
        self.runs = [TrainingRun() for _ in losses]
        self.kept = [math.nan] * len(losses)

    def _going(self) -> list[int]:
        return [i for i, run in enumerate(self.runs) if run.epochs_since_best < self.patience]

    @property
    def active(self) -> int:
        return len(self._going())

    def epoch(self) -> None:
        for i in self._going():
            run = self.runs[i]
            loss = self.losses[i][len(run.validation)]
            if run.record(loss + 1, loss):
                self.kept[i] = loss


class Counted(Progress):
    def __init__(self, error: type[BaseException] | None = None) -> None:
        self.total, self.told, self.error = 0.0, list[float](), error

    @contextmanager
    def _count(self) -> Iterator[Advance]:
        def advance(amount: float = 1, *, note: str = "") -> None:
            del note
            self.told.append(amount)
            if self.error:
                raise self.error

        yield advance

    def task(self, label: str, *, total: float) -> AbstractContextManager[Advance]:
        assert label
        self.total = total
        return self._count()


def test_it_stops_after_so_many_epochs_without_a_better_loss() -> None:
    trainer = Scripted([3.0, 2.0, 2.5, 2.0, 1.0])
    train_epochs(trainer, max_epochs=5)
    [run] = trainer.runs
    assert run.validation == [3.0, 2.0, 2.5, 2.0]  # an equal loss is no better
    assert (run.best_epoch, run.best, trainer.kept) == (1, 2.0, [2.0])
    assert run.to_dict() == {
        "best_epoch": 1,
        "train_loss": [4.0, 3.0, 3.5, 3.0],
        "validation_loss": run.validation,
    }


def test_each_network_stops_on_its_own_and_the_rest_of_its_epochs_are_told() -> None:
    told = list[int]()
    trainer = Scripted([1.0, 2.0, 2.0], [4.0, 3.0, 2.0, 1.0, 0.5, 0.4])
    train_epochs(trainer, max_epochs=6, advance=told.append)
    assert [len(run.train) for run in trainer.runs] == [3, 6]
    assert told == [2, 2, 2 + 3, 1, 1, 1]
    assert sum(told) == 2 * 6


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_losses_that_are_never_finite_leave_nothing_to_keep(bad: float) -> None:
    trainer = Scripted([bad, bad, bad])
    train_epochs(trainer, max_epochs=3)
    [run] = trainer.runs
    assert (run.best_epoch, run.best, len(run.train)) == (-1, math.inf, 2)


def test_the_first_finite_loss_is_kept() -> None:
    trainer = Scripted([math.nan, 5.0, 6.0, 6.0])
    train_epochs(trainer, max_epochs=4)
    assert (trainer.runs[0].best_epoch, trainer.kept) == (1, [5.0])


def test_trainers_side_by_side_are_told_of_as_one() -> None:
    progress = Counted()
    trainers = [Scripted([1.0, 2.0, 2.0]), Scripted([3.0, 2.0, 1.0, 0.5, 0.4])]
    train_together(trainers, max_epochs=5, progress=progress)
    assert progress.total == sum(progress.told) == 2 * 5
    assert [one.kept for one in trainers] == [[1.0], [0.4]]


class Broken(Scripted):
    def epoch(self) -> None:
        raise ZeroDivisionError


class Endless(Scripted):
    @property
    def active(self) -> int:
        return 1

    def epoch(self) -> None:
        self.runs[0].record(1.0, 1.0)


def test_an_error_in_one_thread_ends_the_others_and_is_raised() -> None:
    before = threading.active_count()
    with pytest.raises(ZeroDivisionError):
        train_together([Broken([1.0]), Endless([1.0])], max_epochs=10**9, progress=SilentProgress())
    assert threading.active_count() == before


def test_an_interrupt_ends_the_threads() -> None:
    before = threading.active_count()
    with pytest.raises(KeyboardInterrupt):
        train_together([Endless([1.0])], max_epochs=10**9, progress=Counted(KeyboardInterrupt))
    assert threading.active_count() == before


def blas_threads() -> set[int]:
    return {one["num_threads"] for one in threadpool_info() if one["user_api"] == "blas"}


class Multiplying(Scripted):
    """Records the threads that BLAS uses, and how many trainers are at work."""

    at_work, most, blas = 0, 0, set[int]()
    lock, meet = threading.Lock(), threading.Barrier(1)

    def epoch(self) -> None:
        kind = type(self)
        with kind.lock:
            kind.at_work += 1
            kind.most = max(kind.most, kind.at_work)
        kind.meet.wait(60)
        np.ones((2, 2)) @ np.ones((2, 2))
        kind.blas |= blas_threads()
        super().epoch()
        with kind.lock:
            kind.at_work -= 1


@pytest.mark.parametrize("cores", [1, 2])
def test_there_are_as_many_threads_as_blas_had_and_each_of_them_uses_one(cores: int) -> None:
    state: dict[str, Any] = {"blas": set(), "meet": threading.Barrier(cores)}
    kind = type("Kind", (Multiplying,), state)
    with threadpool_limits(cores, user_api="blas"):
        trainers = [kind([2.0, 1.0]) for _ in range(2)]
        train_together(trainers, max_epochs=2, progress=SilentProgress())
        assert blas_threads() == {cores}
    assert (kind.most, kind.blas) == (cores, {1})


def test_trainings_that_overlap_restore_the_threads_of_blas_once() -> None:
    class Nested(Scripted):
        def epoch(self) -> None:
            train_together([Scripted([1.0])], max_epochs=1, progress=SilentProgress())
            assert blas_threads() == {1}
            super().epoch()

    with threadpool_limits(2, user_api="blas"):
        train_together([Nested([2.0, 1.0])], max_epochs=2, progress=SilentProgress())
        assert blas_threads() == {2}
