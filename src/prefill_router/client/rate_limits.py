"""How hard a provider is asked: calls at once, calls and tokens a minute, and pauses it asks for.

A provider that says that it is asked too much gets half as many calls at once, and step by step
more again while it answers.
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
"""Of what a minute allows, so much may come at once; the rest comes evenly."""
_LEAST_STEP = 0.1
_SOON = 0.001


@final
class TokenBucket:
    """Lets so much through in any minute: some at once, the rest evenly.

    Args:
        each_minute: How much in any 60 seconds.
        burst: How much of it at once.
        now: Seconds of the clock.
    """

    def __init__(self, each_minute: float, *, burst: float, now: float) -> None:
        self._most = self._level = burst
        self._rate = (each_minute - burst + 1) / _MINUTE  # the next one comes after the minute
        self._at = now

    def wait(self, amount: float, now: float) -> float:
        """Seconds until so much may pass; what is more than a burst needs a full bucket."""
        self._level = min(self._level + (now - self._at) * self._rate, self._most)
        self._at = now
        lacking = min(amount, self._most) - self._level
        return max(lacking / self._rate, 0.0)

    def take(self, amount: float) -> None:
        """Let so much pass, or, where negative, count it as not passed."""
        self._level = min(self._level - amount, self._most)


@final
class ProviderGate:
    """What every call to one provider goes through; used from one event loop.

    Args:
        provider: Its limits.
        clock: Seconds that never go back.
    """

    def __init__(self, provider: Provider, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._width = provider.concurrency
        self._window = float(provider.concurrency)
        self._in_flight = 0
        self._resumes = self._narrowed = clock()
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._corrected = asyncio.Event()
        calls, tokens = provider.requests_per_minute, provider.tokens_per_minute
        self._calls = calls and TokenBucket(
            calls, burst=max(_BURST_CALLS * calls, 1.0), now=clock()
        )
        self._tokens = tokens and TokenBucket(tokens, burst=_BURST_TOKENS * tokens, now=clock())

    @property
    def window(self) -> float:
        """How many calls are allowed at once, at present."""
        return self._window

    async def enter(self) -> None:
        """Wait for a place among the calls at once."""
        while self._in_flight >= max(int(self._window), 1):
            turn = asyncio.get_running_loop().create_future()
            self._waiting.append(turn)
            await turn
        self._in_flight += 1

    def leave(self) -> None:
        """Give the place back."""
        self._in_flight -= 1
        self._wake()

    async def pace(self, tokens: float) -> None:
        """Wait until a call of about so many tokens may begin."""
        while (seconds := self._wait(tokens)) > 0:
            self._corrected.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout(max(seconds, _SOON)):
                    await self._corrected.wait()
        if self._calls:
            self._calls.take(1)
        if self._tokens:
            self._tokens.take(tokens)

    def correct(self, tokens: float) -> None:
        """A call had so many tokens more than it was let through with, or fewer."""
        if self._tokens:
            self._tokens.take(tokens)
            self._corrected.set()

    def pause(self, seconds: float) -> None:
        """Let nothing through for so long."""
        self._resumes = max(self._resumes, self._clock() + seconds)

    def narrow(self, began: float) -> None:
        """The provider says that it is asked too much.

        Args:
            began: When the call began, by the clock; of calls that were under way when the window
                was narrowed last it says nothing new.
        """
        if began >= self._narrowed:
            self._window = max(self._window / 2, 1.0)
            self._narrowed = self._clock()

    def widen(self) -> None:
        """The provider has answered."""
        if self._window < self._width:
            self._window = min(self._window + max(1 / self._window, _LEAST_STEP), self._width)
            self._wake()

    def now(self) -> float:
        """Seconds of the clock."""
        return self._clock()

    def _wait(self, tokens: float) -> float:
        now = self._clock()
        waits = [self._resumes - now]
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
