"""Nodes, workers and the driver die and come, and nothing is lost: the result is one process's."""

import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from benchmarks._large_world import LatentEncoder
from packages.router.tests.engines.conftest import ENVIRONMENT, ROOT, RayCluster, RayDriver, content
from packages.router.tests.engines.encoding_job import EVERYTHING, allow, plan_of, shards
from prefill_router.activations import ActivationStore
from prefill_router.encoders import run_encoding

pytestmark = pytest.mark.slow

LONGEST = 240
"""Seconds to wait for something; far more than it takes."""


def until(happened: Callable[[], bool], driver: "subprocess.Popen[bytes]") -> None:
    end = time.monotonic() + LONGEST
    while not happened():
        assert driver.poll() is None, "the driver ended before that"
        assert time.monotonic() < end
        time.sleep(0.02)


def test_the_pool_grows_workers_nodes_and_the_driver_die_and_the_store_is_one_processs(
    cluster: RayCluster, driver: RayDriver, tmp_path: Path
) -> None:
    local, store = tmp_path / "local", tmp_path / "s"
    run_encoding(plan_of(local), LatentEncoder(8))
    allow(store, 2)
    words = [
        sys.executable,
        "-m",
        "packages.router.tests.engines.encoding_job",
        cluster.address,
        str(store),
    ]
    with subprocess.Popen(words, cwd=ROOT, env=ENVIRONMENT) as killed:
        until(lambda: shards(store) == 2, killed)
        assert cluster.tell("count") == 1
        assert cluster.tell("add") == 2
        until(lambda: cluster.tell("count") == 2, killed)
        for number, harm in enumerate(("kill", "remove", "add"), 1):
            cluster.tell(harm)
            held = 4 * number
            allow(store, held)
            until(lambda: shards(store) >= held, killed)  # noqa: B023
        killed.send_signal(signal.SIGKILL)
    ActivationStore.open(store).verify()
    assert 12 <= shards(store) < shards(local)
    allow(store, EVERYTHING)
    driver.call("encode", cluster.address, store)
    assert content(store) == content(local)


def test_workers_of_both_kinds_share_the_work_and_errors_are_our_own(
    cluster: RayCluster, driver: RayDriver, tmp_path: Path
) -> None:
    cluster.tell("add")
    found = driver.call("devices", cluster.address, tmp_path)
    assert found["items"] == list(range(40))
    assert found["devices"] == ["cpu", "cuda"]
    assert found["refused"][0] == "StoreError: the state isn't finite"
    assert found["refused"][1].startswith("EngineError: workers died")


def test_work_is_taken_from_its_source_when_there_are_workers_for_it(
    cluster: RayCluster, driver: RayDriver
) -> None:
    assert driver.call("held", cluster.address) <= 2 * 2 + 1


def test_a_task_whose_worker_died_is_done_again_and_errors_are_our_own(
    cluster: RayCluster, driver: RayDriver, tmp_path: Path
) -> None:
    found = driver.call("tasks", cluster.address, tmp_path)
    assert found["squares"] == [0, 1, 4, 9, 16, 25]
    assert (tmp_path / "died").exists()
    assert found["refused"][0] == "PromptError: query 'q7': the prompt is too long"
    assert found["refused"][1].startswith("EngineError: workers died")
