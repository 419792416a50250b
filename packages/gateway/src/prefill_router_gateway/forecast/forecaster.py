"""The gateway's interface to forecasts: a cache and a queue in front of the encoder's process.

Two watches count what comes of it: which of the last minute's decisions had no forecast, and how
far the features of the latest requests drift from those of the router's train rows.
"""

import asyncio
import logging
import math
import time
from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal, final

import numpy as np

from prefill_router.data import Prompt, prompt_key
from prefill_router.errors import ConfigError
from prefill_router.remote import PathOrUrl, location
from prefill_router.router import EncoderSources, Forecast
from prefill_router_gateway.forecast.encoder_process import (
    EncoderGoneError,
    EncoderHello,
    EncoderProcess,
    FrameError,
    NoForecastError,
    plain_options,
    plain_prompt,
    read_results,
    start_encoder,
)
from prefill_router_gateway.forecast.queue import BatchTimeModel, ForecastJob, ForecastQueue
from prefill_router_gateway.forecast.shared_encoder import (
    FIRST_PAUSE,
    HANG_SECONDS,
    LONGEST_PAUSE,
    PATIENCE,
    EncoderConnection,
    connect_encoder,
)
from prefill_router_gateway.records import FallbackReason

ForecasterState = Literal["starting", "ready", "down", "closed", "absent"]
"""`starting`: its process loads the encoder; `down`: it failed, and is restarted after a pause;
`absent`: there is no router."""


@final
@dataclass(frozen=True, kw_only=True)
class ForecasterStats:
    """The current state and queue, and counts since the start.

    Attributes:
        state: Whether it can forecast now.
        waiting: Prompts in the queue.
        under_way: Prompts in the batch that is being encoded.
        batches: Completed batches.
        encoded: Prompts in completed batches.
        cache_hits: Requests that were answered from the cache.
        shared: Requests that joined an equal prompt already in the queue.
        restarts: Restarts of the encoder's process.
        busy_seconds: Seconds that the process spent on batches.
    """

    state: ForecasterState
    waiting: int = 0
    under_way: int = 0
    batches: int = 0
    encoded: int = 0
    cache_hits: int = 0
    shared: int = 0
    restarts: int = 0
    busy_seconds: float = 0.0

    @property
    def mean_batch(self) -> float:
        """Mean prompts per batch; 0 before the first."""
        return self.encoded / self.batches if self.batches else 0.0


@final
class ForecastCache:
    """A cache of forecasts by prompt key, with least-recently-used eviction.

    Args:
        entries: The most entries that are kept; 0 disables the cache.
    """

    def __init__(self, entries: int) -> None:
        self._entries = entries
        self._forecasts: OrderedDict[str, Forecast] = OrderedDict()
        self.hits = 0

    def get(self, key: str) -> Forecast | None:
        """The forecast of this prompt, if it is cached."""
        forecast = self._forecasts.get(key)
        if forecast is not None:
            self._forecasts.move_to_end(key)
            self.hits += 1
        return forecast

    def put(self, key: str, forecast: Forecast) -> None:
        """Add a forecast."""
        if not self._entries:
            return
        self._forecasts[key] = forecast
        self._forecasts.move_to_end(key)
        if len(self._forecasts) > self._entries:
            self._forecasts.popitem(last=False)


_Link = EncoderProcess | EncoderConnection
_log = logging.getLogger(__name__)
_BATCH_CHARACTERS = 1_000_000


