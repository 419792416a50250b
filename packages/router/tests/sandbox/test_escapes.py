"""Nothing outside can be reached, and each of the attempts would succeed elsewhere."""

import json
import os
import platform
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from packages.router.tests.sandbox.escapes import ESCAPES, MACHINE_CODE, X32_CALL, Escape, outside
from packages.router.tests.sandbox.runners import Runner

pytestmark = pytest.mark.slow

on_x86 = pytest.mark.skipif(platform.machine() != "x86_64", reason="for x86_64 alone")


@pytest.fixture(scope="module")
def outer_objects() -> Iterator[dict[str, Any]]:
    with tempfile.TemporaryDirectory() as name:
        Path(name).chmod(0o755)
        with outside(Path(name)) as reachable:
            yield reachable


def run_bare(program: str, outer_objects: dict[str, Any]) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-I", "-c", program]
    return subprocess.run(
        command, input=json.dumps(outer_objects), text=True, capture_output=True, check=False
    )


@pytest.mark.parametrize("escape", ESCAPES, ids=lambda escape: escape.name)
def test_is_held(runner: Runner, escape: Escape, outer_objects: dict[str, Any]) -> None:
    outcome = runner(escape.program, stdin=json.dumps(outer_objects).encode())
    assert outcome.status in escape.ends, outcome
    assert b"harm" not in outcome.stdout, outcome
    if outcome.status == "ok":
        assert outcome.stdout.startswith(b"held"), outcome
    assert Path(outer_objects["written"]).read_text() == "untouched"
    os.kill(outer_objects["process"], 0)


CONTROLLED = [escape for escape in ESCAPES if escape.control != "nobody"]


@pytest.mark.parametrize("escape", CONTROLLED, ids=lambda escape: escape.name)
def test_would_succeed_without_a_sandbox(escape: Escape, outer_objects: dict[str, Any]) -> None:
    if escape.control == "root" and os.geteuid() != 0:
        pytest.skip("only root could do this")
    process = run_bare(escape.program, outer_objects)
    Path(outer_objects["written"]).write_text("untouched")
    if (
        escape.name in ("opens an io_uring", "makes a user namespace")
        and "harm" not in process.stdout
    ):
        pytest.skip(f"this machine refuses it to everybody: {process.stdout}")
    assert process.stdout == "harm\n", process


@on_x86
def test_calls_of_another_architecture_end_the_process(runner: Runner) -> None:
    outcome = runner(MACHINE_CODE, stdin=b"{}")
    assert (outcome.status, outcome.exit_code) == ("killed", 128 + 31)
    assert run_bare(MACHINE_CODE, {}).returncode == 0


@on_x86
def test_calls_of_x32_end_the_process(runner: Runner) -> None:
    outcome = runner(X32_CALL, stdin=b"{}")
    assert (outcome.status, outcome.exit_code) == ("killed", 128 + 31)
    assert run_bare(X32_CALL, {}).stdout == "went on\n"
