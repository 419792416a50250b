"""Tasks in this process: results in order, kept ones not made again, nothing of Ray."""

import os
import pickle
import sys
from typing import Any

import numpy as np
import pytest
import threadpoolctl

from packages.router.tests.commands import check_malformed
from prefill_router.cli.options import worker_range
from prefill_router.engines import LocalEngine, RayEngine
from prefill_router.errors import ConfigError, MissingExtraError, PromptError
from prefill_router.progress import Progress


def add(shared: int, item: int, progress: Progress) -> int:
    del progress
    return shared + item


def test_results_are_in_order_and_what_is_held_is_not_made_again() -> None:
    stored: list[tuple[int, int]] = []
    results = LocalEngine().map(
        add,
        10,
        [3, 1, 2],
        load=lambda item: 70 if item == 1 else None,
        keep=lambda item, result: stored.append((item, result)),
        finish=lambda item, result: (item, result),
    )
    assert results == [(3, 13), (1, 70), (2, 12)]
    assert stored == [(3, 13), (2, 12)]
    assert LocalEngine().map(add, 10, [], finish=add) == []
    assert "ray" not in sys.modules


@pytest.mark.slow
def test_processes_give_the_same() -> None:
    results = LocalEngine(2).map(add, 10, [3, 1, 2], finish=lambda _, result: result)
    assert results == [13, 11, 12]


def threads(shared: Any, item: int, progress: Progress) -> set[int]:
    del shared, item, progress
    return {library["num_threads"] for library in threadpoolctl.threadpool_info()}


@pytest.mark.slow
def test_a_process_has_one_thread_whatever_is_shared(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
        monkeypatch.delenv(name, raising=False)
    thread_counts = LocalEngine(2).map(threads, np.ones(3), [0], finish=lambda _, result: result)
    assert thread_counts == [{1}]
    assert "OMP_NUM_THREADS" not in os.environ


def test_an_error_is_the_same_in_another_process() -> None:
    error: Any = pickle.loads(pickle.dumps(PromptError("too long", query_id="q7")))
    assert (type(error), str(error), error.query_id) == (PromptError, "query 'q7': too long", "q7")
    assert error.messages == ("query 'q7': too long",)


def test_without_the_extra_it_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "environ", dict(os.environ))
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(MissingExtraError, match=r"prefill-router\[ray\]"):
        RayEngine().map(add, 10, [1], finish=add)


def test_a_client_of_ray_is_refused() -> None:
    with pytest.raises(ConfigError, match="on a node"):
        RayEngine(address="ray://head:10001")


def test_workers_are_a_number_or_a_range() -> None:
    assert worker_range("--workers", "4") == (4, 4)
    assert worker_range("--workers", "0-8") == (0, 8)
    assert worker_range("--workers", None) is None


@pytest.mark.parametrize("workers", ["0", "8-1", "many", "-1", "1-"])
def test_other_numbers_of_workers_are_refused(workers: str) -> None:
    words = ("compare", "all", "--data", "d", "--out", "o", "--engine", "ray")
    check_malformed("a range such as 1-8", *words, f"--workers={workers}")


@pytest.mark.slow
def test_options_of_an_engine_need_it() -> None:
    words = ("encode", "d", "--out", "o")
    for option in ("--address=auto", "--workers=2", "--worker-cpus=2", "--gpu-workers=1"):
        check_malformed("--engine ray", *words, option)
    check_malformed("--gpu-workers", *words, "--engine", "ray", "--device", "cuda")
    check_malformed(
        "--jobs", "search", "default", "--data", "d", "--out", "o", "--engine=ray", "--jobs=2"
    )
