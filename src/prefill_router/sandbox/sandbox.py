"""Runs programs that nobody has read, so that they can harm nothing."""

import os
import platform
import re
import signal
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import final

from prefill_router.errors import ConfigError, SandboxError
from prefill_router.sandbox.child import Child, started
from prefill_router.sandbox.command import PROGRAM_NAME, command
from prefill_router.sandbox.contents import in_memory
from prefill_router.sandbox.limits import Limits, Outcome, Status
from prefill_router.sandbox.seccomp import filter_program
from prefill_router.sandbox.syscalls import MACHINES
from prefill_router.sandbox.tools import Tools, find_tools
from prefill_router.sandbox.trial import check_holds
from prefill_router.sandbox.uids import leased_uid
from prefill_router.sandbox.watch import Watched

_FILE_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,99}")
_MOST_FILES = 50
_FILTER, _INPUT = "/filter", "/input"  # no file of a program has such a name


@final
@dataclass(frozen=True)
class Sandbox:
    """Runs Python programs in namespaces of their own, as nobody, under limits and a filter.

    A program sees `/usr` and its interpreter, read-only; may write to `/box` (where it is), `/tmp`
    and `/dev/shm`, all of which are in memory and gone afterwards; has one process, in which it may
    start threads; reaches no network and no other process.

    It sees what it is given, and what it writes is its own to choose. So give it a problem's input
    and never the expected output, and compare outside.

    Any number of threads and processes may run programs at once. Made by `Sandbox.open`.

    Attributes:
        limits: What a run may use.
    """

    limits: Limits
    _tools: Tools = field(repr=False)
    _filter: bytes = field(repr=False)

    @classmethod
    def open(cls, *, limits: Limits | None = None, python: Path | None = None) -> "Sandbox":
        """A sandbox that was tried on this machine and held.

        Args:
            limits: What a run may use.
            python: The interpreter that runs the programs, 3.11 or newer; otherwise the one that
                runs this. Of a virtual environment, the interpreter that it was made from.

        Raises:
            SandboxError: There is none on this machine, or it doesn't hold; with what to install.
        """
        sandbox = cls(limits or Limits(), find_tools(python=python), _filter_here())
        check_holds(replace(sandbox, limits=Limits()).run, limits=Limits())
        return sandbox

    def run(
        self, program: str, *, stdin: bytes = b"", files: Mapping[str, bytes] | None = None
    ) -> Outcome:
        """Run a program to its end, or until it has used what it may.

        Args:
            program: Python source.
            stdin: What it reads from its standard input, which is a file.
            files: Contents of files beside it, by name.

        Raises:
            ConfigError: A file's name is more than a name.
            SandboxError: The sandbox failed, so that nothing is known of the program.
        """
        contents = dict(files or {})
        _check_names(contents)
        # A lone surrogate is an error in the program, which Python will tell of.
        contents[PROGRAM_NAME] = program.encode("utf-8", errors="surrogatepass")
        try:
            with self._started(contents, stdin) as child:
                watched = child.let_go(self.limits)
                return _outcome(watched, child.process.wait(), self.limits)
        except OSError as error:
            raise SandboxError(
                f"a program couldn't be run: {error.strerror}; run fewer at once"
            ) from None

    @contextmanager
    def _started(self, contents: Mapping[str, bytes], stdin: bytes) -> Iterator[Child]:
        lease = leased_uid() if os.geteuid() == 0 else nullcontext(None)
        everything = {**contents, _FILTER: self._filter, _INPUT: stdin}
        with lease as uid, in_memory(everything) as descriptors:

            def command_telling(info: int) -> tuple[str, ...]:
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

            with started(command_telling, passed=tuple(descriptors.values())) as child:
                yield child


def _filter_here() -> bytes:
    if sys.platform != "linux":
        raise SandboxError(f"programs are run in a sandbox, which needs Linux, not {sys.platform}")
    for machine in MACHINES:
        if machine == platform.machine() and sys.byteorder == "little":
            return filter_program(machine=machine)
    raise SandboxError(
        f"the sandbox has no filter of system calls for {platform.machine()}; "
        f"use one of {', '.join(MACHINES)}"
    )


def _check_names(names: Mapping[str, bytes]) -> None:
    if len(names) > _MOST_FILES:
        raise ConfigError(f"a program is given {len(names)} files; {_MOST_FILES} will do")
    for name in names:
        if not _FILE_NAME.fullmatch(name) or name == PROGRAM_NAME:
            raise ConfigError(
                f"a program can't be given a file named {name!r}; use letters, digits, _, - and ., "
                f"and not {PROGRAM_NAME}"
            )


def _outcome(watched: Watched, code: int, limits: Limits) -> Outcome:
    code = code if code >= 0 else 128 - code
    return Outcome(
        status=watched.stopped or _status(watched, code, limits),
        exit_code=None if watched.stopped else code,
        stdout=watched.stdout,
        stderr=watched.stderr,
        seconds=watched.seconds,
        output_truncated=watched.truncated,
    )


def _status(watched: Watched, code: int, limits: Limits) -> Status:
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
