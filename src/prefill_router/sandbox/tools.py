"""What a run is built from: bubblewrap, two tools of util-linux, and a Python interpreter."""

import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import final

from prefill_router.errors import SandboxError

OLDEST_BUBBLEWRAP = (0, 8)
OLDEST_PYTHON = (3, 11)
NEEDED = "bubblewrap and util-linux (apt-get install bubblewrap util-linux)"
_SYSTEM_PATH = "/usr/bin:/bin:/usr/local/bin"
_ASK_PYTHON = "import sys; print(sys.base_prefix, *sys.version_info[:2], sep='\\n')"
_ASK_SECONDS = 30


@final
@dataclass(frozen=True)
class Tools:
    """Absolute paths.

    Attributes:
        bwrap: bubblewrap.
        setpriv: Changes the user and drops capabilities; under /usr, which the sandbox sees.
        prlimit: Sets limits; under /usr too.
        python: The interpreter that runs the programs.
        python_prefix: The folder that the interpreter and its library stand in.
    """

    bwrap: str
    setpriv: str
    prlimit: str
    python: str
    python_prefix: str


def find_tools(*, python: Path | None) -> Tools:
    """Find everything; the interpreter is the one that runs this unless another is given.

    Raises:
        SandboxError: Something is missing or too old, with what to install.
    """
    bwrap, setpriv, prlimit = (_find(name) for name in ("bwrap", "setpriv", "prlimit"))
    _check_bubblewrap(bwrap)
    prefix, version = _ask(python) if python else (sys.base_prefix, sys.version_info[:2])
    if version < OLDEST_PYTHON:
        raise SandboxError(
            f"{python} is Python {_dotted(version)}; the sandbox needs {_dotted(OLDEST_PYTHON)} "
            "or newer"
        )
    executable = f"{prefix}/bin/python{_dotted(version)}"
    if not os.access(executable, os.X_OK):
        raise SandboxError(f"{executable} can't be run; name another interpreter for the programs")
    return Tools(bwrap, setpriv, prlimit, executable, prefix)


def _find(name: str) -> str:
    found = shutil.which(name, path=_SYSTEM_PATH)
    if found is None:
        raise SandboxError(
            f"programs are run in a sandbox, and {name} is not there to make it; install {NEEDED}"
        )
    return found


def _check_bubblewrap(bwrap: str) -> None:
    told = _output(bwrap, "--version")
    found = re.search(r"(\d+)\.(\d+)", told)
    if found is None or (int(found[1]), int(found[2])) < OLDEST_BUBBLEWRAP:
        raise SandboxError(
            f"{bwrap} is {told.strip() or 'of no known version'}; the sandbox needs bubblewrap "
            f"{_dotted(OLDEST_BUBBLEWRAP)} or newer (apt-get install bubblewrap)"
        )


def _ask(python: Path) -> tuple[str, tuple[int, int]]:
    lines = _output(str(python), "-I", "-c", _ASK_PYTHON).splitlines()
    if len(lines) != 3:
        raise SandboxError(f"{python} isn't a Python interpreter; name another")
    return lines[0], (int(lines[1]), int(lines[2]))


def _output(*command: str) -> str:
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=_ASK_SECONDS, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout


def _dotted(version: tuple[int, int]) -> str:
    return ".".join(map(str, version))
