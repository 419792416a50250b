"""The time of day by a clock that doesn't jump: budgets are of hours and days."""

import logging
import time
from collections.abc import Callable
from typing import final

_log = logging.getLogger(__name__)
_SLACK = 60.0
_BELIEVED = 3600.0


def _running() -> float:
    """Seconds that only grow, those included in which the machine slept, where that is known."""
    return time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))


@final
class SteadyClock:
    """Gives the system's time, and goes on evenly where that jumps by more than a minute.

    A jump that lasts is believed after an hour: until then what was spent today stays spent.

    Args:
        clock: Seconds that only grow.
    """

    def __init__(self, *, clock: Callable[[], float] = _running) -> None:
        self._clock = clock
        self._offset: float | None = None
        self._jumped_at: float | None = None

    def __call__(self, at: float) -> float:
        """The time that counts.

        Args:
            at: The system's, seconds since 1970; now, or not long ago.
        """
        now = self._clock()
        jump = 0.0 if self._offset is None else at - now - self._offset
        if abs(jump) <= _SLACK:
            self._offset, self._jumped_at = at - now, None
            return at
        if self._jumped_at is None:
            self._jumped_at = now
            told = "the system's clock jumped by %.0f s; budgets go on without that, for an hour"
            _log.warning(told, jump)
        if now - self._jumped_at <= _BELIEVED:
            return at - jump
        self._offset, self._jumped_at = at - now, None
        return at