@final
class Forecaster:
    """Forecasts by an encoder in a process of its own, which is restarted when it fails.

    Prompts that arrive while a batch is encoded are queued and become the next batch; there is no
    other delay. A prompt that would miss its deadline, by the time that batches have taken so far,
    is refused at once. Equal prompts are encoded once, and recent forecasts are cached.

    Args:
        folder: The router's folder.
        sources: Where its encoders are found; none may be a loaded encoder.
        shared: The Unix socket of a process that several gateways share; None for a process of
            its own.
        max_queue: The most prompts in the queue.
        max_batch: The most prompts in a batch.
        cache_entries: The most forecasts in the cache; 0 disables it.
        threads: Threads of the encoder. By default one fewer than there are cores, which leaves one
            for the gateway: a thread that waits for a core delays all the others.
        reuse_bytes: Memory in which a causal encoder keeps the states of prefixes that prompts
            share; 0 for none. Prompts of more than 64 tokens are then encoded one by one.
        max_characters: Longer prompts are refused as unreadable, since tokenising them would delay
            all others.
        hang_seconds: A batch that takes this much longer than expected means that the process
            hangs; it is killed.
        start_seconds: Time limit for loading, a download included.
        pause_seconds: Pause before a failed process is restarted; doubled up to 30 s while it
            fails.
    """

    def __init__(
        self,
        folder: PathOrUrl | str,
        *,
        sources: EncoderSources | None = None,
        shared: Path | None = None,
        max_queue: int = 256,
        max_batch: int = 32,
        cache_entries: int = 4096,
        threads: int | None = None,
        reuse_bytes: int = 0,
        max_characters: int = 1_000_000,
        hang_seconds: float = HANG_SECONDS,
        start_seconds: float = 600.0,
        pause_seconds: float = FIRST_PAUSE,
    ) -> None:
        self._options = plain_options(
            location(folder), sources or EncoderSources(), threads=threads, reuse_bytes=reuse_bytes
        )
        self._shared_path = shared
        self._pace = BatchTimeModel()
        self._waiting = ForecastQueue(
            most=max_queue, batch=max_batch, characters=_BATCH_CHARACTERS, pace=self._pace
        )
        self._memory = ForecastCache(cache_entries)
        self._max_characters = max_characters
        self._hang_seconds = hang_seconds
        self._start_seconds = start_seconds
        self._first_pause = self._pause = pause_seconds
        self._state: ForecasterState = "starting"
        self._hello: EncoderHello | None = None
        self._link: _Link | None = None
        self._task: asyncio.Task[None] | None = None
        self._arrived = asyncio.Event()
        self._batches = self._encoded = self._shared = self._restarts = 0
        self._busy_seconds = 0.0

    @property
    def state(self) -> ForecasterState:
        """Whether it can forecast now."""
        return self._state

    @property
    def hello(self) -> EncoderHello:
        """The process's first message: fingerprint, targets, encoders.

        Raises:
            ConfigError: It hasn't been started.
        """
        if self._hello is None:
            raise ConfigError("the forecaster isn't started; await its start() first")
        return self._hello

    @property
    def pid(self) -> int | None:
        """The process id of the encoder's own process; None where there is none."""
        return self._link.pid if isinstance(self._link, EncoderProcess) else None

    def stats(self) -> ForecasterStats:
        """Counts for metrics."""
        return ForecasterStats(
            state=self._state,
            waiting=len(self._waiting),
            under_way=self._waiting.under_way,
            batches=self._batches,
            encoded=self._encoded,
            cache_hits=self._memory.hits,
            shared=self._shared,
            restarts=self._restarts,
            busy_seconds=self._busy_seconds,
        )

    async def start(self) -> None:
        """Start the process, and wait until it is warm.

        Raises:
            ConfigError: It can't load the router or its encoder; the message is the process's.
        """
        if self._task is not None or self._state == "closed":
            raise ConfigError("a forecaster can be started only once; make another")
        self._link = await self._connect()
        self._hello = self._link.hello
        self._pace.begin(self._hello.prompt_seconds)
        self._state = "ready"
        self._task = asyncio.create_task(self._run(self._link))

    async def close(self, *, seconds: float = 5.0) -> None:
        """Accept no more prompts, wait at most `seconds` for the queue, and end the process."""
        self._state = "closed"
        waiting = [job.future for job in self._waiting.jobs]
        if waiting:
            await asyncio.wait(waiting, timeout=seconds)
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
        self._state = "closed"
        self._waiting.end_all("encoder_down")
        if self._link is not None:
            await self._link.close()
            self._link = None

    async def forecast(self, prompt: Prompt, *, seconds: float) -> Forecast:
        """Forecast a prompt.

        Args:
            prompt: Text or messages.
            seconds: The deadline.

        Raises:
            NoForecastError: There is no forecast, or none in time; it says why.
        """
        key = prompt_key(prompt)
        cached = self._memory.get(key)
        if cached is not None:
            return cached
        if seconds <= 0:
            raise NoForecastError("deadline")
        job = self._waiting.get(key)
        if job is None:
            job = self._admit(key, prompt, seconds)
        else:
            self._shared += 1
        return await self._wait_for(job, seconds)

    def _admit(self, key: str, prompt: Prompt, seconds: float) -> ForecastJob:
        if self._state != "ready":
            raise NoForecastError("encoder_down")
        size = len(prompt) if isinstance(prompt, str) else sum(len(m.content) for m in prompt)
        if size > self._max_characters:
            raise NoForecastError("unreadable")
        loop = asyncio.get_running_loop()
        if not self._waiting.admits(size, now=loop.time(), seconds=seconds):
            raise NoForecastError("queue_full")
        job = ForecastJob(key, prompt, size, loop.create_future())
        self._waiting.add(job)
        self._arrived.set()
        return job

    async def _wait_for(self, job: ForecastJob, seconds: float) -> Forecast:
        job.waiters += 1
        job.until = max(job.until, asyncio.get_running_loop().time() + seconds)
        try:
            await asyncio.wait((job.future,), timeout=seconds)
        finally:
            self._waiting.leave(job)
        if not job.future.done():
            raise NoForecastError("deadline")
        result = job.future.result()
        if isinstance(result, str):
            raise NoForecastError(result)
        return result

    async def _run(self, link: _Link) -> None:
        """Serve until cancelled, and replace a process that fails."""
        while True:
            watching = asyncio.create_task(self._wake_at_end(link))
            try:
                await self._serve(link)
            except EncoderGoneError as error:
                _log.warning("%s; it is restarted", error)
            finally:
                watching.cancel()
                if self._state != "closed":
                    self._state = "down"
                self._waiting.end_all("encoder_down")
            await link.kill()
            link = await self._start_again()

    async def _wake_at_end(self, link: _Link) -> None:
        await link.end.wait()
        self._arrived.set()

    async def _serve(self, link: _Link) -> None:
        while True:
            await self._arrived.wait()
            if link.end.is_set():
                raise EncoderGoneError(f"the encoder's process ended: {await link.last_words()}")
            batch = self._waiting.take(asyncio.get_running_loop().time())
            if not batch:
                self._arrived.clear()
                continue
            await self._forecast_batch(link, batch)
            self._waiting.end_batch(asyncio.get_running_loop().time())
            self._pause = self._first_pause

    async def _forecast_batch(self, link: _Link, batch: list[ForecastJob]) -> None:
        limit = self._hang_seconds + PATIENCE * link.hello.prompt_seconds * len(batch)
        try:
            async with asyncio.timeout(limit):
                answer = await link.ask({"prompts": [plain_prompt(job.prompt) for job in batch]})
            count, targets = len(batch), len(self.hello.targets)
            results = read_results(answer["found"], count=count, targets=targets)
            self._busy_seconds += float(answer["seconds"])
        except TimeoutError:
            raise EncoderGoneError(
                f"a batch of {len(batch)} took the encoder's process over {limit:.0f} s"
            ) from None
        except (FrameError, LookupError, TypeError, ValueError):
            raise EncoderGoneError("the encoder's process sent an invalid answer") from None
        self._batches += 1
        self._encoded += len(batch)
        for job, result in zip(batch, results, strict=True):
            if isinstance(result, Forecast):
                self._memory.put(job.key, result)
            job.end(result)

    async def _connect(self) -> _Link:
        if self._shared_path is not None:
            return await connect_encoder(self._shared_path, seconds=self._start_seconds)
        return await start_encoder(self._options, seconds=self._start_seconds)

    async def _start_again(self) -> _Link:
        while True:
            await asyncio.sleep(self._pause)
            self._pause = min(2 * self._pause, LONGEST_PAUSE)
            self._state = "starting"
            try:
                self._link = link = await self._connect()
            except ConfigError as error:
                _log.warning("the encoder's process can't be started: %s", error)
            else:
                if link.hello.fingerprint == self.hello.fingerprint:
                    self._restarts += 1
                    self._state = "ready"
                    return link
                _log.error("the router's folder now has another router; reload the gateway")
                await link.kill()
            self._state = "down"


