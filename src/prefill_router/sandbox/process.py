"""One run's processes: started, let go, watched, ended.

What a run writes is read as it comes, and the run is stopped when it writes too much or takes too
long.
"""

import os
import re
import select
import selectors
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from typing import IO, Literal, final

from prefill_router.errors import SandboxError
from prefill_router.sandbox.command import FOLDERS, READY, Limits

Stopped = Literal["timeout", "output"]

STDERR_BYTES = 1 << 16
MOST_FILES = 10_000
"""Files in the folders that can be written to: empty ones take a kilobyte each, of no limit."""
_STOP_SECONDS = 30.0
_LOOK_SECONDS = 0.1
_WATCH_CHUNK = 1 << 16


@final
@dataclass(frozen=True, kw_only=True)
class ProcessOutput:
    """What was seen of a run.

    Attributes:
        stopped: Why it was stopped; None where it ended by itself.
        stdout: The first part of what it wrote, up to the limit.
        stderr: The last part, up to 64 KiB.
        truncated: Whether some of it is missing.
        seconds: How long it took.
    """

    stopped: Stopped | None
    stdout: bytes
    stderr: bytes
    truncated: bool
    seconds: float


class _Sink:
    """The first or the last part of a stream, and how long the whole was."""

    def __init__(self, *, most: int, last: bool) -> None:
        self.kept = bytearray()
        self.total = 0
        self._most = most
        self._last = last

    def take(self, data: bytes) -> None:
        self.total += len(data)
        if self._last:
            self.kept += data
            del self.kept[: -self._most]
        else:
            self.kept += data[: self._most - len(self.kept)]

    @property
    def truncated(self) -> bool:
        return self.total > len(self.kept)


def watch_process(
    *,
    stdout: int,
    stderr: int,
    end: int,
    folders: Sequence[int],
    stop: Callable[[], None],
    limits: Limits,
) -> ProcessOutput:
    """Read until a run is over.

    Args:
        stdout: Its standard output.
        stderr: Its standard error.
        end: A descriptor that can be read once every process of it is gone.
        folders: Descriptors of those that it can write to.
        stop: Ends every process of it.
        limits: How much it may write and how long it may take, from now on.

    Raises:
        SandboxError: It was told to stop and didn't.
    """
    sinks = {
        stdout: _Sink(most=limits.output_bytes, last=False),
        stderr: _Sink(most=min(limits.output_bytes, STDERR_BYTES), last=True),
    }
    stopped: Stopped | None = None
    begin = time.monotonic()
    deadline = begin + limits.wall_seconds
    with selectors.DefaultSelector() as selector:
        for descriptor in (*sinks, end):
            selector.register(descriptor, selectors.EVENT_READ)
        while selector.get_map():
            left = max(0.0, deadline - time.monotonic())
            _read_some(selector, sinks, seconds=min(left, _LOOK_SECONDS))
            late = time.monotonic() >= deadline
            if stopped and late:
                raise SandboxError("a program of the sandbox can't be stopped; look at the machine")
            much = any(sink.total > limits.output_bytes for sink in sinks.values())
            much |= not stopped and sum(map(_files_in, folders)) > MOST_FILES
            if (late or much) and not stopped:
                stopped, deadline = (
                    "timeout" if late else "output",
                    time.monotonic() + _STOP_SECONDS,
                )
                stop()
    return ProcessOutput(
        stopped=stopped,
        stdout=bytes(sinks[stdout].kept),
        stderr=bytes(sinks[stderr].kept),
        truncated=any(sink.truncated for sink in sinks.values()),
        seconds=time.monotonic() - begin,
    )


def _files_in(folder: int) -> int:
    """How many files the file system of a folder has."""
    told = os.statvfs(folder)
    return told.f_files - told.f_ffree


def _read_some(
    selector: selectors.BaseSelector, sinks: dict[int, _Sink], *, seconds: float
) -> None:
    """Wait for something to happen and take what is there."""
    for key, _ in selector.select(seconds):
        data = os.read(key.fd, _WATCH_CHUNK) if key.fd in sinks else b""
        if data:
            sinks[key.fd].take(data)
        else:
            selector.unregister(key.fd)


_START_SECONDS = 60.0
_END_SECONDS = 30.0
_CHUNK = 1 << 16


@final
@dataclass(frozen=True)
class SandboxProcess:
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

    def let_go(self, limits: Limits) -> ProcessOutput:
        """Let the program start, and watch it to its end.

        Raises:
            SandboxError: It can't be stopped.
        """
        with stream_of(self.process.stdin) as stdin:
            stdin.write(b"go\n")
        return watch_process(
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
def sandbox_process(
    command: Callable[[int], Sequence[str]], *, passed: Sequence[int]
) -> Iterator[SandboxProcess]:
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
        child = SandboxProcess(process, inside, folders)
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
