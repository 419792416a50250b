"""Spending limits that are never passed: no call begins unless the most that it can cost fits.

One ledger is used from an event loop, when targets are asked. What counts against its limit is what
is recorded (costs, and what is at risk), and beside it the most that calls under way can cost. The
sum of the latter is noted on the disk before it grows (*exposure*), so that a process that is
killed leaves behind how much may have been billed unseen. The other is shared by threads, when
judges are asked: what may be spent is set aside before it is.
"""

import asyncio
import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import final

from prefill_router.errors import PrefillRouterError

_AHEAD = 1.5
"""Exposure is noted for so many times what is needed, so that few notes do."""
_SLACK = 1e-9
"""Relative; more than the rounding of all sums together."""
_BEHIND = 8
"""A note that is so many times what is needed is replaced by a smaller one."""
_LEAST = 1e-12
"""US dollars; less is the rounding of sums."""


@final
class ExposureLedger:
    """What counts against the limit; used from one event loop.

    Args:
        limit: US dollars; None for none.
        charged: What counts already.
        expose: Notes on the disk what may be billed for calls that aren't recorded; what it gives
            back is awaited before the call.
    """

    def __init__(
        self,
        limit: float | None,
        *,
        charged: float,
        expose: Callable[[float], asyncio.Future[None]],
    ) -> None:
        self.limit = limit
        self.charged = charged
        self.unrecorded = 0.0
        self._in_flight = 0
        self._expose = expose
        self._noted = 0.0
        self._noting: asyncio.Future[None] | None = None
        self._waiting: deque[asyncio.Future[None]] = deque()

    async def reserve(self, dollars: float) -> bool:
        """Wait until a call of at most so much fits, and count it as under way.

        Returns:
            False where it can't fit any more: nothing is under way whose end would make room.
        """
        while not self._fits(dollars):
            if not self._in_flight:
                return False
            turn = asyncio.get_running_loop().create_future()
            self._waiting.append(turn)
            await turn
        self._in_flight += 1
        self.unrecorded += dollars
        covered = False
        try:
            await self._cover()
            covered = True
        finally:
            if not covered:
                self.settle(dollars, 0.0)
        return True

    def settle(self, reserved: float, charged: float) -> None:
        """A call has ended, and counts so much; it is not recorded yet."""
        self._in_flight -= 1
        self.unrecorded += charged - reserved
        self._wake()

    def recorded(self, charged: float) -> None:
        """So much of what has ended is on the disk."""
        self.charged += charged
        self.unrecorded -= charged
        if _LEAST < _BEHIND * self.unrecorded < self._noted:
            self._note(self.unrecorded * _AHEAD)

    async def close(self) -> None:
        """Note what may have been billed for calls that were given up."""
        self._note(self.unrecorded if self.unrecorded > _LEAST else 0.0)
        if self._noting is not None:
            await self._noting

    def _fits(self, dollars: float) -> bool:
        if self.limit is None:
            return True
        return self.charged + self.unrecorded + dollars <= self.limit * (1 - _SLACK)

    async def _cover(self) -> None:
        if self.unrecorded > self._noted:
            ahead = self.unrecorded * _AHEAD
            if self.limit is not None:  # more than that never is under way
                ahead = max(min(ahead, self.limit - self.charged), self.unrecorded)
            self._note(ahead)
        if self._noting is not None:
            await asyncio.shield(self._noting)  # others wait for it too

    def _note(self, dollars: float) -> None:
        if dollars != self._noted:
            self._noted = dollars
            self._noting = self._expose(dollars)

    def _wake(self) -> None:
        waiting, self._waiting = self._waiting, deque()
        for turn in waiting:
            if not turn.done():
                turn.set_result(None)


@final
class OverLimitError(PrefillRouterError):
    """A call may cost more than is left."""


@final
class Reservation:
    """What is set aside for one call.

    Attributes:
        dollars: The most that it can cost.
        charged: What counts once it is over; all of it unless something else is said.
    """

    def __init__(self, dollars: float) -> None:
        self.dollars = dollars
        self.charged = dollars


@final
class ReservationLedger:
    """What was spent and what is set aside; shared by threads.

    Args:
        limit: US dollars; None for no limit.
        spent: Of these already.
    """

    def __init__(self, *, limit: float | None, spent: float) -> None:
        self._limit = limit
        self._spent = spent
        self._aside: list[float] = []
        self._changed = threading.Condition()

    @property
    def spent(self) -> float:
        """US dollars so far; calls whose bill is unknown count with the most that they can cost."""
        with self._changed:
            return self._spent

    @contextmanager
    def reserving(self, dollars: float) -> Iterator[Reservation]:
        """Set aside what a call can cost; waits where only calls under way stand in its way.

        Raises:
            OverLimitError: It doesn't fit, and nothing is under way.
        """
        with self._changed:
            while not self._fits(dollars):
                if not self._aside:
                    raise OverLimitError(
                        f"a call may cost ${dollars:.4f}, and ${self._spent:.4f} of the limit of "
                        f"${self._limit or 0:.4f} are spent; raise --judge-max-cost"
                    )
                self._changed.wait()
            self._aside.append(dollars)
        reservation = Reservation(dollars)
        try:
            yield reservation
        finally:
            with self._changed:
                self._aside.remove(dollars)
                self._spent += reservation.charged
                self._changed.notify_all()

    def _fits(self, dollars: float) -> bool:
        return self._limit is None or self._spent + sum(self._aside) + dollars <= self._limit
