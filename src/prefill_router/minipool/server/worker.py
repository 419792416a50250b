"""The thread that generates: it takes what waits, as one batch, and passes each token on."""

import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from typing import final

from prefill_router.minipool.server.model import Job, Model

Delivery = list[tuple[Job, str, bool]]
"""Of each job that a step went on with: the text to send now, and whether it is the last."""


@final
class Worker:
    """Generates for all models in one thread, one batch of one model at a time.

    The model whose oldest request has waited longest is next, with all that wait for it.

    Args:
        models: By name.
        max_batch: At most so many answers in one batch.
        deliver: Called in the thread with what each step brought.
        ended: Called in the thread when it ends, by itself or by an error of a model.
    """

    def __init__(
        self,
        models: Iterable[Model],
        *,
        max_batch: int,
        deliver: Callable[[Delivery], None],
        ended: Callable[[], None],
    ) -> None:
        self._models = {model.name: model for model in models}
        self._max_batch = max_batch
        self._deliver = deliver
        self._ended = ended
        self._waiting: dict[str, deque[Job]] = {name: deque() for name in self._models}
        self._since: dict[str, deque[float]] = {name: deque() for name in self._models}
        self._wake = threading.Condition()
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name="minipool-worker", daemon=True)
        self.busy_seconds = 0.0
        self.tokens = 0
        self.batches = 0

    @property
    def alive(self) -> bool:
        """Whether the thread runs; it doesn't after an error of a model."""
        return self._thread.is_alive()

    @property
    def waiting(self) -> int:
        """Answers that no batch has taken yet."""
        with self._wake:
            return sum(map(len, self._waiting.values()))

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self) -> None:
        """End the thread after the step it is in."""
        with self._wake:
            self._stopping = True
            self._wake.notify()
        self._thread.join()

    def submit(self, model: str, job: Job) -> None:
        """Put a job in the queue of a model."""
        with self._wake:
            self._waiting[model].append(job)
            self._since[model].append(time.monotonic())
            self._wake.notify()

    def _run(self) -> None:
        try:
            while (taken := self._take()) is not None:
                started = time.perf_counter()
                self._generate(*taken)
                self.batches += 1
                self.busy_seconds += time.perf_counter() - started
        finally:
            self._ended()

    def _generate(self, model: Model, jobs: list[Job]) -> None:
        for step in model.generate(jobs):
            self.tokens += len(step)
            self._deliver([(job, *job.add(text, ended=ended)) for job, text, ended in step])
            if self._stopping:
                return

    def _take(self) -> tuple[Model, list[Job]] | None:
        """The next batch; waits until there is one. None when the thread is to end."""
        with self._wake:
            while not self._stopping:
                waiting = [name for name, jobs in self._waiting.items() if jobs]
                if waiting:
                    name = min(waiting, key=lambda name: self._since[name][0])
                    count = min(self._max_batch, len(self._waiting[name]))
                    taken = [self._waiting[name].popleft() for _ in range(count)]
                    for _ in range(count):
                        self._since[name].popleft()
                    jobs = [job for job in taken if not job.over]
                    if jobs:
                        return self._models[name], jobs
                else:
                    self._wake.wait()
            return None
