"""One run's processes: started, let go, ended."""

import os
import re
import select
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from typing import IO, final

from prefill_router.errors import SandboxError
from prefill_router.sandbox.command import FOLDERS, READY
from prefill_router.sandbox.limits import Limits
from prefill_router.sandbox.watch import Watched, watch

_START_SECONDS = 60.0
_END_SECONDS = 30.0
_CHUNK = 1 << 16


@final
@dataclass(frozen=True)
class Child:
    """A run that waits to be let go, or was.

    Attributes:
        process: bubblewrap.
        inside: A handle of the first process inside, which can't come to mean another; it can be
            read once every process inside is gone.
        folders: Handles of the folders that can be written to.
    """

    process: subprocess.Popen[bytes]
    inside: int
    folders: tuple[int, ...]

    def let_go(self, limits: Limits) -> Watched:
        """Let the program start, and watch it to its end.

        Raises:
            SandboxError: It can't be stopped.
        """
        with stream_of(self.process.stdin) as stdin:
            stdin.write(b"go\n")
        return watch(
            stdout=stream_of(self.process.stdout).fileno(),
            stderr=stream_of(self.process.stderr).fileno(),
            end=self.inside,
            folders=self.folders,
            stop=self.stop,
            limits=limits,
        )

    def stop(self) -> None:
        """End the first process inside; the kernel then ends every other one there."""
        with suppress(ProcessLookupError):
            signal.pidfd_send_signal(self.inside, signal.SIGKILL)


@contextmanager
def started(command: Callable[[int], Sequence[str]], *, passed: Sequence[int]) -> Iterator[Child]:
    """Start a run and yield it when it waits for the word; afterwards no process of it is left.

    The processes inside end when the thread that called this does, should it be killed; before the
    word, because nobody can give it any more, and after, because bubblewrap sees to it.

    Args:
        command: The command line, given the descriptor on which bubblewrap tells its child.
        passed: The descriptors that it reads.

    Raises:
        SandboxError: It couldn't be started.
        OSError: The system has no room for it.
    """
    with ExitStack() as stack:
        told, telling = os.pipe()
        stack.callback(os.close, told)
        try:
            process = _start(command(telling), (*passed, telling))
        finally:
            os.close(telling)
        stack.callback(_end, process)
        _await_ready(process)
        pid = _first_inside(told)
        inside = os.pidfd_open(pid)
        stack.callback(os.close, inside)
        folders = tuple(os.open(f"/proc/{pid}/root{name}", os.O_PATH) for name in FOLDERS)
        for folder in folders:
            stack.callback(os.close, folder)
        child = Child(process, inside, folders)
        try:
            yield child
        finally:
            child.stop()
            _readable(inside, seconds=_END_SECONDS)


def stream_of(stream: IO[bytes] | None) -> IO[bytes]:
    """A stream of a process that was started with pipes."""
    if stream is None:
        raise SandboxError("the sandbox was started without its streams")
    return stream


def _start(command: Sequence[str], passed: Sequence[int]) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        pass_fds=passed,
        bufsize=0,
        cwd="/",
        env={},
        start_new_session=True,  # an interrupt from the terminal is for this process alone
    )


def _end(process: subprocess.Popen[bytes]) -> None:
    """Let go of bubblewrap, which has ended or is waiting in vain."""
    for stream in (process.stdin, process.stdout, process.stderr):
        stream_of(stream).close()
    process.kill()
    process.wait()


def _await_ready(process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + _START_SECONDS
    out, told = stream_of(process.stdout).fileno(), b""
    while len(told) < len(READY):
        if not _readable(out, seconds=deadline - time.monotonic()):
            raise SandboxError(f"the sandbox didn't start within {_START_SECONDS:.0f} s; try again")
        data = os.read(out, len(READY) - len(told))
        if not data:
            break
        told += data
    if told != READY:
        raise SandboxError(f"the sandbox couldn't be started: {_complaint(process)}")


def _complaint(process: subprocess.Popen[bytes]) -> str:
    """The last line that a tool wrote before it gave up; the program hasn't run yet."""
    told = _read(stream_of(process.stderr).fileno()).decode(errors="replace")
    return told.strip().rpartition("\n")[2] or "it ended without a word"


def _first_inside(told: int) -> int:
    found = re.search(rb'"child-pid": *(\d+)', _read(told))
    if found is None:
        raise SandboxError("the sandbox couldn't be started: bubblewrap didn't name its child")
    return int(found[1])


def _read(descriptor: int) -> bytes:
    """What is there to read, or is very soon."""
    return os.read(descriptor, _CHUNK) if _readable(descriptor, seconds=1) else b""


def _readable(descriptor: int, *, seconds: float) -> bool:
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    return bool(poll.poll(max(0.0, seconds) * 1000))
