"""A real rate limit: so many requests each second, and no more."""

import time
from collections.abc import Callable
from typing import final


@final
class Bucket:
    """Lets through `per_second` requests each second, `burst` of them at once at most.

    Args:
        per_second: Requests each second.
        burst: Requests at once.
        clock: Seconds that only grow.
    """

    def __init__(
        self, per_second: float, burst: int, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._per_second = per_second
        self._burst = burst
        self._clock = clock
        self._filled = float(burst)
        self._at = clock()

    def take(self) -> float:
        """Let a request through and return 0, or return the seconds until one may come."""
        now = self._clock()
        self._filled = min(self._burst, self._filled + (now - self._at) * self._per_second)
        self._at = now
        if self._filled >= 1:
            self._filled -= 1
            return 0.0
        return (1 - self._filled) / self._per_second
