"""Where folds are scored: in this process, or in several others."""

import os
from collections.abc import Iterator, Sequence
from concurrent.futures import Executor, Future, ProcessPoolExecutor
from contextlib import contextmanager
from multiprocessing import get_context, parent_process
from threading import Thread
from typing import final

from prefill_router.calibration import CalibratorKind
from prefill_router.errors import FitError, MissingExtraError
from prefill_router.fitting import Recipe
from prefill_router.studies.search.bench import Bench, FoldScore

Answer = tuple[dict[str, FoldScore], float, str]
"""Scores by kind of calibration, seconds, and why there are none."""


@final
class Team:
    """Scores folds: several at once in other processes, or one here, when it is asked."""

    def __init__(self, at: Bench | Executor, size: int) -> None:
        self._at = at
        self.size = size

    def score(self, recipe: Recipe, kinds: Sequence[CalibratorKind], fold: int) -> "Future[Answer]":
        """Begin to score one candidate on one fold."""
        if isinstance(self._at, Executor):
            return self._at.submit(_answer_there, recipe, tuple(kinds), fold)
        done: Future[Answer] = Future()
        done.set_result(answer(self._at, recipe, kinds, fold))
        return done


@contextmanager
def team(bench: Bench, jobs: int) -> Iterator[Team]:
    """One process for each job; only train rows are sent there, since the bench has no others."""
    if jobs == 1:
        yield Team(bench, 1)
        return
    with ProcessPoolExecutor(
        jobs, mp_context=get_context("spawn"), initializer=_begin, initargs=(bench,)
    ) as pool:
        try:
            yield Team(pool, jobs)
        finally:
            pool.shutdown(wait=True, cancel_futures=True)


def answer(bench: Bench, recipe: Recipe, kinds: Sequence[CalibratorKind], fold: int) -> Answer:
    """The scores, or the reason why there can't be any."""
    try:
        return *bench.score(recipe, kinds, fold), ""
    except (FitError, MissingExtraError) as error:
        return {}, 0.0, str(error)


_bench_here: list[Bench] = []


def _begin(bench: Bench) -> None:
    os.environ["OMP_NUM_THREADS"] = "1"  # each process has a core; threads would quarrel over them
    _bench_here.append(bench)
    Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    """End when the parent is killed: a pool's process would wait for work for ever."""
    parent = parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


def _answer_there(recipe: Recipe, kinds: Sequence[CalibratorKind], fold: int) -> Answer:
    return answer(_bench_here[-1], recipe, kinds, fold)
