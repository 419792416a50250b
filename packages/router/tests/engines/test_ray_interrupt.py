"""A command whose work Ray carries is interrupted as one without it, and leaves nothing behind."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path

import pytest
import torch

from packages.router.tests.commands import run_ok
from packages.router.tests.engines.conftest import ENVIRONMENT, ROOT, content
from packages.router.tests.engines.encoding_job import allow, shards
from packages.router.tests.engines.gated_command import CHUNK_TOKENS
from packages.router.tests.engines.ray_cluster import descendants
from packages.router.tests.fakes.tiny_encoder import save_tiny_encoder
from prefill_router import encoders
from prefill_router.cli.application import ExitCode
from prefill_router.data import write_dataset
from prefill_router.testing import make_routing_dataset

pytestmark = pytest.mark.slow

LONGEST = 240
"""Seconds to wait for something; far more than it takes."""
LISTENING, LOOPBACK = "0A", {"0100007F", "0000000000000000FFFF00000100007F"}


def until(happened: Callable[[], bool]) -> None:
    end = time.monotonic() + LONGEST
    while not happened():
        assert time.monotonic() < end
        time.sleep(0.01)


def list_addresses(processes: list[int]) -> set[str]:
    """The addresses that processes listen on, in hexadecimal."""
    inodes = set()
    for pid in processes:
        for path in Path(f"/proc/{pid}/fd").glob("*"):
            with suppress(OSError):  # closed meanwhile
                if (name := str(path.readlink())).startswith("socket:["):
                    inodes.add(name[len("socket:[") : -1])
    rows = [
        line.split()
        for table in ("tcp", "tcp6")
        for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]
    ]
    return {row[1].partition(":")[0] for row in rows if row[3] == LISTENING and row[9] in inodes}


@pytest.fixture
def one_thread(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """As many threads as a worker, and as small chunks, in this process."""
    small = partial(encoders.plan_encoding, chunk_tokens=CHUNK_TOKENS)
    monkeypatch.setattr(encoders, "plan_encoding", small)
    usual = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(usual)


@pytest.mark.usefixtures("one_thread")
def test_an_interrupted_command_says_so_ends_its_ray_and_goes_on(tmp_path: Path) -> None:
    write_dataset(make_routing_dataset(queries=100), tmp_path / "answers")
    encoder = save_tiny_encoder(tmp_path / "tiny")
    common = ["encode", tmp_path / "answers", "--encoder", encoder, "--out"]
    environment = dict(ENVIRONMENT)
    environment.pop("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER")  # the engine sets it itself
    store, local = tmp_path / "ray", tmp_path / "local"
    program = [sys.executable, "-m", "packages.router.tests.engines.gated_command"]
    allow(store, 2)
    with subprocess.Popen(
        [*program, *common, store, "--engine", "ray", "--workers", "1"],
        cwd=ROOT,
        env=environment,
        stderr=subprocess.PIPE,
        start_new_session=True,
        text=True,
    ) as command:
        try:
            until(lambda: shards(store) == 2 or command.poll() is not None)
            processes = descendants(command.pid)
            places = list_addresses([command.pid, *processes])
            os.killpg(command.pid, signal.SIGINT)
            _, messages = command.communicate(timeout=LONGEST)
        finally:
            command.kill()  # or the test would wait for it
    assert command.returncode == ExitCode.INTERRUPTED, messages
    assert messages.splitlines()[-1].startswith("interrupted; what was finished is kept"), messages
    assert "Traceback" not in messages
    assert places
    assert places <= LOOPBACK
    until(lambda: not any(Path(f"/proc/{pid}/exe").exists() for pid in processes))
    assert shards(store) == 2
    for folder in (local, store):
        run_ok(*common, folder)
    assert content(store) == content(local)
    assert shards(store) > 2
