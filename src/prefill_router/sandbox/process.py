"""The processes of one run: how they are started, watched and ended.

The run's output is read while it runs, and the run is stopped when it writes too much or takes too
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
"""Most files in the writable folders: even an empty one takes a kilobyte that no limit counts."""
_STOP_SECONDS = 30.0
_LOOK_SECONDS = 0.1
_WATCH_CHUNK = 1 << 16


@final
@dataclass(frozen=True, kw_only=True)
class ProcessOutput:
    """The output of a run, and why it ended.

    Attributes:
        stopped: Why it was stopped; None where it ended by itself.
        stdout: The beginning of standard output, up to the limit.
        stderr: The end of standard error, up to 64 KiB.
        truncated: Whether a part of either is missing.
        seconds: The wall-clock time.
    """

    stopped: Stopped | None
    stdout: bytes
    stderr: bytes
    truncated: bool
    seconds: float


class _Sink:
    """Keeps the beginning or the end of a stream, and its total length."""

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
    """Read a run's output until it is over, and stop it at its limits.

    Args:
        stdout: The file descriptor of its standard output.
        stderr: The file descriptor of its standard error.
        end: A descriptor that becomes readable once all its processes are gone.
        folders: Descriptors of its writable folders.
        stop: Kills all its processes.
        limits: The limits on its output and on its time from now on.

    Raises:
        SandboxError: It didn't end after it was killed.
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
                raise SandboxError("a program in the sandbox can't be killed; check the machine")
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
    """The number of files in a folder's file system."""
    found = os.statvfs(folder)
    return found.f_files - found.f_ffree


def _read_some(
    selector: selectors.BaseSelector, sinks: dict[int, _Sink], *, seconds: float
) -> None:
    """Wait until something can be read, and read it."""
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
    """The processes of a run that waits for its start, or has started.

    Attributes:
        process: bubblewrap.
        inside: A pidfd of the first process inside; it becomes readable once every process inside
            is gone.
        folders: Descriptors of the writable folders.
    """

    process: subprocess.Popen[bytes]
    inside: int
    folders: tuple[int, ...]

    def start(self, limits: Limits) -> ProcessOutput:
        """Start the program, and watch it to its end.

        Raises:
            SandboxError: It can't be killed.
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
        """Kill the first process inside; the kernel then kills every other process there."""
        with suppress(ProcessLookupError):
            signal.pidfd_send_signal(self.inside, signal.SIGKILL)


@contextmanager
def sandbox_process(
    command: Callable[[int], Sequence[str]], *, passed: Sequence[int]
) -> Iterator[SandboxProcess]:
    """Yield a run that waits for its start; afterwards none of its processes is left.

    If the calling thread is killed, the processes inside end, too: before the start because they
    wait for input that can't come any more, and after it because bubblewrap kills them.

    Args:
        command: Makes the command line, given the descriptor for the child's process id.
        passed: The descriptors that the command reads.

    Raises:
        SandboxError: It couldn't be started.
        OSError: The system lacks the resources.
    """
    with ExitStack() as stack:
        info, written = os.pipe()
        stack.callback(os.close, info)
        try:
            process = _start(command(written), (*passed, written))
        finally:
            os.close(written)
        stack.callback(_end, process)
        _await_ready(process)
        pid = _first_inside(info)
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
        start_new_session=True,  # keeps the terminal's interrupts away from it
    )


def _end(process: subprocess.Popen[bytes]) -> None:
    """End bubblewrap, which has ended already or still waits for the start."""
    for stream in (process.stdin, process.stdout, process.stderr):
        stream_of(stream).close()
    process.kill()
    process.wait()


def _await_ready(process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + _START_SECONDS
    out, received = stream_of(process.stdout).fileno(), b""
    while len(received) < len(READY):
        if not _readable(out, seconds=deadline - time.monotonic()):
            raise SandboxError(f"the sandbox didn't start within {_START_SECONDS:.0f} s; try again")
        data = os.read(out, len(READY) - len(received))
        if not data:
            break
        received += data
    if received != READY:
        raise SandboxError(f"the sandbox couldn't be started: {_complaint(process)}")


def _complaint(process: subprocess.Popen[bytes]) -> str:
    """The last line that a tool wrote before it failed; the program hasn't run yet."""
    text = _read(stream_of(process.stderr).fileno()).decode(errors="replace")
    return text.strip().rpartition("\n")[2] or "it ended without a word"


def _first_inside(info: int) -> int:
    found = re.search(rb'"child-pid": *(\d+)', _read(info))
    if found is None:
        raise SandboxError("the sandbox couldn't be started: bubblewrap didn't name its child")
    return int(found[1])


def _read(descriptor: int) -> bytes:
    """The available data, after at most a second."""
    return os.read(descriptor, _CHUNK) if _readable(descriptor, seconds=1) else b""


def _readable(descriptor: int, *, seconds: float) -> bool:
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    return bool(poll.poll(max(0.0, seconds) * 1000))
