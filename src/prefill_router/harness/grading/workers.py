"""Processes that answer one line of JSON with another, and are ended where they take too long."""

import json
import os
import queue
import select
import subprocess
import sys
import time
from contextlib import suppress
from typing import Any, final

from prefill_router.errors import PrefillRouterError

_START_SECONDS = 120.0
_SENT = 2**16


@final
class WorkerGoneError(PrefillRouterError):
    """A worker gave no answer.

    Attributes:
        overrun: Whether it took too long; else it ended by itself.
    """

    def __init__(self, message: str, *, overrun: bool) -> None:
        super().__init__(message)
        self.overrun = overrun


@final
class WorkerPool:
    """Some processes that run a module of this package; threads share them.

    Args:
        module: The module's name; it reads lines of JSON, and says first that it is ready.
        count: How many processes there are at most; each is started when it is first needed.
        seconds: An answer that takes longer ends its process; the next one starts afresh.
    """

    def __init__(self, module: str, *, count: int, seconds: float) -> None:
        self._module = module
        self._seconds = seconds
        self._closed = False
        self._all: list[_Worker | None] = [None] * count
        self._free: queue.SimpleQueue[int] = queue.SimpleQueue()
        for place in range(count):
            self._free.put(place)

    def ask(self, request: dict[str, Any]) -> dict[str, Any]:
        """The answer of a worker that is free; waits until one is.

        Raises:
            WorkerGoneError: It took too long, or it died.
        """
        place = self._free.get()
        try:
            self._check_open()
            worker = self._all[place] or _Worker(self._module)
            self._all[place] = worker
            self._check_open()  # starting takes a while
            try:
                return worker.ask(request, seconds=self._seconds)
            except WorkerGoneError:
                self._all[place] = None
                worker.end()
                raise
        finally:
            self._free.put(place)

    def close(self) -> None:
        """End every process; what is being asked fails, and its thread lets go of it first."""
        self._closed = True
        for worker in self._all:
            if worker is not None:
                worker.kill()
        for place in [self._free.get() for _ in self._all]:
            worker, self._all[place] = self._all[place], None
            if worker is not None:
                worker.end()
            self._free.put(place)

    def _check_open(self) -> None:
        if self._closed:
            raise WorkerGoneError("the worker processes were ended", overrun=False)


class _Worker:
    """One process, for one thread at a time."""

    def __init__(self, module: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", module],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,  # an interruption of the terminal is for the parent alone
        )
        self._left = b""
        try:
            self._read(_START_SECONDS)
        except WorkerGoneError:
            self.end()
            raise

    def ask(self, request: dict[str, Any], *, seconds: float) -> dict[str, Any]:
        """Its answer."""
        stdin = self._process.stdin
        line = json.dumps(request).encode() + b"\n"
        try:
            if stdin is not None:
                stdin.write(line)
                stdin.flush()
        except (BrokenPipeError, ValueError):
            raise WorkerGoneError("a worker process has ended by itself", overrun=False) from None
        answer: dict[str, Any] = json.loads(self._read(seconds))
        return answer

    def kill(self) -> None:
        """Kill it, whatever it does; who reads from it is told by the end of its output."""
        self._process.kill()

    def end(self) -> None:
        """Kill it and close its pipes; nobody may be reading from it."""
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                _close_quietly(pipe)

    def _read(self, seconds: float) -> bytes:
        """The next line; a thread of its own isn't needed since the pipe says when it has more."""
        stdout, until = self._process.stdout, time.monotonic() + seconds
        while b"\n" not in self._left:
            left = until - time.monotonic()
            if stdout is None or stdout.closed:
                raise WorkerGoneError("a worker process was ended", overrun=False)
            if left <= 0 or not select.select([stdout], [], [], left)[0]:
                raise WorkerGoneError(f"no answer within {seconds:g} s", overrun=True)
            piece = os.read(stdout.fileno(), _SENT)
            if not piece:
                raise WorkerGoneError("a worker process has ended by itself", overrun=False)
            self._left += piece
        line, self._left = self._left.split(b"\n", 1)
        return line


def _close_quietly(pipe: Any) -> None:
    with suppress(BrokenPipeError):
        pipe.close()