@final
class NoForecaster:
    """Stands in for a forecaster where there is no router, and has no process."""

    state: Final = "absent"

    def stats(self) -> ForecasterStats:
        """Counts for metrics, all zero."""
        return ForecasterStats(state=self.state)

    async def forecast(self, prompt: Prompt, *, seconds: float) -> Forecast:
        """Make no forecast.

        Args:
            prompt: Text or messages.
            seconds: The deadline.

        Raises:
            NoForecastError: Always.
        """
        del prompt, seconds
        raise NoForecastError("no_router")

    async def close(self, *, seconds: float = 5.0) -> None:
        """Do nothing."""


_WATCHED_SECONDS = 60
_MUCH = 0.05
_LEAST_DECISIONS = 20
_WORDS: Mapping[FallbackReason, str] = {
    "deadline": "too late",
    "queue_full": "too many requests",
    "encoder_down": "the encoder is down",
    "unreadable": "it can't read them",
}


@final
@dataclass(frozen=True, kw_only=True)
class FallbackShare:
    """The share of the last minute's decisions without the forecast that they needed.

    Attributes:
        decisions: The number of decisions that needed a forecast.
        lacking: The number of them that had none, by reason.
    """

    decisions: int
    lacking: Mapping[FallbackReason, int]

    @property
    def share(self) -> float:
        """The share of decisions without a forecast, from 0 to 1."""
        return sum(self.lacking.values()) / self.decisions if self.decisions else 0.0

    @property
    def is_much(self) -> bool:
        """Whether to warn: more than one in twenty, of at least twenty decisions."""
        return self.decisions >= _LEAST_DECISIONS and self.share > _MUCH

    def __str__(self) -> str:
        why = ", ".join(
            f"{count / self.decisions:.0%} {_WORDS[lack]}" for lack, count in self.lacking.items()
        )
        of = f"of the last minute's {self.decisions} decisions"
        return f"{self.share:.0%} {of} had no forecast: {why}"


