"""One cluster and one process that is connected to it, for the tests of a file; idle, both cost."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

REPLY = "reply "
ROOT = Path(__file__).parents[4]
ENVIRONMENT = {
    **os.environ,
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_worker_niceness": "0",
    "OMP_NUM_THREADS": "1",
}
"""So that the cluster is on the loopback interface alone, and its commands look for it there; and
that every process has as many threads as a worker."""


class Program:
    """A process that answers lines."""

    def __init__(self, module: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", module],
            cwd=ROOT,
            env=ENVIRONMENT,
            text=True,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )

    def answer(self, beginning: str = "") -> str:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.startswith(beginning):
                return line.removeprefix(beginning).strip()
        raise AssertionError("the program ended")

    def say(self, line: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(f"{line}\n")
        self.process.stdin.flush()

    def end(self) -> None:
        with self.process:
            try:
                self.process.communicate(timeout=60)
            finally:
                self.process.kill()


class RayCluster(Program):
    """The cluster."""

    def __init__(self) -> None:
        super().__init__("packages.router.tests.engines.ray_cluster")
        self.address = self.answer()

    def tell(self, word: str) -> int:
        self.say(word)
        return int(self.answer())


class RayDriver(Program):
    """The connected process."""

    def __init__(self) -> None:
        super().__init__("packages.router.tests.engines.ray_driver")

    def call(self, name: str, *values: object) -> Any:
        arguments = [value if value is None else str(value) for value in values]
        self.say(json.dumps([name, *arguments]))
        return json.loads(self.answer(REPLY))


@pytest.fixture(scope="module")
def driver() -> Iterator[RayDriver]:
    driver = RayDriver()
    yield driver
    driver.end()


@pytest.fixture(scope="module")
def cluster(driver: RayDriver) -> Iterator[RayCluster]:
    del driver  # it imports meanwhile, and ends later
    cluster = RayCluster()
    yield cluster
    cluster.end()


def content(folder: Path) -> dict[str, bytes]:
    """The files of a folder, but for locks."""
    files = [p for p in folder.rglob("*") if p.is_file() and not p.name.startswith(".")]
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}
