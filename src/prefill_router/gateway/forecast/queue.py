"""The prompts that wait for the encoder, each once, the oldest first, none in vain.

Whether a forecast comes in time is told by how long the encoder takes for prompts, which is learned
from its batches.
"""

import asyncio
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import islice
from math import inf
from typing import final

from prefill_router.data import Prompt
from prefill_router.gateway.forecast.messages import ForecastResult
from prefill_router.gateway.types import FallbackReason

_LEAST = 1e-5
_SURPRISE = 4.0  # one batch counts as at most so many times slower or faster than was expected
_RATE = 0.5


@final
class BatchTimeModel:
    """The seconds of a batch: some for the batch itself, and some for each prompt, by its size.

    Each batch corrects what its seconds were expected from, all in the ratio of the two and each by
    its share (an exponentiated gradient, so that all stay above 0). Sizes are told apart by
    doublings: a prompt beyond the encoder's window takes no longer than one that fills it, and that
    shows here without being known.

    Args:
        first: What a prompt alone takes, as long as no batch was read.
    """

    def __init__(self, first: float = 0.0) -> None:
        self.begin(first)

    def begin(self, first: float) -> None:
        """Forget what was learned."""
        self._first = first / 2
        self._batch = max(first / 2, _LEAST)
        self._prompt: dict[int, float] = {}

    def of_batch(self, prompts: int, *, most: int) -> float:
        """What batches take beside their prompts, where so many prompts go, so many in each."""
        return -(-prompts // most) * self._batch

    def of(self, size: int) -> float:
        """What a prompt of such a `doubling` takes; of one not read yet, as the nearest."""
        found = self._prompt.get(size)
        if found is None and self._prompt:
            found = self._prompt[min(self._prompt, key=lambda other: abs(other - size))]
        return self._first if found is None else found

    def learn(self, sizes: Sequence[int], seconds: float) -> None:
        """Take into account how long one batch took, of prompts of such doublings."""
        counts = Counter(sizes)
        before = {size: max(self.of(size), _LEAST) for size in counts}
        told = self._batch + sum(before[size] * number for size, number in counts.items())
        ratio = min(max(seconds / told, 1 / _SURPRISE), _SURPRISE)
        self._batch = max(self._batch * ratio ** (_RATE * self._batch / told), _LEAST)
        for size, value in before.items():
            share = value * counts[size] / told
            self._prompt[size] = max(value * ratio ** (_RATE * share), _LEAST)


def doubling(characters: int) -> int:
    """The size of a prompt: how often one character is doubled to reach it."""
    return characters.bit_length()


_SURE = 0.8
"""Prompts are admitted, and read together, if that should take this share of their time at most."""


@final
@dataclass(eq=False)
class ForecastJob:
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
    found: asyncio.Future[ForecastResult] = field(repr=False)
    waiters: int = 0
    until: float = 0.0

    def end(self, found: ForecastResult) -> None:
        """Tell all that wait; only the first word counts."""
        if not self.found.done():
            self.found.set_result(found)


@final
class ForecastQueue:
    """Jobs by the key of their prompt: those in the queue, and those of the batch under way.

    Args:
        most: The queue holds so many at most.
        batch: So many are taken at once at most.
        characters: And so many characters; the first is taken whatever its size.
        pace: How long they take.
    """

    def __init__(self, *, most: int, batch: int, characters: int, pace: BatchTimeModel) -> None:
        self._most, self._batch, self._characters = most, batch, characters
        self._pace = pace
        self._begun = self._ends = 0.0
        self._queue: dict[str, ForecastJob] = {}
        self._sizes: Counter[int] = Counter()
        self._under_way: dict[str, ForecastJob] = {}

    def __len__(self) -> int:
        return len(self._queue)

    @property
    def under_way(self) -> int:
        """How many prompts are in the batch that is being read."""
        return len(self._under_way)

    @property
    def jobs(self) -> list[ForecastJob]:
        """All of them."""
        return [*self._under_way.values(), *self._queue.values()]

    def admits(self, size: int, *, now: float, seconds: float) -> bool:
        """Whether a further prompt would be read in time, and those that are read with it, too.

        Where nothing waits, it is read however long that should take: it is seen whether it does.

        Args:
            size: Its characters.
            now: By the loop's clock.
            seconds: So long it may take.
        """
        if not self._queue and not self._under_way:
            return True
        count = 1 + len(self._queue)
        if count > self._most:
            return False
        pace = self._pace
        ends = abs(self._ends - now) if self._under_way else 0.0  # overdue: as long again
        ends += pace.of_batch(count, most=self._batch) + pace.of(doubling(size))
        ends += sum(number * pace.of(one) for one, number in self._sizes.items())
        together = islice(reversed(self._queue.values()), (count - 1) % self._batch)
        left = min((job.until - now for job in together), default=seconds)
        return ends <= _SURE * min(left, seconds)

    def get(self, key: str) -> ForecastJob | None:
        """The job of this prompt, if there is one."""
        return self._queue.get(key) or self._under_way.get(key)

    def add(self, job: ForecastJob) -> None:
        """Put a job at the end of the queue."""
        self._queue[job.key] = job
        self._sizes[doubling(job.size)] += 1

    def leave(self, job: ForecastJob) -> None:
        """One request waits no longer; what nobody waits for isn't read."""
        job.waiters -= 1
        if not job.waiters and self._queue.get(job.key) is job:
            self._remove(job)

    def take(self, now: float) -> list[ForecastJob]:
        """The next batch: the oldest jobs, as many as all of them have time for.

        Those that would be too late even alone are told so now; where that is all of them, the
        newest is read, so that it is seen whether it still takes so long.
        """
        self._drop_late(now)
        batch: list[ForecastJob] = []
        seconds, left, size = self._pace.of_batch(1, most=1), inf, 0
        for job in self._queue.values():
            seconds += self._pace.of(doubling(job.size))
            left, size = min(left, job.until - now), size + job.size
            many = len(batch) == self._batch or size > self._characters
            if batch and (many or seconds > _SURE * left):
                break
            batch.append(job)
            self._ends = now + seconds
        for job in batch:
            self._remove(job)
        self._under_way, self._begun = {job.key: job for job in batch}, now
        return batch

    def settled(self, now: float) -> None:
        """The batch is done."""
        sizes = [doubling(job.size) for job in self._under_way.values()]
        self._pace.learn(sizes, now - self._begun)
        self._under_way = {}

    def end_all(self, reason: FallbackReason) -> None:
        """Tell everybody that nothing comes."""
        for job in self.jobs:
            job.end(reason)
        self._queue, self._under_way = {}, {}
        self._sizes.clear()

    def _drop_late(self, now: float) -> None:
        soonest, pace = now + self._pace.of_batch(1, most=1), self._pace
        late = [
            job
            for job in self._queue.values()
            if soonest + pace.of(doubling(job.size)) >= job.until
        ]
        if late and len(late) == len(self._queue) and late[-1].until > now:
            late.pop()
        for job in late:
            self._remove(job)
            job.end("deadline")

    def _remove(self, job: ForecastJob) -> None:
        del self._queue[job.key]
        self._sizes[doubling(job.size)] -= 1
