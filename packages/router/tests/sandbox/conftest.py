"""The sandbox of this user, and of an ordinary user."""

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from packages.router.tests.sandbox.runners import (
    OtherUserRunner,
    OwnRunner,
    Runner,
    ordinary_runner,
)
from prefill_router.errors import SandboxError
from prefill_router.sandbox import Sandbox

READABLE = "/usr/bin:/usr/local/bin:/bin"
NEW_ENOUGH = "import sys; sys.exit(sys.version_info < (3, 11))"


def skip_where_refused(error: SandboxError) -> None:
    """Skip if the machine allows no namespaces; a sandbox with a hole is a failure."""
    if "namespace" in str(error).partition(". The sandbox needs")[0]:
        pytest.skip(f"there is no sandbox here: {error}")


@pytest.fixture(scope="session")
def sandbox() -> Sandbox:
    if shutil.which("bwrap") is None:
        pytest.skip("bubblewrap is not installed; apt-get install bubblewrap")
    try:
        return Sandbox.open()
    except SandboxError as error:
        skip_where_refused(error)
        raise


@pytest.fixture(scope="session")
def ordinary() -> Iterator[OtherUserRunner]:
    if shutil.which("bwrap") is None:
        pytest.skip("bubblewrap is not installed; apt-get install bubblewrap")
    if os.geteuid() != 0:
        pytest.skip("the tests already run as an ordinary user")
    python = shutil.which("python3", path=READABLE)
    if python is None or subprocess.run([python, "-c", NEW_ENOUGH], check=False).returncode:
        pytest.skip("no interpreter from 3.11 on that an ordinary user can read")
    with tempfile.TemporaryDirectory() as name:
        Path(name).chmod(0o755)
        with ordinary_runner(Path(name), python) as runner:
            try:
                runner("pass")
            except SandboxError as error:
                skip_where_refused(error)
                raise
            yield runner


@pytest.fixture(params=["as who runs the tests", "as an ordinary user"])
def runner(request: pytest.FixtureRequest) -> Runner:
    if request.param == "as an ordinary user":
        other: OtherUserRunner = request.getfixturevalue("ordinary")
        return other
    return OwnRunner(request.getfixturevalue("sandbox"))
