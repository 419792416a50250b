"""The trainer of all networks: when it stops, its progress, and that all stop together."""

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


class ScriptedTrainer(Trainer):
    """Networks whose validation losses are known beforehand."""

    def __init__(self, *losses: list[float], patience: int = 2) -> None:
        self.losses, self.patience = losses, patience
        self.runs = [TrainingRun() for _ in losses]
        self.kept_losses = [math.nan] * len(losses)

    def _list_active(self) -> list[int]:
        return [i for i, run in enumerate(self.runs) if run.epochs_since_best < self.patience]

    @property
    def active(self) -> int:
        return len(self._list_active())

    def epoch(self) -> None:
        for i in self._list_active():
            run = self.runs[i]
            loss = self.losses[i][len(run.validation)]
            if run.record(loss + 1, loss):
                self.kept_losses[i] = loss


class CountedProgress(Progress):
    def __init__(self, error: type[BaseException] | None = None) -> None:
        self.total, self.amounts, self.error = 0.0, list[float](), error

    @contextmanager
    def _count(self) -> Iterator[Advance]:
        def advance(amount: float = 1, *, note: str = "") -> None:
            del note
            self.amounts.append(amount)
            if self.error:
                raise self.error

        yield advance

    def task(self, label: str, *, total: float) -> AbstractContextManager[Advance]:
        assert label
        self.total = total
        return self._count()


def test_it_stops_after_so_many_epochs_without_a_better_loss() -> None:
    trainer = ScriptedTrainer([3.0, 2.0, 2.5, 2.0, 1.0])
    train_epochs(trainer, max_epochs=5)
    [run] = trainer.runs
    assert run.validation == [3.0, 2.0, 2.5, 2.0]  # an equal loss is no better
    assert (run.best_epoch, run.best, trainer.kept_losses) == (1, 2.0, [2.0])
    assert run.to_dict() == {
        "best_epoch": 1,
        "train_loss": [4.0, 3.0, 3.5, 3.0],
        "validation_loss": run.validation,
    }


def test_each_network_stops_on_its_own_and_the_rest_of_its_epochs_are_told() -> None:
    amounts = list[int]()
    trainer = ScriptedTrainer([1.0, 2.0, 2.0], [4.0, 3.0, 2.0, 1.0, 0.5, 0.4])
    train_epochs(trainer, max_epochs=6, advance=amounts.append)
    assert [len(run.train) for run in trainer.runs] == [3, 6]
    assert amounts == [2, 2, 2 + 3, 1, 1, 1]
    assert sum(amounts) == 2 * 6


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_losses_that_are_never_finite_leave_nothing_to_keep(bad: float) -> None:
    trainer = ScriptedTrainer([bad, bad, bad])
    train_epochs(trainer, max_epochs=3)
    [run] = trainer.runs
    assert (run.best_epoch, run.best, len(run.train)) == (-1, math.inf, 2)


def test_the_first_finite_loss_is_kept() -> None:
    trainer = ScriptedTrainer([math.nan, 5.0, 6.0, 6.0])
    train_epochs(trainer, max_epochs=4)
    assert (trainer.runs[0].best_epoch, trainer.kept_losses) == (1, [5.0])


def test_trainers_side_by_side_are_told_of_as_one() -> None:
    progress = CountedProgress()
    trainers = [ScriptedTrainer([1.0, 2.0, 2.0]), ScriptedTrainer([3.0, 2.0, 1.0, 0.5, 0.4])]
    train_together(trainers, max_epochs=5, progress=progress)
    assert progress.total == sum(progress.amounts) == 2 * 5
    assert [trainer.kept_losses for trainer in trainers] == [[1.0], [0.4]]


class BrokenTrainer(ScriptedTrainer):
    def epoch(self) -> None:
        raise ZeroDivisionError


class EndlessTrainer(ScriptedTrainer):
    @property
    def active(self) -> int:
        return 1

    def epoch(self) -> None:
        self.runs[0].record(1.0, 1.0)


def test_an_error_in_one_thread_ends_the_others_and_is_raised() -> None:
    before = threading.active_count()
    with pytest.raises(ZeroDivisionError):
        train_together(
            [BrokenTrainer([1.0]), EndlessTrainer([1.0])],
            max_epochs=10**9,
            progress=SilentProgress(),
        )
    assert threading.active_count() == before


def test_an_interrupt_ends_the_threads() -> None:
    before = threading.active_count()
    with pytest.raises(KeyboardInterrupt):
        train_together(
            [EndlessTrainer([1.0])], max_epochs=10**9, progress=CountedProgress(KeyboardInterrupt)
        )
    assert threading.active_count() == before


def blas_threads() -> set[int]:
    return {pool["num_threads"] for pool in threadpool_info() if pool["user_api"] == "blas"}


class MultiplyingTrainer(ScriptedTrainer):
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
    kind = type("Kind", (MultiplyingTrainer,), state)
    with threadpool_limits(cores, user_api="blas"):
        trainers = [kind([2.0, 1.0]) for _ in range(2)]
        train_together(trainers, max_epochs=2, progress=SilentProgress())
        assert blas_threads() == {cores}
    assert (kind.most, kind.blas) == (cores, {1})


def test_trainings_that_overlap_restore_the_threads_of_blas_once() -> None:
    class NestedTrainer(ScriptedTrainer):
        def epoch(self) -> None:
            train_together([ScriptedTrainer([1.0])], max_epochs=1, progress=SilentProgress())
            assert blas_threads() == {1}
            super().epoch()

    with threadpool_limits(2, user_api="blas"):
        train_together([NestedTrainer([2.0, 1.0])], max_epochs=2, progress=SilentProgress())
        assert blas_threads() == {2}
