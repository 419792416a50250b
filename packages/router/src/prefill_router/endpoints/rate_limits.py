"""Keeps calls within a provider's limits: concurrent calls, calls and tokens per minute, pauses.

When a provider reports a rate limit, its concurrency is halved; while it answers, the concurrency
grows again step by step.
"""

import asyncio
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import final

from prefill_router.targets import Provider

_MINUTE = 60.0
_BURST_CALLS = 0.1
_BURST_TOKENS = 0.2
"""The share of a minute's allowance that may be used at once; the rest is spread evenly."""
_LEAST_STEP = 0.1
_SOON = 0.001


@final
class TokenBucket:
    """A token bucket: limits an amount per minute, some of it at once and the rest evenly.

    Args:
        each_minute: The amount allowed in any 60 seconds.
        burst: The part of it that is allowed at once.
        now: The clock's time in seconds.
    """

    def __init__(self, each_minute: float, *, burst: float, now: float) -> None:
        self._most = self._level = burst
        self._rate = (each_minute - burst + 1) / _MINUTE  # the next one comes after the minute
        self._at = now

    def wait(self, amount: float, now: float) -> float:
        """Seconds until this amount may pass; an amount above the burst needs a full bucket."""
        self._level = min(self._level + (now - self._at) * self._rate, self._most)
        self._at = now
        lacking = min(amount, self._most) - self._level
        return max(lacking / self._rate, 0.0)

    def take(self, amount: float) -> None:
        """Take this amount from the bucket; a negative one is given back."""
        self._level = min(self._level - amount, self._most)


@final
class ProviderGate:
    """Limits the calls to one provider; used from one event loop.

    Args:
        provider: The provider, with its limits.
        clock: A monotonic clock, in seconds.
    """

    def __init__(self, provider: Provider, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._width = provider.concurrency
        self._window = float(provider.concurrency)
        self._in_flight = 0
        self._resumes_at = self._narrowed_at = clock()
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._correction = asyncio.Event()
        calls, tokens = provider.requests_per_minute, provider.tokens_per_minute
        self._calls = calls and TokenBucket(
            calls, burst=max(_BURST_CALLS * calls, 1.0), now=clock()
        )
        self._tokens = tokens and TokenBucket(tokens, burst=_BURST_TOKENS * tokens, now=clock())

    @property
    def window(self) -> float:
        """The number of concurrent calls that is allowed at present."""
        return self._window

    async def enter(self) -> None:
        """Wait for a slot among the concurrent calls."""
        while self._in_flight >= max(int(self._window), 1):
            turn = asyncio.get_running_loop().create_future()
            self._waiting.append(turn)
            try:
                await turn
            except asyncio.CancelledError:
                self._wake()  # whoever waits behind this one
                raise
        self._in_flight += 1

    def leave(self) -> None:
        """Release the slot."""
        self._in_flight -= 1
        self._wake()

    async def pace(self, tokens: float) -> None:
        """Wait until a call of about this many tokens may begin."""
        while (seconds := self._wait(tokens)) > 0:
            self._correction.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout(max(seconds, _SOON)):
                    await self._correction.wait()
        if self._calls:
            self._calls.take(1)
        if self._tokens:
            self._tokens.take(tokens)

    def correct(self, tokens: float) -> None:
        """Take the tokens that a call used beyond those expected; a negative number gives back."""
        if self._tokens:
            self._tokens.take(tokens)
            self._correction.set()

    def pause(self, seconds: float) -> None:
        """Let no call begin for this many seconds."""
        self._resumes_at = max(self._resumes_at, self._clock() + seconds)

    def narrow(self, began: float) -> None:
        """Halve the concurrency, since the provider reported a rate limit.

        Args:
            began: When the call began, by the clock; calls that were in flight when the window
                was last narrowed don't narrow it again.
        """
        if began >= self._narrowed_at:
            self._window = max(self._window / 2, 1.0)
            self._narrowed_at = self._clock()

    def widen(self) -> None:
        """Raise the concurrency a little, since the provider answered."""
        if self._window < self._width:
            self._window = min(self._window + max(1 / self._window, _LEAST_STEP), self._width)
            self._wake()

    def now(self) -> float:
        """The clock's time in seconds."""
        return self._clock()

    def _wait(self, tokens: float) -> float:
        now = self._clock()
        waits = [self._resumes_at - now]
        waits += [self._calls.wait(1, now)] if self._calls else []
        waits += [self._tokens.wait(tokens, now)] if self._tokens else []
        return max(waits)

    def _wake(self) -> None:
        free = int(self._window) - self._in_flight
        while self._waiting and free > 0:
            turn = self._waiting.popleft()
            if not turn.done():
                turn.set_result(None)
                free -= 1
