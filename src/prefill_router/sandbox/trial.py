"""Tries the sandbox on this machine before anything is trusted to it."""

import json
import os
import socket
import tempfile
from typing import Any, Protocol, runtime_checkable

from prefill_router.errors import SandboxError
from prefill_router.sandbox.command import FOLDERS
from prefill_router.sandbox.limits import Limits, Outcome
from prefill_router.sandbox.tools import NEEDED

_PROGRAM = r"""
import ctypes, json, os, resource, socket, sys

given = json.load(sys.stdin)
libc = ctypes.CDLL(None, use_errno=True)

def succeeds(attempt, *arguments):
    try:
        attempt(*arguments)
    except OSError:
        return False
    return True

def connect(family, address):
    with socket.socket(family, socket.SOCK_STREAM) as client:
        client.settimeout(2)
        client.connect(address)

def call(name, *arguments):
    if getattr(libc, name)(*arguments) != 0:
        raise OSError(ctypes.get_errno(), name)

def fork():
    if os.fork() == 0:
        os._exit(0)

def status(name):
    with open("/proc/self/status") as file:
        return next(line.split()[1] for line in file if line.startswith(name + ":"))

def writable():
    found = []
    for folder, below, _ in os.walk("/"):
        if folder in ("/usr", "/proc", sys.prefix):  # each is one mount
            below.clear()
        if succeeds(lambda: os.close(os.open(folder + "/trial", os.O_CREAT | os.O_WRONLY))):
            found.append(folder)
    return sorted(found)

clone_new_user = 0x10000000
out = {
    "reads a file outside": succeeds(open, given["file"]),
    "writes to /proc/sys": succeeds(open, "/proc/sys/kernel/core_pattern", "w"),
    "reaches the first process": succeeds(open, "/proc/1/mem", "r+b"),
    "connects over TCP": succeeds(connect, socket.AF_INET, ("127.0.0.1", given["port"])),
    "connects to a socket outside": succeeds(connect, socket.AF_UNIX, "\0" + given["abstract"]),
    "makes a process": succeeds(fork),
    "makes a namespace": succeeds(call, "unshare", clone_new_user),
    "sees other processes": len([n for n in os.listdir("/proc") if n.isdigit()]) > 2,
    "has capabilities": any(int(status(n), 16) for n in ("CapPrm", "CapEff", "CapBnd", "CapAmb")),
    "can gain privileges": status("NoNewPrivs") != "1",
    "is filtered by nothing": status("Seccomp") != "2",
    "sets attributes of a folder": succeeds(lambda: os.setxattr("/tmp", "user.trial", b"x")),
    "watches files": succeeds(call, "inotify_init1", 0),
    "is root": 0 in os.getresuid() or 0 in os.getresgid(),
    "has no limit on processes": resource.getrlimit(resource.RLIMIT_NPROC)[1] != given["threads"],
    "has no limit on memory": resource.getrlimit(resource.RLIMIT_AS)[1] != given["memory"],
    "has open files": sorted(os.listdir("/proc/self/fd")) != ["0", "1", "2", "3"],
    "writes where it may not": writable() != given["folders"],
}
print(json.dumps(out))
"""


@runtime_checkable
class Run(Protocol):
    """Runs a program in the sandbox that is tried."""

    def __call__(self, program: str, *, stdin: bytes) -> Outcome:
        """What came of it."""


def check_holds(run: Run, *, limits: Limits) -> None:
    """Check that a program in a sandbox can do nothing that it shouldn't.

    Args:
        run: Runs one in it.
        limits: What it is said to be limited to.

    Raises:
        SandboxError: It can, or it can't be run.
    """
    with tempfile.NamedTemporaryFile() as file, socket.socket() as tcp, _unix() as abstract:
        os.fchmod(file.fileno(), 0o644)
        tcp.bind(("127.0.0.1", 0))
        for listener in (tcp, abstract):
            listener.listen()
        given = {
            "file": file.name,
            "port": tcp.getsockname()[1],
            "abstract": abstract.getsockname()[1:].decode(),
            "threads": limits.threads,
            "memory": limits.memory_bytes,
            "folders": sorted(FOLDERS),
        }
        found = _found(run, given)
    escapes = [what for what, happened in found.items() if happened]
    if escapes:
        raise SandboxError(
            f"the sandbox doesn't hold on this machine: a program in it {', '.join(escapes)}; "
            "no program is run, so grade on another machine"
        )


def _found(run: Run, given: dict[str, Any]) -> dict[str, bool]:
    try:
        outcome = run(_PROGRAM, stdin=json.dumps(given).encode())
    except SandboxError as error:
        raise SandboxError(
            f"{str(error).rstrip('.')}. The sandbox needs {NEEDED} and leave to make namespaces: "
            "start a container so that its root has CAP_SYS_ADMIN; where the system refuses user "
            "namespaces to ordinary users, allow them or grade as root"
        ) from None
    if outcome.status != "ok":
        told = outcome.stderr.decode(errors="replace").strip().rpartition("\n")[2]
        raise SandboxError(f"a first program in the sandbox ended with {outcome.status}: {told}")
    found: dict[str, bool] = json.loads(outcome.stdout)
    return found


def _unix() -> socket.socket:
    """A socket with an abstract address that the kernel chooses."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listener.bind("")
    return listener
