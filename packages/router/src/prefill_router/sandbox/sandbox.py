"""Runs untrusted programs without risk to the machine.

The sandbox is tested on this machine before it runs any such program. The files of a run are in
memory: nothing is left on a disk. Where root starts the runs, each has a user id of its own.
"""

import itertools
import json
import os
import platform
import re
import signal
import socket
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol, final, runtime_checkable

from prefill_router.errors import ConfigError, SandboxError
from prefill_router.sandbox.sandbox_process import (
    FOLDERS,
    NEEDED_PACKAGES,
    PROGRAM_NAME,
    Limits,
    Outcome,
    ProcessOutput,
    SandboxProcess,
    SandboxTools,
    Status,
    command,
    find_tools,
    sandbox_process,
)
from prefill_router.sandbox.seccomp import MACHINES, filter_program

_FILE_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,99}")
_MOST_FILES = 50
_FILTER, _INPUT = "/filter", "/input"  # no file of a program has such a name


@final
@dataclass(frozen=True)
class Sandbox:
    """Runs Python programs in separate namespaces, unprivileged, under limits and a filter.

    A program can read `/usr` and its interpreter. It can write to `/box` (its own folder), `/tmp`
    and `/dev/shm`, which are in memory and removed afterwards. It has one process, in which it may
    start threads. It can reach no network and no other process.

    A program can read all its files and control all its output. So give it a problem's input and
    never the expected output, and compare outside.

    Any number of threads and processes may run programs concurrently. Open it by `Sandbox.open`.

    Attributes:
        limits: The limits of a run.
    """

    limits: Limits
    _tools: SandboxTools = field(repr=False)
    _filter: bytes = field(repr=False)

    @classmethod
    def open(cls, *, limits: Limits | None = None, python: Path | None = None) -> "Sandbox":
        """A sandbox that has passed its test on this machine.

        Args:
            limits: The limits of a run.
            python: The interpreter that runs the programs, 3.11 or newer; by default the present
                one. For a virtual environment, the interpreter that it was made from is used.

        Raises:
            SandboxError: A tool is missing, or the test failed; the error says what to do.
        """
        sandbox = cls(limits or Limits(), find_tools(python=python), _filter_here())
        check_holds(replace(sandbox, limits=Limits()).run, limits=Limits())
        return sandbox

    def run(
        self, program: str, *, stdin: bytes = b"", files: Mapping[str, bytes] | None = None
    ) -> Outcome:
        """Run a program to its end or to its limits.

        Args:
            program: Python source.
            stdin: The content of its standard input, which is a file.
            files: The contents of further files in its folder, by name.

        Raises:
            ConfigError: A file's name isn't a plain name.
            SandboxError: The sandbox failed, so that nothing is known of the program.
        """
        contents = dict(files or {})
        _check_names(contents)
        # a lone surrogate is an error in the program, which Python reports
        contents[PROGRAM_NAME] = program.encode("utf-8", errors="surrogatepass")
        try:
            with self._start_program(contents, stdin) as child:
                watched = child.start(self.limits)
                return _make_outcome(watched, child.process.wait(), self.limits)
        except OSError as error:
            raise SandboxError(
                f"a program couldn't be run: {error.strerror}; run fewer concurrently"
            ) from None

    @contextmanager
    def _start_program(
        self, contents: Mapping[str, bytes], stdin: bytes
    ) -> Iterator[SandboxProcess]:
        lease = lease_uid() if os.geteuid() == 0 else nullcontext(None)
        everything = {**contents, _FILTER: self._filter, _INPUT: stdin}
        with lease as uid, files_in_memory(everything) as descriptors:

            def command_with(info: int) -> tuple[str, ...]:
                return command(
                    self._tools,
                    self.limits,
                    uid=uid,
                    info=info,
                    seccomp=descriptors[_FILTER],
                    stdin=descriptors[_INPUT],
                    files={name: descriptors[name] for name in contents},
                    content_bytes=sum(map(len, contents.values())),
                )

            with sandbox_process(command_with, descriptors=tuple(descriptors.values())) as child:
                yield child


def _filter_here() -> bytes:
    if sys.platform != "linux":
        raise SandboxError(f"programs run in a sandbox, which needs Linux, not {sys.platform}")
    for machine in MACHINES:
        if machine == platform.machine() and sys.byteorder == "little":
            return filter_program(machine=machine)
    raise SandboxError(
        f"the sandbox has no filter of system calls for {platform.machine()}; "
        f"use one of {', '.join(MACHINES)}"
    )


def _check_names(names: Mapping[str, bytes]) -> None:
    if len(names) > _MOST_FILES:
        raise ConfigError(f"a program is given {len(names)} files; give at most {_MOST_FILES}")
    for name in names:
        if not _FILE_NAME.fullmatch(name) or name == PROGRAM_NAME:
            raise ConfigError(
                f"a program can't be given a file named {name!r}; use letters, digits, _, - and ., "
                f"and not {PROGRAM_NAME}"
            )


