"""The queue of prompts for the encoder: each prompt once, the oldest first, late ones dropped.

Whether a forecast will be in time is predicted from the encoder's speed, which is learned from its
batches.
"""

import asyncio
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import islice
from math import inf
from typing import final

from prefill_router.data import Prompt
from prefill_router_gateway.forecast.encoder_process import ForecastResult
from prefill_router_gateway.records import FallbackReason

_LEAST = 1e-5
_SURPRISE = 4.0  # one batch counts as at most this many times slower or faster than predicted
_RATE = 0.5


@final
class BatchTimeModel:
    """Predicts the seconds of a batch: a fixed part, and a part per prompt that depends on size.

    Each batch scales the parts of its prediction by the ratio of measured to predicted seconds,
    each part by its share (an exponentiated gradient step, so that all stay positive). Sizes are
    binned by powers of two: a prompt longer than the encoder's window takes no longer than one
    that fills it, and the bins learn this.

    Args:
        first: The seconds of a batch of one prompt, used until a batch is measured.
    """

    def __init__(self, first: float = 0.0) -> None:
        self.begin(first)

    def begin(self, first: float) -> None:
        """Start again from this value."""
        self._first = first / 2
        self._batch = max(first / 2, _LEAST)
        self._prompt: dict[int, float] = {}

    def of_batch(self, prompts: int, *, most: int) -> float:
        """The fixed seconds of the batches for this many prompts, `most` in each."""
        return -(-prompts // most) * self._batch

    def of(self, size: int) -> float:
        """The seconds of a prompt in this size bin, or in the nearest one that was measured."""
        seconds = self._prompt.get(size)
        if seconds is None and self._prompt:
            seconds = self._prompt[min(self._prompt, key=lambda other: abs(other - size))]
        return self._first if seconds is None else seconds

    def learn(self, sizes: Sequence[int], seconds: float) -> None:
        """Learn from one batch: the size bins of its prompts and its seconds."""
        counts = Counter(sizes)
        before = {size: max(self.of(size), _LEAST) for size in counts}
        predicted = self._batch + sum(before[size] * number for size, number in counts.items())
        ratio = min(max(seconds / predicted, 1 / _SURPRISE), _SURPRISE)
        self._batch = max(self._batch * ratio ** (_RATE * self._batch / predicted), _LEAST)
        for size, value in before.items():
            share = value * counts[size] / predicted
            self._prompt[size] = max(value * ratio ** (_RATE * share), _LEAST)


def doubling(characters: int) -> int:
    """The size bin of a prompt: the bit length of its number of characters."""
    return characters.bit_length()


_SURE = 0.8
"""Prompts are admitted and batched if that should take at most this share of their time left."""


@final
@dataclass(eq=False)
class ForecastJob:
    """A prompt to be encoded.

    Attributes:
        key: Its content key.
        prompt: The prompt.
        size: Its length in characters.
        future: Gets its result.
        waiters: The number of requests that wait for it.
        until: The last of their deadlines, by the loop's clock.
    """

    key: str
    prompt: Prompt
    size: int
    future: asyncio.Future[ForecastResult] = field(repr=False)
    waiters: int = 0
    until: float = 0.0

    def end(self, result: ForecastResult) -> None:
        """Give the result to all waiters; later calls are ignored."""
        if not self.future.done():
            self.future.set_result(result)


@final
class ForecastQueue:
    """The jobs in the queue and in the current batch, by the key of their prompt.

    Args:
        most: The most jobs in the queue.
        batch: The most jobs in a batch.
        characters: The most characters in a batch; its first job is taken whatever its size.
        pace: Predicts how long they take.
    """

    def __init__(self, *, most: int, batch: int, characters: int, pace: BatchTimeModel) -> None:
        self._most, self._batch, self._characters = most, batch, characters
        self._pace = pace
        self._began = self._ends = 0.0
        self._queue: dict[str, ForecastJob] = {}
        self._sizes: Counter[int] = Counter()
        self._under_way: dict[str, ForecastJob] = {}

    def __len__(self) -> int:
        return len(self._queue)

    @property
    def under_way(self) -> int:
        """The number of prompts in the current batch."""
        return len(self._under_way)

    @property
    def jobs(self) -> list[ForecastJob]:
        """All jobs, those of the current batch first."""
        return [*self._under_way.values(), *self._queue.values()]

    def admits(self, size: int, *, now: float, seconds: float) -> bool:
        """Whether another prompt would be encoded in time, and the others in its batch too.

        An idle encoder always admits, so that a wrong prediction is corrected by measurement.

        Args:
            size: Its length in characters.
            now: The time by the loop's clock.
            seconds: The seconds until its deadline.
        """
        if not self._queue and not self._under_way:
            return True
        count = 1 + len(self._queue)
        if count > self._most:
            return False
        pace = self._pace
        ends = abs(self._ends - now) if self._under_way else 0.0  # overdue: assume as long again
        ends += pace.of_batch(count, most=self._batch) + pace.of(doubling(size))
        ends += sum(number * pace.of(size_bin) for size_bin, number in self._sizes.items())
        together = islice(reversed(self._queue.values()), (count - 1) % self._batch)
        left = min((job.until - now for job in together), default=seconds)
        return ends <= _SURE * min(left, seconds)

    def get(self, key: str) -> ForecastJob | None:
        """The job of this prompt, if there is one."""
        return self._queue.get(key) or self._under_way.get(key)

    def add(self, job: ForecastJob) -> None:
        """Add a job at the end of the queue."""
        self._queue[job.key] = job
        self._sizes[doubling(job.size)] += 1

    def leave(self, job: ForecastJob) -> None:
        """Remove one waiter; a job without waiters leaves the queue."""
        job.waiters -= 1
        if not job.waiters and self._queue.get(job.key) is job:
            self._remove(job)

    def take(self, now: float) -> list[ForecastJob]:
        """The next batch: the oldest jobs, as many as can all meet their deadlines.

        Jobs that would be late even alone are dropped. If that would drop all of them, the newest
        is kept, so that the predicted time is measured again.
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
        self._under_way, self._began = {job.key: job for job in batch}, now
        return batch

    def end_batch(self, now: float) -> None:
        """Record the end of the batch."""
        sizes = [doubling(job.size) for job in self._under_way.values()]
        self._pace.learn(sizes, now - self._began)
        self._under_way = {}

    def end_all(self, reason: FallbackReason) -> None:
        """End all jobs without a forecast, for this reason."""
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
