"""A cluster gives what one process gives, also when nodes and workers die and join."""

import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from benchmarks._large_world import LatentEncoder
from packages.router.tests.commands import run_ok
from packages.router.tests.engines.conftest import ENVIRONMENT, ROOT, RayCluster, RayDriver, content
from packages.router.tests.engines.encoding_job import EVERYTHING, allow, plan_of, shards
from packages.router.tests.programs import run_program
from prefill_router.activations import ActivationStore
from prefill_router.data import write_dataset
from prefill_router.encoders import run_encoding
from prefill_router.testing import make_routing_dataset

pytestmark = pytest.mark.slow

LONGEST = 240
"""Seconds to wait for something; far more than it takes."""
RECIPES = """
routers:
  linear: {features: complexity, predictor: {kind: logistic, c: 1.0}}
  near: {features: complexity, predictor: {kind: knn_score, k: 5}}
"""
SPACE = """
features: {text: complexity}
predictors:
  linear: {kind: logistic, try: {c: [0.1, 1]}}
  constant: constant
calibrations: [none, platt]
"""
SHOWN = ("html", "csv", "times.json")
COMMANDS = {
    "compare": ("compare", "routers.yaml", "--resamples", 20),
    "study": ("study", "seeds", "routers.yaml", "--count", 2),
    "search": ("search", "space.yaml", "--trials", 3, "--folds", 3, "--resamples", 20),
}


def timeless(text: str, folder: Path) -> str:
    """A text without durations, dates and the name of its folder."""
    without = re.sub(r'"(seconds|minutes)": [0-9.e-]+|"20[0-9T:+-]{23}"', "TIME", text)
    return without.replace(str(folder), "FOLDER")


def read_results(folder: Path) -> dict[str, object]:
    """What a command wrote, but for pages and tables with durations."""
    files = {n: b for n, b in content(folder).items() if not n.endswith(SHOWN)}
    return {n: timeless(b.decode(), folder) if n.endswith("json") else b for n, b in files.items()}


@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_gives_the_same_on_the_cluster(
    name: str, cluster: RayCluster, driver: RayDriver, tmp_path: Path
) -> None:
    write_dataset(make_routing_dataset(queries=80), tmp_path / "answers")
    (tmp_path / "routers.yaml").write_text(RECIPES)
    (tmp_path / "space.yaml").write_text(SPACE)
    arguments = [tmp_path / word if str(word).endswith("yaml") else word for word in COMMANDS[name]]
    words = [*arguments, "--data", tmp_path / "answers", "--json"]
    local = run_ok(*words, "--out", tmp_path / "local")
    engine = ["--engine", "ray", "--address", cluster.address, "--workers", "1"]
    result = driver.call("command", *words, "--out", tmp_path / "ray", *engine)
    assert result["code"] == 0, result["err"]
    assert timeless(result["out"], tmp_path / "ray") == timeless(local, tmp_path / "local")
    assert read_results(tmp_path / "ray") == read_results(tmp_path / "local")


def test_the_papers_tables_are_the_same(cluster: RayCluster, driver: RayDriver) -> None:
    assert driver.call("paper", cluster.address) == driver.call("paper", None)


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
    with run_program(words, cwd=ROOT, env=ENVIRONMENT) as driver_process:
        until(lambda: shards(store) == 2, driver_process)
        assert cluster.tell("count") == 1
        assert cluster.tell("add") == 2
        until(lambda: cluster.tell("count") == 2, driver_process)
        for number, harm in enumerate(("kill", "remove", "add"), 1):
            cluster.tell(harm)
            shard_count = 4 * number
            allow(store, shard_count)
            until(lambda: shards(store) >= shard_count, driver_process)  # noqa: B023
        driver_process.send_signal(signal.SIGKILL)
    ActivationStore.open(store).verify()
    assert 12 <= shards(store) < shards(local)
    allow(store, EVERYTHING)
    driver.call("encode", cluster.address, store)
    assert content(store) == content(local)


def test_workers_of_both_kinds_share_the_work_and_errors_are_our_own(
    cluster: RayCluster, driver: RayDriver, tmp_path: Path
) -> None:
    cluster.tell("add")
    result = driver.call("devices", cluster.address, tmp_path)
    assert result["items"] == list(range(40))
    assert result["devices"] == ["cpu", "cuda"]
    assert result["refused"][0] == "StoreError: the state isn't finite"
    assert result["refused"][1].startswith("EngineError: workers died")


def test_work_is_taken_from_its_source_when_there_are_workers_for_it(
    cluster: RayCluster, driver: RayDriver
) -> None:
    assert driver.call("count_held", cluster.address) <= 2 * 2 + 1


def test_a_task_whose_worker_died_is_done_again_and_errors_are_our_own(
    cluster: RayCluster, driver: RayDriver, tmp_path: Path
) -> None:
    result = driver.call("tasks", cluster.address, tmp_path)
    assert result["squares"] == [0, 1, 4, 9, 16, 25]
    assert (tmp_path / "died").exists()
    assert result["refused"][0] == "PromptError: query 'q7': the prompt is too long"
    assert result["refused"][1].startswith("EngineError: workers died")
