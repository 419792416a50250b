"""Reads what a run writes, and has it stopped when it writes too much or takes too long."""

import os
import selectors
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, final

from prefill_router.errors import SandboxError
from prefill_router.sandbox.limits import Limits

Stopped = Literal["timeout", "output"]

STDERR_BYTES = 1 << 16
MOST_FILES = 10_000
"""Files in the folders that can be written to: empty ones take a kilobyte each, of no limit."""
_STOP_SECONDS = 30.0
_LOOK_SECONDS = 0.1
_CHUNK = 1 << 16


@final
@dataclass(frozen=True, kw_only=True)
class Watched:
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


def watch(
    *,
    stdout: int,
    stderr: int,
    end: int,
    folders: Sequence[int],
    stop: Callable[[], None],
    limits: Limits,
) -> Watched:
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
    return Watched(
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
        data = os.read(key.fd, _CHUNK) if key.fd in sinks else b""
        if data:
            sinks[key.fd].take(data)
        else:
            selector.unregister(key.fd)
