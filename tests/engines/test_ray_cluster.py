"""Nodes, workers and the driver die, and nothing is lost: the result is one process's."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from prefill_router.activations import ActivationStore
from prefill_router.data import write_dataset
from prefill_router.encoders import load_encoder, run_encoding
from prefill_router.testing import make_routing_dataset
from tests.commands import succeeded
from tests.engines.encoding_job import plan_of
from tests.fakes.tiny_encoder import save_tiny_encoder

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
ENVIRONMENT = {**os.environ, "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0"}
"""So that the cluster is on the loopback interface alone, and its commands look for it there."""
LONGEST = 240
"""Seconds that a driver may take; far more than it does."""


class RayCluster:
    """The process of a cluster."""

    def __init__(self, process: "subprocess.Popen[str]") -> None:
        self.process = process
        self.address = self.answer()

    def answer(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def tell(self, word: str) -> str:
        assert self.process.stdin is not None
        self.process.stdin.write(f"{word}\n")
        self.process.stdin.flush()
        return self.answer()


@pytest.fixture(scope="module")
def cluster() -> Iterator[RayCluster]:
    with subprocess.Popen(
        [sys.executable, "-m", "tests.engines.ray_cluster"],
        cwd=ROOT,
        env=ENVIRONMENT,
        text=True,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    ) as process:
        yield RayCluster(process)
        process.communicate(timeout=60)


def content(store: Path) -> dict[str, bytes]:
    files = [p for p in store.rglob("*") if p.is_file() and not p.name.startswith(".")]
    return {str(path.relative_to(store)): path.read_bytes() for path in files}


def shards(store: Path) -> int:
    return len(list(store.glob("shards/[0-9a-f]*.json")))


def timeless(text: str) -> str:
    """A report without the durations of the fits."""
    return re.sub(r'"seconds": [0-9.e-]+', '"seconds": 0', text)


def ended(*words: object) -> "subprocess.CompletedProcess[str]":
    """A program that has ended."""
    command = [sys.executable, *map(str, words)]
    return subprocess.run(
        command, cwd=ROOT, env=ENVIRONMENT, capture_output=True, text=True, timeout=LONGEST
    )


def printed(done: "subprocess.CompletedProcess[str]") -> Any:
    """The JSON object that a program printed; before and after it Ray tells of dead workers."""
    assert done.returncode == 0, done.stderr
    return json.JSONDecoder().raw_decode(done.stdout, done.stdout.index('{"'))[0]


def until(happened: Callable[[], bool], driver: "subprocess.Popen[bytes]") -> None:
    end = time.monotonic() + LONGEST
    while not happened():
        assert driver.poll() is None, "the driver ended before that"
        assert time.monotonic() < end
        time.sleep(0.05)


def test_workers_nodes_and_the_driver_die_and_the_store_is_one_processs(
    cluster: RayCluster, tmp_path: Path
) -> None:
    tiny, local, store = save_tiny_encoder(tmp_path / "tiny"), tmp_path / "local", tmp_path / "s"
    encoder = load_encoder(tiny)
    run_encoding(plan_of(encoder, local), encoder)
    words = [sys.executable, "-m", "tests.engines.encoding_job", cluster.address, tiny, store]
    with subprocess.Popen(words, cwd=ROOT, env=ENVIRONMENT) as driver:
        until(lambda: shards(store) > 2, driver)
        assert int(cluster.tell("kill"))
        held = shards(store)
        until(lambda: shards(store) > held + 2, driver)
        assert cluster.tell("remove") == "1"
        held = shards(store)
        until(lambda: shards(store) > held + 2, driver)
        driver.send_signal(signal.SIGKILL)
    ActivationStore.open(store).verify()
    assert 8 < shards(store) < shards(local)
    assert cluster.tell("add") == "2"
    subprocess.run(words, cwd=ROOT, env=ENVIRONMENT, check=True, timeout=LONGEST)
    assert content(store) == content(local)


def test_a_command_gives_the_same_on_the_cluster(cluster: RayCluster, tmp_path: Path) -> None:
    answers, recipes = tmp_path / "answers", tmp_path / "routers.yaml"
    write_dataset(make_routing_dataset(queries=80), answers)
    recipes.write_text(
        "routers:\n"
        "  linear: {features: complexity, predictor: {kind: logistic}}\n"
        "  near: {features: complexity, predictor: {kind: knn_score, k: 5}}\n"
    )
    words = ["compare", recipes, "--data", answers, "--resamples", 20, "--json"]
    local = succeeded(*words, "--out", tmp_path / "local")
    program = "from prefill_router.cli import main; main()"
    engine = ["--engine", "ray", "--address", cluster.address, "--workers", "2"]
    done = ended("-c", program, *words, "--out", tmp_path / "ray", *engine)
    assert done.returncode == 0, done.stderr
    assert timeless(done.stdout) == timeless(local)
    kept = [content(tmp_path / name / "routers") for name in ("local", "ray")]
    for routers in kept:
        assert routers.keys() == kept[0].keys()
    differing = {name for name in kept[0] if kept[0][name] != kept[1][name]}
    assert all(name.endswith(".times.json") for name in differing)


def test_workers_of_both_kinds_share_the_work_and_errors_are_our_own(
    cluster: RayCluster, tmp_path: Path
) -> None:
    done = ended("-m", "tests.engines.devices_job", cluster.address, tmp_path)
    found = printed(done)
    assert found["items"] == list(range(40))
    assert found["devices"] == ["cpu", "cuda"]
    assert found["refused"][0] == "StoreError: the state isn't finite"
    assert found["refused"][1].startswith("EngineError: workers died")


def test_a_ray_of_its_own_does_tasks_again_and_listens_on_the_loopback_interface(
    tmp_path: Path,
) -> None:
    done = ended("-m", "tests.engines.tasks_job", tmp_path)
    found = printed(done)
    assert found["squares"] == [0, 1, 4, 9, 16, 25]
    assert (tmp_path / "died").exists()
    assert found["refused"] == "PromptError q7: query 'q7': the prompt is too long"
    assert found["died"].startswith("EngineError: workers died")
    assert found["listening"]
    for place in found["listening"]:
        assert place in ("0100007F", "0000000000000000FFFF00000100007F")
