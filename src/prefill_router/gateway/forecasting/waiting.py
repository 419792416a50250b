"""The prompts that wait for the encoder: each once, the oldest first, none that nobody wants."""

import asyncio
from dataclasses import dataclass, field
from typing import final

from prefill_router.data import Prompt
from prefill_router.gateway.forecasting.exchange import Found
from prefill_router.gateway.words import FallbackReason


@final
@dataclass(eq=False)
class Job:
    """A prompt that is to be read.

    Attributes:
        key: Its content key.
        prompt: The prompt.
        size: Its characters.
        found: What comes of it.
        waiters: How many requests wait for it.
        until: When the last of their deadlines passes, by the loop's clock.
    """

    key: str
    prompt: Prompt
    size: int
    found: asyncio.Future[Found] = field(repr=False)
    waiters: int = 0
    until: float = 0.0

    def end(self, found: Found) -> None:
        """Tell all that wait; only the first word counts."""
        if not self.found.done():
            self.found.set_result(found)


@final
class Waiting:
    """Jobs by the key of their prompt: those in the queue, and those of the batch under way.

    Args:
        most: The queue holds so many at most.
        batch: So many are taken at once at most.
        characters: And so many characters; the first is taken whatever its size.
    """

    def __init__(self, *, most: int, batch: int, characters: int) -> None:
        self._most, self._batch, self._characters = most, batch, characters
        self._queue: dict[str, Job] = {}
        self._under_way: dict[str, Job] = {}

    def __len__(self) -> int:
        return len(self._queue)

    @property
    def under_way(self) -> int:
        """How many prompts are in the batch that is being read."""
        return len(self._under_way)

    @property
    def is_full(self) -> bool:
        """Whether no further prompt may wait."""
        return len(self._queue) >= self._most

    @property
    def jobs(self) -> list[Job]:
        """All of them."""
        return [*self._under_way.values(), *self._queue.values()]

    def get(self, key: str) -> Job | None:
        """The job of this prompt, if there is one."""
        return self._queue.get(key) or self._under_way.get(key)

    def add(self, job: Job) -> None:
        """Put a job at the end of the queue."""
        self._queue[job.key] = job

    def leave(self, job: Job) -> None:
        """One request waits no longer; what nobody waits for isn't read."""
        job.waiters -= 1
        if not job.waiters and self._queue.get(job.key) is job:
            del self._queue[job.key]

    def take(self, now: float) -> list[Job]:
        """The next batch; jobs whose deadlines have passed are left out, and forgotten."""
        batch: list[Job] = []
        size = 0
        while self._queue and len(batch) < self._batch:
            job = next(iter(self._queue.values()))
            if batch and size + job.size > self._characters:
                break
            del self._queue[job.key]
            if job.until > now:
                batch.append(job)
                size += job.size
        self._under_way = {job.key: job for job in batch}
        return batch

    def settled(self) -> None:
        """The batch is done."""
        self._under_way = {}

    def end_all(self, reason: FallbackReason) -> None:
        """Tell everybody that nothing comes."""
        for job in self.jobs:
            job.end(reason)
        self._queue, self._under_way = {}, {}