@final
class FallbackWatch:
    """Counts the last minute's decisions with and without a forecast, and warns if many lack one.

    Args:
        clock: A monotonic clock, in seconds.
    """

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._seconds: deque[tuple[int, Counter[FallbackReason | None]]] = deque()
        self._warned = False

    def add(self, lack: FallbackReason | None) -> None:
        """Count a decision that needed a forecast; requests without text aren't counted.

        Args:
            lack: Why it had none; None where it had one.
        """
        if lack == "no_text":
            return
        second = int(self._clock())
        if not self._seconds or self._seconds[-1][0] != second:
            self._log_changes()
            self._seconds.append((second, Counter()))
        self._seconds[-1][1][lack] += 1

    def report(self) -> FallbackShare:
        """The share of the last minute."""
        first = int(self._clock()) - _WATCHED_SECONDS
        while self._seconds and self._seconds[0][0] <= first:
            self._seconds.popleft()
        total: Counter[FallbackReason | None] = Counter()
        for _, counts in self._seconds:
            total.update(counts)
        lacking = {lack: total[lack] for lack in _WORDS if total[lack]}
        return FallbackShare(decisions=total.total(), lacking=lacking)

    def _log_changes(self) -> None:
        report = self.report()
        if report.is_much and not self._warned:
            _log.warning("%s; the fallback decides on these", report)
        elif self._warned and not report.is_much:
            _log.info("decisions have their forecasts again")
        self._warned = report.is_much


