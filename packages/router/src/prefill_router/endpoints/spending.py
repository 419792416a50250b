"""A budget that is never exceeded, whatever is in flight.

No call begins unless the most that it can cost fits the budget. What counts against the limit is
the recorded costs with what is at risk, and the most that calls in flight can cost. Where that
last sum is written to disk before it grows (*exposure*), a process that is killed leaves a record
of how much may have been billed without an answer.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from typing import final

_AHEAD = 1.5
"""Exposure is written as this multiple of what is needed, so that fewer writes are."""
_SLACK = 1e-9
"""Relative tolerance; more than the rounding error of all sums together."""
_BEHIND = 8
"""A written exposure over this multiple of what is needed is replaced by a smaller one."""
_LEAST = 1e-12
"""US dollars; anything less is rounding error."""


@final
class SpendingLedger:
    """Spending that counts against a limit; used from one event loop.

    Args:
        limit: US dollars; None for no limit.
        charged: US dollars that count already.
        expose: Writes to disk by how many dollars more, or fewer, may be billed for calls not
            recorded yet. Its future is awaited before the call. What writes a call's record lowers
            them by its charge itself. None where each call is written by itself.
    """

    def __init__(
        self,
        limit: float | None,
        *,
        charged: float,
        expose: Callable[[float], asyncio.Future[None]] | None = None,
    ) -> None:
        self.limit = limit
        self.charged = charged
        self.unrecorded = 0.0
        self._in_flight = 0
        self._expose = expose
        self._exposure = 0.0
        self._exposure_write: asyncio.Future[None] | None = None
        self._waiting: deque[asyncio.Future[None]] = deque()

    @property
    def total(self) -> float:
        """US dollars that count now, including the most that calls in flight can cost."""
        return self.charged + self.unrecorded

    async def reserve(self, dollars: float) -> bool:
        """Wait until a call that costs at most this fits the limit, and count it as in flight.

        Returns:
            False where it can't fit any more: no call is in flight whose end could free budget.
        """
        while not self._fits(dollars):
            if not self._in_flight:
                return False
            turn = asyncio.get_running_loop().create_future()
            self._waiting.append(turn)
            await turn
        self._in_flight += 1
        self.unrecorded += dollars
        is_covered = False
        try:
            await self._cover()
            is_covered = True
        finally:
            if not is_covered:
                self.settle(dollars, 0.0)
        return True

    def settle(self, reserved: float, charged: float) -> None:
        """Replace a call's reservation by its charge when it has ended, before it is recorded."""
        self._in_flight -= 1
        self.unrecorded += charged - reserved
        self._wake()

    def mark_recorded(self, charged: float) -> None:
        """Count this much of the ended calls' charges as written to disk."""
        self.charged += charged
        self.unrecorded -= charged
        self._exposure = max(self._exposure - charged, 0.0)
        if _LEAST < _BEHIND * self.unrecorded < self._exposure:
            self._write_exposure(self.unrecorded * _AHEAD)

    async def close(self) -> None:
        """Write what may have been billed for calls that were abandoned."""
        self._write_exposure(self.unrecorded if self.unrecorded > _LEAST else 0.0)
        if self._exposure_write is not None:
            await self._exposure_write

    def _fits(self, dollars: float) -> bool:
        if self.limit is None:
            return True
        return self.total + dollars <= self.limit * (1 - _SLACK)

    async def _cover(self) -> None:
        if self.unrecorded > self._exposure:
            ahead = self.unrecorded * _AHEAD
            if self.limit is not None:  # calls in flight never reserve more than this
                ahead = max(min(ahead, self.limit - self.charged), self.unrecorded)
            self._write_exposure(ahead)
        if self._exposure_write is not None:
            await asyncio.shield(self._exposure_write)  # others wait for it too

    def _write_exposure(self, dollars: float) -> None:
        if dollars != self._exposure and self._expose is not None:
            self._exposure_write = self._expose(dollars - self._exposure)
            self._exposure = dollars

    def _wake(self) -> None:
        waiting, self._waiting = self._waiting, deque()
        for turn in waiting:
            if not turn.done():
                turn.set_result(None)
