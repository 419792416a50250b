"""The grader of mathematics: equality of LaTeX and of expressions, by `math-verify`.

It runs in worker processes that answer each line of JSON with another, and that are killed when
they take too long (see `harness.grading.equality_worker`).
"""

import importlib.metadata
import importlib.util
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
from prefill_router.grading.base import (
    Grade,
    Grader,
    GraderTraits,
    Settings,
    make_grade,
    make_missing_grade,
    unfit,
)
from prefill_router.lazy_imports import find_module
from prefill_router.runs import Task

SECONDS = 10.0
_WORKER = "prefill_router.grading.equality_worker"
_MOST_READ = 10_000
"""Characters at the end of an answer in which its result is looked for."""


@final
class MathGrader(Grader):
    """Right where the answer's text is the task's, or its result equals the task's.

    `math-verify` finds the last result (in a box, in LaTeX, as a plain expression) and compares
    symbolically. If it can't read the task's own answer, the task is unfit whatever was answered,
    since labels of textual matches alone would be biased. The library limits its time by signals,
    which fail in threads and can't interrupt everything. So it runs in processes that are killed
    after `SECONDS`, and such an answer isn't graded.

    Args:
        jobs: The number of processes.
        seconds: The time limit of one answer.

    Raises:
        MissingExtraError: The package `math-verify` isn't installed.
    """

    def __init__(self, *, jobs: int = 1, seconds: float = SECONDS) -> None:
        find_module("math_verify", needed_for="the grader math")
        library = f"math-verify {importlib.metadata.version('math-verify')}"
        self.about = GraderTraits(
            name="math", version=3, setting=library, is_cached=True, at_once=jobs
        )
        self._pool = MathWorkerPool(_WORKER, count=jobs, seconds=seconds)

    def grade(self, task: Task, text: str) -> Grade:
        """Compare in one of the processes."""
        if not task.answer:
            return unfit("the task has no answer to compare with")
        bare = text.strip()
        same = bare in map(str.strip, task.answer)  # the library reads few answers without marks
        request = {"right": list(task.answer), "answer": "" if same else text[-_MOST_READ:]}
        try:
            verdict = self._pool.ask(request)
        except MathWorkerGoneError as gone:
            return make_missing_grade("timeout" if gone.overrun else "undecided", str(gone))
        if verdict["unread"]:
            return unfit("math-verify can't read the task's answer, or one of them")
        if verdict["equal"] is None:
            return make_missing_grade(
                "undecided", "comparing took too much memory or was nested too deeply"
            )
        if same:
            return make_grade(True, extracted=bare)
        return make_grade(verdict["equal"], extracted=verdict["read"])

    def close(self) -> None:
        """End the processes."""
        self._pool.close()


def open_math(settings: Settings) -> Grader:
    """The grader of mathematics, with a process for each job."""
    return MathGrader(jobs=settings.jobs)


_START_SECONDS = 120.0
_MOST_SENT = 2**16


@final
class MathWorkerGoneError(PrefillRouterError):
    """A worker process gave no answer.

    Attributes:
        overrun: Whether it took too long; otherwise it ended by itself.
    """

    def __init__(self, message: str, *, overrun: bool) -> None:
        super().__init__(message)
        self.overrun = overrun


@final
class MathWorkerPool:
    """A pool of processes that run a module of this package; threads share them.

    Args:
        module: The module's name; it first prints that it is ready, then answers lines of JSON.
        count: Most processes; each is started when it is first needed.
        seconds: A process that takes longer is killed; a new one is started for the next request.
    """

    def __init__(self, module: str, *, count: int, seconds: float) -> None:
        self._module = module
        self._seconds = seconds
        self._closed = False
        self._all: list[_MathWorker | None] = [None] * count
        self._free: queue.SimpleQueue[int] = queue.SimpleQueue()
        for place in range(count):
            self._free.put(place)

    def ask(self, request: dict[str, Any]) -> dict[str, Any]:
        """The answer of a free worker; waits until there is one.

        Raises:
            MathWorkerGoneError: The worker took too long, or it died.
        """
        place = self._free.get()
        try:
            self._check_open()
            worker = self._all[place] or _MathWorker(self._module)
            self._all[place] = worker
            self._check_open()  # starting takes a while
            try:
                return worker.ask(request, seconds=self._seconds)
            except MathWorkerGoneError:
                self._all[place] = None
                worker.end()
                raise
        finally:
            self._free.put(place)

    def close(self) -> None:
        """End every process; requests under way fail, and their threads release them first."""
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
            raise MathWorkerGoneError("the worker processes were ended", overrun=False)


class _MathWorker:
    """One process, for one thread at a time."""

    def __init__(self, module: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", module],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,  # an interruption of the terminal is for the parent alone
        )
        self._buffer = b""
        try:
            self._read_line(_START_SECONDS)
        except MathWorkerGoneError:
            self.end()
            raise

    def ask(self, request: dict[str, Any], *, seconds: float) -> dict[str, Any]:
        """The process's answer to a request."""
        stdin = self._process.stdin
        line = json.dumps(request).encode() + b"\n"
        try:
            if stdin is not None:
                stdin.write(line)
                stdin.flush()
        except (BrokenPipeError, ValueError):
            raise MathWorkerGoneError(
                "a worker process has ended by itself", overrun=False
            ) from None
        answer: dict[str, Any] = json.loads(self._read_line(seconds))
        return answer

    def kill(self) -> None:
        """Kill the process, whatever it does; its reader sees the end of its output."""
        self._process.kill()

    def end(self) -> None:
        """Kill the process and close its pipes; no thread may be reading from it."""
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                with suppress(BrokenPipeError):
                    pipe.close()

    def _read_line(self, seconds: float) -> bytes:
        """The next line; `select` keeps the time limit without another thread."""
        stdout, until = self._process.stdout, time.monotonic() + seconds
        while b"\n" not in self._buffer:
            left = until - time.monotonic()
            if stdout is None or stdout.closed:
                raise MathWorkerGoneError("a worker process was ended", overrun=False)
            if left <= 0 or not select.select([stdout], [], [], left)[0]:
                raise MathWorkerGoneError(f"no answer within {seconds:g} s", overrun=True)
            piece = os.read(stdout.fileno(), _MOST_SENT)
            if not piece:
                raise MathWorkerGoneError("a worker process has ended by itself", overrun=False)
            self._buffer += piece
        line, self._buffer = self._buffer.split(b"\n", 1)
        return line