_BINS = 10
_LEAST = 200
_PRIOR = 0.5  # pseudo-count of each bin, so that an empty bin has a logarithm
_LEAST_SHARE = 1e-3  # the same for the reference shares


@final
@dataclass(frozen=True, kw_only=True)
class Drift:
    """The drift of the features of the latest requests from those of the train rows.

    Attributes:
        requests: The number of requests that it is measured on.
        by_feature: The population stability index of each feature.
        mean: The mean index.
        largest: The largest index.
    """

    requests: int
    by_feature: Mapping[str, float]
    mean: float
    largest: float


@final
class DriftWatch:
    """Counts the features of the latest requests in deciles of the train rows.

    Args:
        features: The names of the features, in the order of `Forecast.bins`.
        window: The number of latest requests that are counted.
        least: The number of requests from which on there is a report.
        shares: The share of train rows in each bin of each feature; a tenth, except where many rows
            have the same value. By default, a tenth each.

    Attributes:
        features: The names of the features.
        least: The number of requests from which on there is a report.
    """

    def __init__(
        self,
        features: Sequence[str],
        *,
        window: int = 2000,
        least: int = _LEAST,
        shares: Sequence[Sequence[float]] | None = None,
    ) -> None:
        self.features = tuple(features)
        self._shares = [None] * len(self.features) if shares is None else list(shares)
        self._rows = np.zeros((max(window, least), len(self.features)), dtype=np.int64)
        self._counts = np.zeros((len(self.features), _BINS), dtype=np.int64)
        self._columns = np.arange(len(self.features))
        self.least = least
        self._total = 0

    def add(self, bins: Sequence[int]) -> None:
        """Count one request; one without bins, or with another reference's, is ignored."""
        if len(bins) != len(self.features) or not bins:
            return
        row = self._rows[self._total % len(self._rows)]
        if self._total >= len(self._rows):
            self._counts[self._columns, row] -= 1
        row[:] = bins
        self._counts[self._columns, row] += 1
        self._total += 1

    @property
    def requests(self) -> int:
        """The number of requests that are counted."""
        return min(self._total, len(self._rows))

    def report(self) -> Drift | None:
        """The drift of the latest requests; None while there are too few."""
        if not self.features or self.requests < self.least:
            return None
        indices = {
            name: stability_index(counts.tolist(), shares)
            for name, counts, shares in zip(self.features, self._counts, self._shares, strict=True)
        }
        values = list(indices.values())
        return Drift(
            requests=self.requests,
            by_feature=indices,
            mean=math.fsum(values) / len(values),
            largest=max(values),
        )


def stability_index(counts: Sequence[int], expected: Sequence[float] | None = None) -> float:
    """The population stability index of counts in bins.

    It is the sum over bins of (p - q) ln(p / q), where p is a bin's share and q the expected one.
    Half a count is added to each bin. By convention, a value below 0.1 means no change, and one
    above 0.25 a large change. Source: N. Siddiqi, Credit Risk Scorecards, Wiley 2006, chapter 8;
    for its expected value by chance, about (bins - 1) / requests: B. Yurdakul, Statistical
    Properties of Population Stability Index, dissertation, Western Michigan University, 2018.

    Args:
        counts: The count of each bin.
        expected: The expected share of each bin; equal shares by default.
    """
    bins = len(counts)
    even = [1 / bins] * bins
    before = (
        even
        if expected is None
        else [(q + _LEAST_SHARE) / (1 + _LEAST_SHARE * bins) for q in expected]
    )
    total = math.fsum(counts) + _PRIOR * bins
    shares = [(count + _PRIOR) / total for count in counts]
    pairs = zip(shares, before, strict=True)
    return math.fsum((p - q) * math.log(p / q) for p, q in pairs)
