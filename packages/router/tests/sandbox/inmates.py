"""Finds the processes of sandboxes from outside, by a name that they give themselves."""

import secrets
import time
from pathlib import Path


def new_name() -> str:
    return "inmate" + secrets.token_hex(4)


def name_program(name: str, program: str) -> str:
    """The program, which first gives its process and all its children a name."""
    return f"import ctypes; ctypes.CDLL(None).prctl(15, {name.encode()!r}, 0, 0, 0)\n{program}"


def find_processes(name: str) -> list[int]:
    pids = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if (folder / "comm").read_text().strip() == name:
                pids.append(int(folder.name))
        except (FileNotFoundError, ProcessLookupError):
            continue
    return pids


def wait_for(name: str, *, present: bool, seconds: float = 20) -> bool:
    deadline = time.monotonic() + seconds
    while bool(find_processes(name)) != present:
        if time.monotonic() > deadline:
            return False
        time.sleep(0.01)
    return True