def _make_outcome(watched: ProcessOutput, code: int, limits: Limits) -> Outcome:
    code = code if code >= 0 else 128 - code
    return Outcome(
        status=watched.stopped or _find_status(watched, code, limits),
        exit_code=None if watched.stopped else code,
        stdout=watched.stdout,
        stderr=watched.stderr,
        seconds=watched.seconds,
        output_truncated=watched.truncated,
    )


def _find_status(watched: ProcessOutput, code: int, limits: Limits) -> Status:
    if code == 0:
        return "ok"
    if code == 128 + signal.SIGXCPU:
        return "timeout"
    most_cpu_seconds = watched.seconds * (os.cpu_count() or 1)
    if code == 128 + signal.SIGKILL and most_cpu_seconds >= limits.cpu_seconds:
        return "timeout"  # it caught the first signal
    if code > 128:
        return "killed"
    last = watched.stderr.rstrip().rpartition(b"\n")[2]
    return "memory" if last.startswith(b"MemoryError") else "error"


_TRIAL_PROGRAM = r"""
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
class SandboxRunner(Protocol):
    """Runs a program in the sandbox that is tested."""

    def __call__(self, program: str, *, stdin: bytes) -> Outcome:
        """Run it and return the outcome."""


def check_holds(run: SandboxRunner, *, limits: Limits) -> None:
    """Test that a program in a sandbox can't escape it.

    Args:
        run: Runs a program in the sandbox.
        limits: The limits that must be in force.

    Raises:
        SandboxError: It can, or it can't be run.
    """
    with tempfile.NamedTemporaryFile() as file, socket.socket() as tcp, _listen_unix() as abstract:
        os.fchmod(file.fileno(), 0o644)
        tcp.bind(("127.0.0.1", 0))
        for listener in (tcp, abstract):
            listener.listen()
        facts = {
            "file": file.name,
            "port": tcp.getsockname()[1],
            "abstract": abstract.getsockname()[1:].decode(),
            "threads": limits.threads,
            "memory": limits.memory_bytes,
            "folders": sorted(FOLDERS),
        }
        escape_of = _find_leaks(run, facts)
    escapes = [what for what, happened in escape_of.items() if happened]
    if escapes:
        raise SandboxError(
            f"the sandbox isn't safe on this machine: a program in it {', '.join(escapes)}. No "
            "program was run; grade on another machine"
        )


def _find_leaks(run: SandboxRunner, facts: dict[str, Any]) -> dict[str, bool]:
    try:
        outcome = run(_TRIAL_PROGRAM, stdin=json.dumps(facts).encode())
    except SandboxError as error:
        raise SandboxError(
            f"{str(error).rstrip('.')}. The sandbox needs {NEEDED_PACKAGES} and permission to "
            "create namespaces. In a container, give its root CAP_SYS_ADMIN. If the system "
            "refuses user namespaces to ordinary users, allow them, or grade as root"
        ) from None
    if outcome.status != "ok":
        last = outcome.stderr.decode(errors="replace").strip().rpartition("\n")[2]
        raise SandboxError(f"the test program in the sandbox ended with {outcome.status}: {last}")
    leaks: dict[str, bool] = json.loads(outcome.stdout)
    return leaks


def _listen_unix() -> socket.socket:
    """A socket with an abstract address that the kernel chooses."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listener.bind("")
    return listener


@contextmanager
def files_in_memory(contents: Mapping[str, bytes]) -> Iterator[dict[str, int]]:
    """Yield a file descriptor for each content, at its beginning; all are closed afterwards."""
    with ExitStack() as opened:
        descriptors = {}
        for name, content in contents.items():
            file = opened.enter_context(os.fdopen(os.memfd_create("sandbox"), "w+b"))
            file.write(content)
            file.seek(0)
            descriptors[name] = file.fileno()
        yield descriptors


FIRST_UID = 61184
UIDS = 1024
"""The number of ids; they lie in systemd's range of dynamic users, without accounts on Debian."""

_starts = itertools.count()


@contextmanager
def lease_uid() -> Iterator[int]:
    """Yield a user id that no other run has, in this process or another.

    An abstract Unix socket address reserves it: the kernel gives an address to one socket only, and
    frees it when the process ends, however it ends.

    Raises:
        SandboxError: All are taken.
    """
    start = os.getpid() * 61 + next(_starts)
    for step in range(UIDS):
        uid = FIRST_UID + (start + step) % UIDS
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as holder:
            try:
                holder.bind(f"\0prefill-router/sandbox/{uid}")
            except OSError:
                continue
            yield uid
            return
    raise SandboxError(
        f"all {UIDS} user ids of the sandbox are taken; run fewer programs concurrently"
    )
